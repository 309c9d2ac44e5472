"""Defects in how failures are counted (docs/adr/0063-attempts-that-the-log-counts.md)."""

from __future__ import annotations

from chaos.mutants.mutant import Mutant

_STATE = ("tests/broker/test_attempts.py",)
_CLIENT = ("tests/client/members/test_counted.py",)
_NODES = ("tests/integration/test_retries.py",)
_DELIVERING = ("tests/broker/test_delivering.py",)
_WORKERS = ("tests/integration/test_simple_consumer.py",)
_ASKED_FIRST = "a leader that is right proposes no such unit"
_KEEPER = ("tests/broker/test_keeper.py",)
_OWN_MEMBERS = "the simulator's members are its own"
_TOLD = "the log says who vanished: whether that is true no run knows"

ATTEMPTS = (
    Mutant(
        "who-vanishes-counts-nothing",
        "broker/state/consuming.py",
        "                if session in vanished:\n",
        "                if False:\n",
        seed=6,
        tests=_STATE,
    ),
    Mutant(
        "who-begins-anew-counts-nothing",
        "broker/state/consuming.py",
        "            self._vanished(before, at)\n",
        "",
        seed=6,
        tests=_STATE,
    ),
    Mutant(
        "blamed-where-no-message-is",
        "broker/state/consuming.py",
        "            if frontier < topic.next_offsets[place.queue_id]:\n",
        "            if True:\n",
        seed=6,
        tests=_STATE,
    ),
    Mutant(
        "counts-below-their-level",
        "broker/state/consuming.py",
        "        if at.level < TOPIC_RULES_LEVEL:\n",
        "        if False:\n",
        seed=6,
        tests=_STATE,
    ),
    Mutant(
        "counts-outlive-their-message",
        "broker/state/attempts.py",
        "        if found is not None and found.offset != frontier:\n",
        "        if False:\n",
        seed=6,
        tests=_STATE,
    ),
    Mutant(
        "all-counts-looked-at-for-a-deleted-topic",
        "broker/state/attempts.py",
        "        self._drop(tuple(self._topics.get(incarnation, ())))\n",
        "        self._drop([each for each in self._failed if each.incarnation == incarnation])\n",
        masked="it costs time and no truth",
        tests=_STATE,
    ),
    Mutant(
        "counted-as-often-as-it-is-said",
        "broker/state/attempts.py",
        "        if failed.failures != known + 1 or known >= MAX_FAILURES:\n",
        "        if known >= MAX_FAILURES:\n",
        masked=_ASKED_FIRST,
        tests=_STATE,
    ),
    Mutant(
        "counted-behind-what-is-unfinished",
        "broker/state/retrying.py",
        "((0, command.offset),) if command.offset else ()",
        "()",
        seed=6,
        tests=_STATE,
    ),
    Mutant(
        "goodbye-taken-for-death",
        "broker/leader/groups/ending.py",
        "[each for each in ending if each not in self._leaving]",
        "ending",
        masked=_TOLD,
        tests=_KEEPER,
    ),
    Mutant(
        "death-taken-for-goodbye",
        "broker/leader/groups/ending.py",
        "[each for each in ending if each not in self._leaving]",
        "[]",
        masked=_TOLD,
        tests=_KEEPER,
    ),
    Mutant(
        "each-holder-counts-from-one",
        "broker/services/attendance.py",
        "                failures = self._state.attempts.of(place, frontier)\n",
        "                failures = 0\n",
        seed=6,
        tests=_NODES,
    ),
    Mutant(
        "in-order-never-a-dead-letter",
        "broker/services/retries.py",
        "        is_over = bool(settings.max_attempts) and failures >= enough\n",
        "        is_over = False\n",
        seed=6,
        tests=_STATE,
    ),
    Mutant(
        "untried-without-a-reason",
        "broker/services/retries.py",
        "    if not was_tried and known < GIVEN_UP_AFTER:\n",
        "    if False:\n",
        masked="members say so only of what the log has counted",
        tests=_STATE,
    ),
    Mutant(
        "what-killed-its-holders-not-counted",
        "broker/services/retries.py",
        "        count = failures_before(wish.group, record) + here.failures\n",
        "        count = failures_before(wish.group, record) + 1\n",
        seed=6,
        tests=_NODES,
    ),
    Mutant(
        "begun-before-the-last-one-is-committed",
        "dledger/client/members/process_queue.py",
        "        if self.careful_until and not self._is_settled():\n",
        "        if False:\n",
        masked=_OWN_MEMBERS,
        tests=_CLIENT,
    ),
    Mutant(
        "careful-about-one-message-alone",
        "dledger/client/members/process_queue.py",
        "            self.careful_until = counted.offset + bounds.span\n",
        "            self.careful_until = counted.offset + 1\n",
        masked=_OWN_MEMBERS,
        tests=_CLIENT,
    ),
    Mutant(
        "given-up-for-one-who-vanished",
        "dledger/client/members/counted.py",
        "    enough = max(max_attempts or failures + 1, GIVEN_UP_IN_ORDER)\n",
        "    enough = max_attempts or failures + 1\n",
        masked=_OWN_MEMBERS,
        tests=_CLIENT,
    ),
    Mutant(
        "buried-in-somebodys-hand",
        "broker/state/delivering.py",
        "each.hidden_until_ms > at.append_time_ms:\n            return StillHidden(command.",
        "False:\n            return StillHidden(command.",
        masked=_ASKED_FIRST,
        tests=_DELIVERING,
    ),
    Mutant(
        "buried-before-its-attempts",
        "broker/state/delivering.py",
        "        if each.attempt < command.attempts:\n",
        "        if False:\n",
        masked=_ASKED_FIRST,
        tests=_DELIVERING,
    ),
    Mutant(
        "buried-without-a-copy",
        "broker/state/delivering.py",
        "    if why or not command.attempts or command.mask.bit_count() != copies or not copies:\n",
        "    if why or not command.attempts:\n",
        masked=_ASKED_FIRST,
        tests=_DELIVERING,
    ),
    Mutant(
        "buried-and-not-finished",
        "broker/state/units.py",
        "                effects.delivering.deliver("
        "next(plans), topic, bury.group, effects.moment())\n",
        "                next(plans)\n",
        tests=_WORKERS,
    ),
    Mutant(
        "dead-letters-beyond-a-segment",
        "broker/leader/deliveries/over.py",
        "min(MOST_BURIED, segment_bytes // BURIED_SHARE)",
        "MOST_BURIED",
        masked="few handouts of a run are so large and have had all of their attempts",
        tests=("tests/broker/test_copies.py",),
    ),
    Mutant(
        "handed-out-for-ever",
        "broker/leader/deliveries/choosing.py",
        "            if 0 < self.max_attempts <= handout.attempt:\n",
        "            if False:\n",
        masked="nobody is hurt by one attempt more",
        tests=_WORKERS,
    ),
    Mutant(
        "retries-leased-to-who-leaves-them",
        "broker/leader/groups/planning.py",
        "        if session.session in without_retries:\n",
        "        if False:\n",
        masked="the simulator's members work on what they are leased",
        tests=_KEEPER,
    ),
    Mutant(
        "no-room-left-for-a-copy",
        "broker/leader/append.py",
        "        self._rules.check_properties(batch, starts)\n",
        "",
        masked="no simulated producer sends that many",
        tests=("tests/broker/test_append.py",),
    ),
    Mutant(
        "what-left-no-room-has-no-copy",
        "broker/leader/retries/copies.py",
        "    for kept in (properties.keys(), {*OWN_PROPERTIES, KEYS, TAGS}):\n",
        "    for kept in ():\n",
        masked="no simulated producer sends that many",
        tests=("tests/broker/test_copies.py",),
    ),
    Mutant(
        "forgotten-with-what-waits",
        "broker/leader/groups/forgetting.py",
        "        return is_recent and retry_topic(group.name) in self._state.topics\n",
        "        return False\n",
        masked="nothing in a run waits as long as a group is kept",
        tests=("tests/broker/test_forgetting.py",),
    ),
)
