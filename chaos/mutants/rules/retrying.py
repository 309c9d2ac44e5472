"""Defects in what becomes of messages that failed (docs/adr/0058-retry-and-dead-letters.md)."""

from __future__ import annotations

from chaos.mutants.mutant import Mutant

_STATE = ("tests/broker/test_retrying.py",)
_NODES = ("tests/integration/test_retries.py",)
_ASKED_FIRST = "a leader that is right proposes no such unit"
_RARE = "no simulated dead letter is sent again, no such topic deleted, no level as low"

RETRYING = (
    Mutant(
        "sent-back-again-copied-again",
        "broker/state/retrying.py",
        "    if is_finished(frontier, finished, command.offset):\n",
        "    if False:\n",
        masked=_ASKED_FIRST,
        tests=_STATE,
    ),
    Mutant(
        "finished-without-a-copy",
        "broker/state/retrying.py",
        "    if [each.record_count for each in copies] != [1] or copies[0].topic",
        "    if copies and copies[0].topic",
        masked=_ASKED_FIRST,
        tests=_STATE,
    ),
    Mutant(
        "copied-and-not-finished",
        "broker/state/retrying.py",
        "    owners.leases.progress(place, finished)\n",
        "",
        seed=12,
        tests=_STATE,
    ),
    Mutant(
        "sent-back-by-an-older-epoch",
        "broker/state/retrying.py",
        "    if lost is not None:\n",
        "    if False:\n",
        masked=_ASKED_FIRST,
        tests=_STATE,
    ),
    Mutant(
        "units-of-an-entry-share-no-bound-of-ranges",
        "broker/state/retrying.py",
        "    before.ranges[place] += 1\n",
        "",
        masked=_ASKED_FIRST,
        tests=_STATE,
    ),
    Mutant(
        "fired-before-it-is-due",
        "broker/state/retries.py",
        "        if fired.due_ms > append_time_ms:\n",
        "        if False:\n",
        masked=_ASKED_FIRST,
        tests=_STATE,
    ),
    Mutant(
        "fired-from-anywhere",
        "broker/state/retries.py",
        "        if fired.first != moved_to or fired.end <= fired.first:\n",
        "        if fired.end <= fired.first:\n",
        masked=_ASKED_FIRST,
        tests=_STATE,
    ),
    Mutant(
        "fired-and-the-level-stays",
        "broker/state/retries.py",
        "        self._levels[fired.queue] = fired.end\n",
        "        pass\n",
        seed=12,
        tests=_STATE,
    ),
    Mutant(
        "more-copies-than-were-due",
        "broker/state/retrying.py",
        "    if moved > command.end - command.first or any(\n",
        "    if any(\n",
        masked=_ASKED_FIRST,
        tests=_STATE,
    ),
    Mutant(
        "dead-letter-sent-again-twice",
        "broker/state/retries.py",
        "        if self.was_resent(queue, offset):\n",
        "        if False:\n",
        masked=_RARE,
        tests=_STATE,
    ),
    Mutant(
        "retries-left-out-of-snapshots",
        "broker/state/replicated.py",
        "            *self.retries.snapshot(),\n",
        "",
        seed=12,
        tests=_STATE,
    ),
    Mutant(
        "level-outlives-its-topic",
        "broker/state/effects.py",
        "        state.retries.on_topic_deleted(topic.incarnation)\n",
        "",
        masked=_RARE,
        tests=_STATE,
    ),
    Mutant(
        "attempts-below-their-level",
        "broker/state/consuming.py",
        "        settings = replace(settings, max_attempts=0)\n",
        "        pass\n",
        masked=_RARE,
        tests=_STATE,
    ),
    Mutant(
        "failures-not-counted-on",
        "broker/leader/retries/copies.py",
        "    return record.reconsume_times if is_copy else 0\n",
        "    return 0\n",
        seed=12,
        tests=_NODES,
    ),
    Mutant(
        "never-a-dead-letter",
        "broker/services/retries.py",
        "here.is_over or count >= group.settings.attempts",
        "False",
        seed=12,
        tests=_NODES,
    ),
    Mutant(
        "the-brokers-topics-taken-from-users",
        "broker/leader/append.py",
        "        if is_reserved(batch.topic):\n",
        "        if False:\n",
        masked=_RARE,
        tests=_NODES,
    ),
    Mutant(
        "what-waits-does-not-hold-the-front",
        "broker/wiring.py",
        "[filling, waiting]",
        "[filling]",
        seed=35,
        tests=_NODES,
    ),
    Mutant(
        "what-is-gone-is-tried-for-ever",
        "dledger/client/members/sending_back.py",
        "isinstance(failure, OffsetOutOfRange) and self._is_last(returned)",
        "False",
        masked="the simulator's members are its own",
        tests=_NODES,
    ),
)
