"""Defects in what is remembered of other members' disks, and held against them (ADR 30)."""

from __future__ import annotations

from chaos.mutants.mutant import Mutant

_HONEST = "no simulated node says another number of starts than its own"
_FIELDS = ("tests/links/test_hello_fields.py",)
_PROMISES = ("tests/links/test_promises.py",)
_DISKS = ("tests/links/test_disks.py",)
_FILE = "dledger/promises.py"
_MORE = "it is seldom all that a copy has forgotten: its log is shorter as well"

COPIES = (
    Mutant(
        "any-number-of-starts-held-against-a-disk",
        _FILE,
        "        return start.number <= self.start.number + MAX_STARTS_UNHEARD\n",
        "        return True\n",
        masked=_HONEST,
        tests=_FIELDS,
    ),
    Mutant(
        "more-starts-than-a-file-can-tell",
        _FILE,
        "            self.number <= MAX_STARTS\n            and ",
        "            ",
        masked=_HONEST,
        tests=_FIELDS,
    ),
    Mutant(
        "older-start-is-heard",
        _FILE,
        "        if start.number <= newest.number:\n",
        "        if start.number == newest.number:\n",
        masked=_MORE,
        tests=(*_PROMISES, *_DISKS),
    ),
    Mutant(
        "twin-is-heard",
        _FILE,
        "        if start.number <= newest.number:\n",
        "        if start.number < newest.number:\n",
        masked=_MORE,
        tests=_DISKS,
    ),
    Mutant(
        "forgotten-term-is-heard",
        _FILE,
        "        if start.term < self.term:\n",
        "        if start.term < 0:\n",
        masked=_MORE,
        tests=_PROMISES,
    ),
    Mutant(
        "forgotten-vote-is-heard",
        _FILE,
        "self.vote not in (NOBODY, start.vote):",
        "self.vote not in (NOBODY, start.vote, self.vote):",
        masked=_MORE,
        tests=_PROMISES,
    ),
    Mutant(
        "shorter-log-is-heard",
        _FILE,
        "        if start.last_index < kept:\n",
        "        if start.last_index < NO_INDEX:\n",
        seed=15,
    ),
    Mutant(
        "held-entries-are-forgiven",
        _FILE,
        "            kept = max(kept, self.held_index)\n",
        "            pass\n",
        masked="what is held is settled a moment later, and the log is shorter than that, too",
        tests=_PROMISES,
    ),
    Mutant(
        "settled-entries-are-forgiven",
        _FILE,
        "        kept = self.settled_index\n",
        "        kept = NO_INDEX\n",
        masked="what is held in the same term is as much, and an older term shows by itself",
        tests=_PROMISES,
    ),
    Mutant(
        "promises-forgotten-at-a-restart",
        "broker/wiring.py",
        "        member.transport.recall(member.memory.read())\n",
        "        member.memory.read()\n",
        seed=35,
    ),
    Mutant(
        "promises-not-written",
        "broker/noting.py",
        "        return self._memory.step(self._transport.promises())\n",
        "        return None\n",
    ),
    Mutant(
        "keep-alives-hold-nothing",
        "broker/wiring.py",
        "        member.transport.speak_for(lambda: member.driver.core.holding)\n",
        "",
    ),
    Mutant(
        "term-told-before-it-is-durable",
        "dledger/core/raft.py",
        "if state.has_failed or not state.persists.hard_state_is_durable:\n"
        "            return Holding()",
        "if state.has_failed:\n            return Holding()",
        masked="a keep-alive must fall into the moment of a write",
        tests=("tests/core/test_election.py",),
    ),
    Mutant(
        "campaigned-for-term-held-against-it",
        _FILE,
        "self._note_term(Term(term - 1))",
        "self._note_term(term)",
    ),
    Mutant(
        "echoed-term-held-against-it",
        _FILE,
        "                pass  # echoes the asker's term\n",
        "                self._note_term(term)\n",
        masked="who grants a pre-vote reaches that term with the vote that follows",
        tests=_PROMISES,
    ),
    Mutant(
        "held-entries-outlive-their-term",
        _FILE,
        "        if start.term == self.held_term:\n",
        "        if start.term >= self.held_term:\n",
        masked="it takes a restart between a later term and its truncation",
        tests=_PROMISES,
    ),
    Mutant(
        "unsynced-entries-held-against-it",
        _FILE,
        '        if not newest.is_synced:\n            return ""\n',
        "",
        masked="groups that flush later have no power cuts there",
        tests=_PROMISES,
    ),
    Mutant(
        "stranger-has-a-member-called-a-copy",
        "dledger/greeting.py",
        "            if answers:\n                self._older[peer] = speaker.disk\n",
        "            self._older[peer] = speaker.disk\n",
        masked="it costs an operator a look and no truth",
        tests=_PROMISES,
    ),
    Mutant(
        "unsynced-words-read-late-held-against-the-next-start",
        "dledger/greeting.py",
        "        if known.start.is_synced and not speaker.start.is_synced:\n            return\n",
        "",
        masked="no simulated node changes how it flushes",
        tests=_PROMISES,
    ),
    Mutant(
        "who-is-named-while-heard-is-not-remembered",
        "dledger/peers.py",
        "                known.named(peer.name, speaker)\n",
        "",
        masked="one in a thousand seeds of 20 s (189)",
        tests=_PROMISES,
    ),
)
