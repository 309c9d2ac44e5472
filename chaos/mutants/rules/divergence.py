"""Defects in finding out whose log is another one than the group's, and in taking oneself out of
service for it (docs/adr/0044-the-live-divergence-alarm.md)."""

from __future__ import annotations

from chaos.mutants.mutant import Mutant

_ALTERED = "altered-log"
_VERDICT = ("tests/broker/test_verdict.py",)
_MEMBERS = ("tests/node/test_comparing.py",)
_ALONE = "in a run whoever is wrong is one, and a majority says so to all"

DIVERGENCE = (
    Mutant(
        "suspicion-of-an-unknown-form-is-none",
        "store/suspicion.py",
        "                return Suspicion(max(index, 0), is_memory)\n        return UNKNOWN\n",
        "                return Suspicion(max(index, 0), is_memory)\n        return None\n",
        masked="no simulated node meets the note of another release",
        tests=("tests/store/test_suspicion.py",),
    ),
    Mutant(
        "who-is-silent-is-asked-at-each-place",
        "broker/comparing.py",
        "for peer, place in told.items() if place.index <= index}",
        "for peer, place in told.items()}",
        masked="it takes longer, and is found out all the same",
        tests=("tests/broker/test_comparing_tails.py",),
    ),
    Mutant(
        "compared-is-what-was-there-before-the-question",
        "broker/comparing.py",
        "            if self._place(index) != own:\n",
        "            if False:\n",
        masked="of a thousand seeds one has a tail like that",
        tests=("tests/broker/test_comparing_tails.py",),
    ),
    Mutant(
        "whose-log-is-wrong-hidden-by-a-tail",
        "broker/comparing.py",
        "left.update(filter(None, (self._before(own, place)",
        "left.update(filter(None, (0 and self._before(own, place)",
        masked="of a thousand seeds one has a tail like that",
        tests=("tests/broker/test_comparing_tails.py",),
    ),
    # --- who finds out ---
    Mutant(
        "contradictions-ask-nobody",
        "dledger/doubt.py",
        "            self._on_contradiction(error.index)\n",
        "",
        under=_ALTERED,
    ),
    Mutant(
        "who-is-asked-compares-nothing",
        "broker/comparing.py",
        "            self.suspect(own.index)\n",
        "            pass\n",
        masked="where the others lead it is contradicted by them soon",
        tests=_MEMBERS,
    ),
    # --- who is wrong ---
    Mutant(
        "one-peer-is-a-majority",
        "broker/verdict.py",
        "    if any(has_quorum(configuration, peers) for peers in others.values()):\n",
        "    if any(others.values()):\n",
        under=_ALTERED,
    ),
    Mutant(
        "they-need-not-say-the-same",
        "broker/verdict.py",
        "    if any(has_quorum(configuration, peers) for peers in others.values()):\n",
        "    if has_quorum(configuration, differing):\n",
        masked=_ALONE,
        tests=_VERDICT,
    ),
    Mutant(
        "an-entry-of-another-term-differs",
        "broker/verdict.py",
        "        if place.term == own.term and place.digest != own.digest:\n",
        "        if place.digest != own.digest:\n",
        masked=_ALONE,
        tests=_VERDICT,
    ),
    Mutant(
        "outvoted-and-stays",
        "broker/comparing.py",
        "                return found if await self._is_sound(found.own) else None\n",
        "                return None\n",
        under=_ALTERED,
    ),
    Mutant(
        "own-files-not-read-first",
        "broker/comparing.py",
        "                return found if await self._is_sound(found.own) else None\n",
        "                return found\n",
        masked="rot and another log on one disk are two faults",
        tests=_MEMBERS,
    ),
    # --- what becomes of it ---
    Mutant(
        "diverged-and-not-silent",
        "broker/comparing.py",
        "        self._around.silence()\n",
        "",
        under=_ALTERED,
    ),
    Mutant(
        "silent-and-answers",
        "broker/replica.py",
        "        if self.comparison.on_message(peer, message) or self.comparison.is_silent:\n",
        "        if self.comparison.on_message(peer, message):\n",
        masked="only who has lost entries would ask it, in that moment",
        tests=_MEMBERS,
    ),
    Mutant(
        "halving-goes-the-other-way",
        "broker/comparing.py",
        "            if theirs == middle:\n",
        "            if theirs != middle:\n",
        under=_ALTERED,
    ),
    Mutant(
        "out-of-service-not-marked",
        "broker/replica.py",
        "                await hand.run(partial(self._last_words.mark, self.failure.divergence))\n",
        "                pass\n",
        under=_ALTERED,
    ),
    Mutant(
        "marked-only-when-all-is-found-out",
        "broker/comparing.py",
        "        await self._around.leaving(\n",
        "        lambda: self._around.leaving(\n",
        under=_ALTERED,
    ),
    Mutant(
        "suspicion-forgotten-by-a-start",
        "broker/replica.py",
        "            self.comparison.recall()\n",
        "",
        under=_ALTERED,
    ),
    Mutant(
        "suspicion-not-noted",
        "broker/comparing.py",
        "                await self._kept.remember(found.own.index)\n",
        "                pass\n",
        masked="the next heartbeat contradicts it again, in a run",
        tests=_MEMBERS,
    ),
    Mutant(
        "suspicion-never-settled",
        "broker/comparing.py",
        "                await asyncio.sleep(PAUSE_S)\n            await self._kept.remember(0)\n",
        "                await asyncio.sleep(PAUSE_S)\n",
        masked="it costs time and no truth",
        tests=_MEMBERS,
    ),
    Mutant(
        "wrong-memory-not-noted",
        "broker/replica.py",
        "                await hand.run("
        "partial(self._last_words.suspect_memory, self.failure.index))\n",
        "                pass\n",
        masked="no memory of a run is wrong",
        tests=_MEMBERS,
    ),
    Mutant(
        "seals-of-a-wrong-memory-believed",
        "store/starting/opening.py",
        "    is_suspected = suspicion is not None and suspicion.is_memory\n",
        "    is_suspected = False\n",
        masked="no memory of a run is wrong",
        tests=_MEMBERS,
    ),
    Mutant(
        "mark-not-asked-for",
        "store/starting/opening.py",
        "        check_in_service(site)\n        founding = settle_forming(site, directory)\n"
        "        _take_in_anew",
        "        founding = settle_forming(site, directory)\n        _take_in_anew",
        under=_ALTERED,
    ),
    Mutant(
        "mark-asked-for-when-the-log-is-open",
        "store/starting/opening.py",
        "        check_in_service(site)\n        founding = settle_forming(site, directory)\n"
        "        _take_in_anew(site, directory, founding)\n"
        "        log = opened.enter_context(contextlib.closing(open_log(site)))\n",
        "        founding = settle_forming(site, directory)\n"
        "        _take_in_anew(site, directory, founding)\n"
        "        log = opened.enter_context(contextlib.closing(open_log(site)))\n"
        "        check_in_service(site)\n",
        masked="what a start writes to a log that is whole is next to nothing",
        tests=_MEMBERS,
    ),
    Mutant(
        "unreadable-mark-is-none",
        "store/out_of_service.py",
        "        return UNKNOWN\n",
        "        return None\n",
        masked="nothing spoils a mark here",
        tests=_MEMBERS,
    ),
)
