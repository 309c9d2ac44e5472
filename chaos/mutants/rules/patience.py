"""Defects in what `dledger/core` is patient about: votes that are long in being saved, appends that
may be lost, all while disks are slow or reads come fast."""

from __future__ import annotations

from chaos.mutants.mutant import Mutant

_READS = ("tests/core/test_rounds_of_reads.py",)
_SLOW_SAVES = ("tests/core/test_slow_saves.py",)

PATIENCE = (
    Mutant(
        "campaigns-while-its-vote-is-saved",
        "dledger/core/election.py",
        "    if not state.persists.hard_state_is_durable:\n"
        "        if state.role is Role.CANDIDATE:",
        "    if False:\n        if state.role is Role.CANDIDATE:",
        masked="nobody is ever elected on slow disks alone",
        tests=_SLOW_SAVES,
    ),
    Mutant(
        "voters-get-no-time-to-save",
        "dledger/core/election.py",
        "            _grant_a_tick(state)\n",
        "            pass\n",
        masked="it costs rounds of elections on slow disks",
        tests=_SLOW_SAVES,
    ),
    Mutant(
        "voters-get-time-without-end",
        "dledger/core/election.py",
        "max(-most, state.election_elapsed_ticks - 1)",
        "state.election_elapsed_ticks - 1",
        masked="only a save of many seconds shows it",
        tests=_SLOW_SAVES,
    ),
    Mutant(
        "promises-a-vote-while-another-is-saved",
        "dledger/core/election.py",
        "    if not state.persists.hard_state_is_durable:\n        return  # it is asked again\n",
        "",
        masked="it costs rounds of elections on slow disks",
        tests=_SLOW_SAVES,
    ),
    Mutant(
        "late-votes-do-not-count",
        "dledger/core/election.py",
        "    if state.node in state.votes:\n        state.votes[message.sender]",
        "    if state.role is Role.CANDIDATE:\n        state.votes[message.sender]",
        masked="it costs rounds of elections on slow disks",
        tests=_SLOW_SAVES,
    ),
    Mutant(
        "votes-count-after-following",
        "dledger/core/election.py",
        "    if state.node in state.votes:\n        state.votes[message.sender]",
        "    if state.role in (Role.CANDIDATE, Role.PRE_CANDIDATE):\n"
        "        state.votes[message.sender]",
        masked="votes that come so late are rare",
        tests=_SLOW_SAVES,
    ),
    Mutant(
        "late-refusal-ends-the-next-round",
        "dledger/core/election.py",
        "            if state.role is Role.CANDIDATE:  # else it asks for the next one already\n",
        "            if True:\n",
        masked="it costs a round of an election",
        tests=_SLOW_SAVES,
    ),
    Mutant(
        "timeouts-stay-what-they-were",
        "dledger/core/state.py",
        "MOST_DOUBLINGS = 3",
        "MOST_DOUBLINGS = 0",
        masked="only disks of different slowness show it",
        tests=_SLOW_SAVES,
    ),
    Mutant(
        "reads-wear-out-patience",
        "dledger/core/progress.py",
        "return is_proof and self.tick - sent.tick >= beats * heartbeat_ticks",
        "return is_proof",
        masked="it costs messages that are sent twice",
        tests=_READS,
    ),
    Mutant(
        "lost-probes-are-followed-at-once",
        "dledger/core/progress.py",
        "        if answered.tick - self.probe_sent.tick < self.probe_wait_ticks:\n"
        "            return False\n",
        "",
        masked="it costs messages that nobody takes",
        tests=_READS,
    ),
    Mutant(
        "probes-stay-seldom",
        "dledger/core/progress.py",
        "        if peer_last_index != self.seen_last_index:\n",
        "        if False:\n",
        masked="it costs a second",
        tests=_READS,
    ),
    Mutant(
        "probes-stay-seldom-that-are-refused",
        "dledger/core/progress.py",
        "        self.next_index = next_index\n"
        "        self.probe_paused = False\n"
        "        self.probe_wait_ticks = 0\n\n"
        "    def on_probe_lost",
        "        self.next_index = next_index\n"
        "        self.probe_paused = False\n\n"
        "    def on_probe_lost",
        masked="it costs a second",
        tests=_READS,
    ),
    Mutant(
        "base-offered-with-every-answer",
        "dledger/core/progress.py",
        "        if now_tick < self.offer_due_tick:\n",
        "        if False:\n",
        masked="it costs messages",
        tests=_READS,
    ),
    Mutant(
        "word-of-this-moment-is-trusted",
        "dledger/core/sick_disk.py",
        "        and fresh_after is not None\n        and progress.acked_round > fresh_after\n",
        "        and progress.acked_round > (fresh_after or 0)\n",
        masked="disks must fill at the same moment, under reads",
        tests=_READS,
    ),
    Mutant(
        "word-of-rounds-long-begun-is-fresh",
        "dledger/core/sick_disk.py",
        "        and progress.acked_round > fresh_after\n",
        "        and progress.acked_round >= fresh_after - 1\n",
        masked="disks must fill at the same moment, under reads",
        tests=("tests/core/test_sick_disk.py",),
    ),
)
