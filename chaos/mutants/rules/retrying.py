"""Defects in what becomes of messages that failed (docs/adr/0058-retry-and-dead-letters.md)."""

from __future__ import annotations

from chaos.mutants.mutant import Mutant

_STATE = ("tests/broker/test_retrying.py",)
_NODES = ("tests/integration/test_retries.py",)
_ASKED_FIRST = "a leader that is right proposes no such unit"
_RARE = "no simulated dead letter is sent again, no such topic deleted, no level as low"
_COPIES = ("tests/broker/test_copies.py",)
_UNREAD = ("tests/broker/test_unread.py",)
_SAME_SIZES = "no simulated operator lowers max_message_bytes"
_KEPT = "no simulated operator deletes the brokers' own topics"
_STYLES = ("tests/broker/test_styles.py",)
_PUMP = ("tests/broker/test_delay_pump.py",)

_DENIALS = ("tests/broker/test_denials.py",)

RETRYING = (
    Mutant(
        "sent-back-denied-by-a-leader-of-before",
        "broker/services/retries.py",
        "await self._gate.denying_surely(self._ended(wish, begun), begun.leadership)",
        "await self._ended(wish, begun)",
        masked=_RARE,
        tests=_DENIALS,
    ),
    Mutant(
        "resent-denied-by-a-leader-of-before",
        "broker/services/retries.py",
        "await self._gate.denying_surely(self._resend(ref, queue_id, offset))",
        "await self._resend(ref, queue_id, offset)",
        masked=_RARE,
        tests=_DENIALS,
    ),
    Mutant(
        "absence-of-another-leadership-told",
        "broker/services/gate.py",
        "        if self.leadership != leadership:  # it was found by what was known then\n",
        "        if False:\n",
        masked="seldom is leadership lost and won again within a call that denies",
        tests=_DENIALS,
    ),
    Mutant(
        "given-up-for-a-queue-that-seems-to-end",
        "dledger/client/members/sending_back.py",
        "    return returned.work.message.queue_offset < failure.valid[0]\n",
        "    return True\n",
        masked="the simulator's members judge by themselves",
        tests=("tests/client/members/test_spells.py",),
    ),
    Mutant(
        "copy-checks-the-host-that-nobody-checked",
        "broker/leader/retries/copies.py",
        "    encoded = RecordTemplate(topic, _NOWHERE).encode(\n",
        "    encoded = RecordTemplate(topic, record.born_host).encode(\n",
        masked="no simulated producer makes its host up",
        tests=_COPIES,
    ),
    Mutant(
        "copy-forgets-where-it-was-born",
        "broker/leader/retries/copies.py",
        "    _HOST.pack_into(copy, _BORN_HOST_AT, IPv4Address(address).packed, port)\n",
        "",
        masked="no simulated reader looks at the host",
        tests=_COPIES,
    ),
    Mutant(
        "progress-leaves-out-what-failed",
        "broker/leader/groups/unread.py",
        "    if retry_topic(group.name) in state.topics:\n",
        "    if False:\n",
        masked="it is shown, and nothing is decided by it",
        tests=_UNREAD,
    ),
    Mutant(
        "forgotten-group-leaves-what-failed-untold",
        "broker/leader/groups/unread.py",
        "    if topic.name != retry_topic(group):\n",
        "    if topic:\n",
        masked="it is told, and nothing is decided by it",
        tests=_UNREAD,
    ),
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
        "all-dead-letters-looked-at-for-a-deleted-topic",
        "broker/state/retries.py",
        "        for queue in self._topics.pop(incarnation, ()):\n",
        "        self._topics.pop(incarnation, ())\n"
        "        for queue in [each for each in self._resent if each[0] == incarnation]:\n",
        masked="it costs time and no truth",
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
        "each-resend-looks-at-all-before",
        "broker/state/retries.py",
        "    return bisect_left(ranges, (offset + 1,))\n",
        "    return sum(first <= offset for first, _ in ranges)\n",
        masked="it costs time, and no truth",
        tests=_STATE,
    ),
    Mutant(
        "sent-again-and-not-joined-to-the-next",
        "broker/state/retries.py",
        "    if after < len(ranges) and ranges[after][0] == end:\n",
        "    if False:\n",
        masked=_RARE,
        tests=_STATE,
    ),
    Mutant(
        "topic-deleted-to-which-messages-come",
        "broker/services/topics.py",
        "        if name == retry_topic(group) and await self._styles.waits(name):\n",
        "        if False:\n",
        masked=_KEPT,
        tests=_STYLES,
    ),
    Mutant(
        "topic-deleted-of-a-group-that-is-there",
        "broker/services/topics.py",
        "        if self._state.groups.get(group) is not None:\n",
        "        if False:\n",
        masked=_KEPT,
        tests=_STYLES,
    ),
    Mutant(
        "group-looked-for-before-what-waits",
        "broker/services/topics.py",
        "        if name == retry_topic(group) and await self._styles.waits(name):\n"
        '            why = "messages wait to come to it"\n'
        "        if self._state.groups.get(group) is not None:\n"
        '            why = f"consumer group {group!r} is known"\n',
        "        if self._state.groups.get(group) is not None:\n"
        '            why = f"consumer group {group!r} is known"\n'
        "        if name == retry_topic(group) and await self._styles.waits(name):\n"
        '            why = "messages wait to come to it"\n',
        masked=_KEPT,
        tests=_STYLES,
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
        "_has_gone(returned, failure) and self._is_last(returned)",
        "False",
        masked="the simulator's members are its own",
        tests=_NODES,
    ),
    Mutant(
        "group-that-comes-back-passes-over-its-retries",
        "broker/leader/groups/starting.py",
        " or is_reserved(topic.name)\n",
        "\n",
        masked="no simulated group is unused for so long that it is forgotten",
        tests=("tests/broker/test_starting.py",),
    ),
    Mutant(
        "more-groups-than-a-unit-has-parts",
        "broker/leader/retries/pump.py",
        "            if is_other and len(by_topic) == MAX_PARTS:\n",
        "            if False:\n",
        masked="no simulated broker group has so many consumer groups that fail",
        tests=_PUMP,
    ),
    Mutant(
        "copies-judged-by-what-clients-may-send",
        "broker/leader/batches.py",
        "        return _COPIED if batch.is_copy else self._sent\n",
        "        return self._sent\n",
        masked=_SAME_SIZES,
        tests=_PUMP,
    ),
    Mutant(
        "units-of-copies-judged-by-what-clients-may-send",
        "broker/leader/batches.py",
        "max(self._sent.batch, min(_COPIED.batch, fits))",
        "self._sent.batch",
        masked=_SAME_SIZES,
        tests=_PUMP,
    ),
    Mutant(
        "clients-may-send-what-is-as-large-as-copies",
        "broker/leader/batches.py",
        "        return _COPIED if batch.is_copy else self._sent\n",
        "        return _COPIED\n",
        masked="no simulated client sends more than it may",
        tests=_PUMP,
    ),
    Mutant(
        "level-that-cannot-go-on-untold",
        "broker/leader/retries/pump.py",
        "        head.rests_until, head.is_held = self._looks + REST_LOOKS, True\n",
        "        head.rests_until = self._looks + REST_LOOKS\n",
        masked="it is shown, and nothing is decided by it",
        tests=_PUMP,
    ),
)
