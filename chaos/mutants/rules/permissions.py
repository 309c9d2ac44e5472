"""Defects in what may be done with topics, and in making them whole
(docs/adr/0062-permissions-of-topics.md)."""

from __future__ import annotations

from chaos.mutants.mutant import Mutant

_TESTS = ("tests/broker/test_topic_permissions.py",)
_STATE = "broker/state/topic_permissions.py"
_RULES = "broker/state/topic_rules.py"
_READERS = "who reads too much has harmed no state"
_LEADER_ASKS = "a leader looks before it proposes"
_NOT_MADE = "no simulated topic is made with wishes"

PERMISSIONS = (
    Mutant(
        "batch-stored-behind-the-permission",
        "broker/state/machine.py",
        "        refusal = refusal or self.topic_permissions.refusal_of(topic)\n",
        "",
        masked=_LEADER_ASKS,
        tests=_TESTS,
    ),
    Mutant(
        "unit-stored-behind-the-permission",
        "broker/state/compound.py",
        "refusal = refusal or self.owners.topic_permissions.refusal_of(found.topic)\n",
        "pass\n",
        masked=_LEADER_ASKS,
        tests=_TESTS,
    ),
    Mutant(
        "permission-on-its-way-unheard",
        "broker/leader/closing.py",
        "    if flight.is_closing(topic.name):\n",
        "    if False:\n",
        seed=10,
        tests=_TESTS,
    ),
    Mutant(
        "permission-of-a-leader-unasked",
        "broker/leader/closing.py",
        "    if not machine.topic_permissions.is_writable(topic.incarnation):\n",
        "    if False:\n",
        seed=10,
        tests=_TESTS,
    ),
    Mutant(
        "permission-for-ever-on-its-way",
        "broker/leader/flight.py",
        "        self._closing.pop(index, None)\n",
        "",
        seed=10,
        tests=_TESTS,
    ),
    Mutant(
        "topic-read-without-permission",
        "broker/services/messages.py",
        "        self._reader.check_readable(request.topic)\n",
        "",
        masked=_READERS,
        tests=_TESTS,
    ),
    Mutant(
        "permission-outlives-its-topic",
        "broker/state/effects.py",
        "        state.topic_permissions.on_topic_deleted(topic.incarnation)\n",
        "",
        seed=10,
        tests=_TESTS,
    ),
    Mutant(
        "permission-of-the-topic-before",
        _RULES,
        "    topic = meant(TopicRef(command.name, command.incarnation))\n",
        "    topic = meant(TopicRef(command.name))\n",
        masked="a service names the topic that it found",
        tests=_TESTS,
    ),
    Mutant(
        "the-brokers-own-topic-closed",
        _RULES,
        "    if is_reserved(topic.name):\n",
        "    if False:\n",
        masked="a service refuses it before",
        tests=_TESTS,
    ),
    Mutant(
        "permissions-before-their-level",
        "broker/state/level.py",
        '    "permit_topic": TOPIC_RULES_LEVEL,\n',
        '    "permit_topic": 1,\n',
        masked="a service looks at the level before",
        tests=_TESTS,
    ),
    Mutant(
        "who-waits-to-read-not-told",
        "broker/announcing.py",
        "        self._held.wake_topic(topic.incarnation)\n\n    def group_changed",
        "        pass\n\n    def group_changed",
        masked="it is told at the end of its hold",
        tests=_TESTS,
    ),
    Mutant(
        "topic-made-before-its-wishes-are-judged",
        _RULES,
        "    if command.permission not in KNOWN:\n        return PermissionUnknown",
        "    if False:\n        return PermissionUnknown",
        masked=_NOT_MADE,
        tests=_TESTS,
    ),
    Mutant(
        "topic-made-without-its-permission",
        _RULES,
        "        owners.topic_permissions.permit(index, command.permission)\n",
        "        pass\n",
        masked=_NOT_MADE,
        tests=_TESTS,
    ),
    Mutant(
        "permissions-not-in-the-snapshot",
        _STATE,
        "        if not self._topics:\n            return ()\n        held",
        "        if self._topics:\n            return ()\n        held",
        seed=10,
        tests=_TESTS,
    ),
    Mutant(
        "members-not-told-that-they-may-not-read",
        "broker/services/queue_pulls.py",
        "            if self._has_more(request.group, wish):\n"
        "                self._reader.check_readable(wish.topic)\n",
        "            self._has_more(request.group, wish)\n",
        masked="whoever isn't told waits, and has lost nothing",
        tests=("tests/broker/test_held_back.py",),
    ),
)
