"""Defects of members whose logs begin later than with entry 1 and are compared, begun anew or
filled (docs/adr/0043-a-log-that-begins-later.md, 0044-the-live-divergence-alarm.md)."""

from __future__ import annotations

from chaos.mutants.mutant import Mutant

_LATER = ("tests/node/test_later_logs.py",)
_INSTALLING = ("tests/broker/test_installing.py",)
_FILLING = ("tests/broker/test_filling.py",)
_NOT_WITH_MOVES = "logs that differ are not simulated with starts that move"

LATER_LOGS = (
    Mutant(
        "logs-agree-before-their-first-entries",
        "broker/comparing.py",
        "        agreed, differing = 0, Place(own.index, own.term, digest)\n",
        "        agreed, differing = self._log.start.index, Place(own.index, own.term, digest)\n",
        masked=_NOT_WITH_MOVES,
        tests=_LATER,
    ),
    Mutant(
        "entry-before-the-first-not-compared",
        "broker/comparing.py",
        "        return max(self._log.start.index, 1)\n",
        "        return self._log.first_index\n",
        masked=_NOT_WITH_MOVES,
        tests=_LATER,
    ),
    Mutant(
        "own-start-note-not-read",
        "broker/comparing.py",
        "        if noted.index <= start.index and noted != start:\n",
        "        if False:\n",
        masked=_NOT_WITH_MOVES,
        tests=_LATER,
    ),
    Mutant(
        "front-goes-while-logs-are-compared",
        "broker/wiring.py",
        "told.is_silent or bool(told.suspected)\n",
        "told.is_silent\n",
        masked=_NOT_WITH_MOVES,
        tests=_LATER,
    ),
    Mutant(
        "begins-anew-while-logs-are-compared",
        "broker/installing.py",
        "        if self._around.is_compared():\n            raise NotGiven",
        "        if False:\n            raise NotGiven",
        masked=_NOT_WITH_MOVES,
        tests=_LATER,
    ),
    Mutant(
        "begins-anew-before-anybody-could-ask",
        "broker/installing.py",
        "            await asyncio.sleep(LISTEN_S)\n",
        "",
        masked=_NOT_WITH_MOVES,
        tests=_LATER,
    ),
    Mutant(
        "base-with-another-head-installed",
        "broker/pulling.py",
        "    if head != head_of(head.disk_id, start):\n",
        "    if False:\n",
        masked="a base that is offered is the one that is given",
        tests=_LATER,
    ),
    Mutant(
        "base-with-another-state-installed",
        "broker/pulling.py",
        "    if machine.applied_index != start.index:\n",
        "    if False:\n",
        masked="a base that is offered is the one that is given",
        tests=_LATER,
    ),
    Mutant(
        "dead-leaders-offer-kept-alive-by-the-next-ones",
        "broker/installing.py",
        "if latest is None or (latest.sender, latest.base) != (offer.sender, offer.base):\n",
        "if latest is None:\n",
        masked="a leader that is gone comes back, or another one offers",
        tests=_INSTALLING,
    ),
    Mutant(
        "silent-peer-waited-for-to-the-end",
        "broker/pulling.py",
        "            return loop.time() < min(until_s, quiet_s)\n",
        "            return loop.time() < until_s\n",
        masked="it costs time and no truth",
        tests=_INSTALLING,
    ),
    Mutant(
        "state-takes-all-that-is-free",
        "broker/pulling.py",
        "                await self._hand.run(partial(self._files.check_room, size, gives_back))\n",
        "                pass\n",
        masked="simulated members keep nothing free",
        tests=_INSTALLING,
    ),
    Mutant(
        "more-taken-than-was-announced",
        "broker/pulling.py",
        "            if len(answer.piece) > size - at:\n",
        "            if False:\n",
        masked="what is given is a file of that size",
        tests=_INSTALLING,
    ),
    Mutant(
        "begun-with-a-base-that-wasnt-read-back",
        "broker/installing.py",
        "            if refusal is not None:\n",
        "            if False:\n",
        masked="a simulated disk keeps what it is given",
        tests=_LATER,
    ),
    Mutant(
        "log-goes-for-a-base-that-isnt-there",
        "store/starting/opening.py",
        "    if intended is not None and not snapshots.is_whole(intended.index):\n",
        "    if False:\n",
        masked="bases don't rot between two processes there",
        tests=_LATER,
    ),
    Mutant(
        "base-without-a-configuration",
        "broker/log_start.py",
        "        return start if start.configuration_index else None\n",
        "        return start\n",
        masked="every simulated log has one early on",
        tests=_LATER,
    ),
    Mutant(
        "queues-begin-at-0-after-a-start",
        "broker/recovery.py",
        "        if not self._found.log.start.index:\n            return NO_STARTS\n",
        "        return NO_STARTS\n",
        masked="consumers there ask for what there is",
        tests=_LATER,
    ),
    Mutant(
        "front-goes-under-who-is-being-filled",
        "broker/wiring.py",
        "[filling, waiting]",
        "[waiting]",
        masked="it is filled again, at the cost of time",
        tests=_LATER,
    ),
    Mutant(
        "filling-holds-the-front-for-ever",
        "broker/filling.py",
        "            held.is_over = True\n",
        "",
        masked="an hour isn't simulated",
        tests=_FILLING,
    ),
    Mutant(
        "filled-by-few-entries-of-many-bytes",
        "broker/filling.py",
        "return self.entries <= NEAR_ENTRIES and are_few",
        "return self.entries <= NEAR_ENTRIES",
        masked="who begins anew loses nothing, and in a run it gets there in the end",
        tests=_FILLING,
    ),
    Mutant(
        "filling-holds-a-full-disk",
        "broker/filling.py",
        "        if self._is_short():\n            return None\n",
        "",
        masked="an hour isn't simulated",
        tests=_FILLING,
    ),
)
