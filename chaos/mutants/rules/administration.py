"""Defects in what is done to consumer groups from outside
(docs/adr/0061-administration-of-consumer-groups.md)."""

from __future__ import annotations

from chaos.mutants.mutant import Mutant

_STATE = ("tests/broker/test_moving.py",)
_SERVICE = ("tests/broker/test_consumers.py",)
_MOVING = "broker/state/moving.py"
_CONSUMERS = "broker/services/consumers.py"
_CLIENT = ("tests/client/test_consumer_groups.py",)
_NO_LIBRARY = "simulated overseers don't use the library"
_LEADER_ASKS = "a leader looks before it proposes"
_TOLD_LATE = "whoever isn't told is refused by its epoch"

ADMINISTRATION = (
    Mutant(
        "who-serves-is-who-was-elected",
        "dledger_cli/transfer.py",
        "    return Transferred(elected, status.leader, status.serves)\n",
        "    return Transferred(elected, elected, status.serves)\n",
        masked="nobody types commands while a group is simulated",
        tests=("tests/cli/test_transfer.py",),
    ),
    Mutant(
        "reset-again-in-a-later-topic-of-the-name",
        "dledger/client/groups.py",
        "        request.incarnation = answer.topic.incarnation\n",
        "        del answer\n",
        masked=_NO_LIBRARY,
        tests=_CLIENT,
    ),
    Mutant(
        "reset-again-tells-what-its-first-attempt-set",
        "dledger/client/groups.py",
        "each._replace(before=known.get(each.queue_id)) for each in moved",
        "each._replace(before=each.before) for each in moved",
        masked=_NO_LIBRARY,
        tests=_CLIENT,
    ),
    Mutant(
        "reset-again-refused-and-said-not-to-have-happened",
        "dledger/client/groups.py",
        "            error.outcome = Outcome.MAY_HAVE_HAPPENED\n            raise\n",
        "            raise\n",
        masked=_NO_LIBRARY,
        tests=_CLIENT,
    ),
    Mutant(
        "moves-are-told-as-they-were-asked",
        _MOVING,
        "        self._moved(tuple(moves))\n",
        "        asked = (each._replace(offset=wanted[each.queue_id]) for each in moves)\n"
        "        self._moved(tuple(asked))\n",
        masked="simulated overseers don't look at what they are told",
        tests=_SERVICE,
    ),
    Mutant(
        "move-leaves-the-lease",
        _MOVING,
        "            self._leases.move(place, finished)\n",
        "            if self._leases.started(*place[:2]):\n"
        "                self._leases.progress(place, finished)\n",
        seed=4,
        tests=_STATE,
    ),
    Mutant(
        "move-keeps-what-was-finished",
        _MOVING,
        "            frontier, finished = offset, NOTHING\n",
        "            frontier, finished = united(offset, self._leases.of(place).finished, ())\n",
        seed=33,
        tests=_STATE,
    ),
    Mutant(
        "move-never-goes-back",
        _MOVING,
        "topic.name, frontiers, is_reset=True)\n",
        "topic.name, frontiers, is_reset=False)\n",
        seed=4,
        tests=_STATE,
    ),
    Mutant(
        "skip-goes-back",
        _MOVING,
        "            if command.forward:\n",
        "            if False:\n",
        seed=40,
        tests=_STATE,
    ),
    Mutant(
        "move-not-told-to-the-keeper",
        _MOVING,
        "        self._changed(command.group)\n",
        "",
        masked="simulated members come back, which has their group looked at",
        tests=_STATE,
    ),
    Mutant(
        "moved-group-not-used",
        _MOVING,
        "        self._groups.use(command.group, at.lived_ms)\n",
        "",
        masked="simulated groups live for less than it takes to be forgotten",
        tests=_STATE,
    ),
    Mutant(
        "move-makes-groups",
        _MOVING,
        "        if group is None:\n            return GroupUnknown(command.group)\n",
        "        if group is None:\n"
        "            self._groups.use(command.group, at.lived_ms)\n"
        "            return self.move(command, at)\n",
        masked=_LEADER_ASKS,
        tests=_STATE,
    ),
    Mutant(
        "broadcasters-moved",
        _MOVING,
        "        if group.created and group.settings.is_broadcast:\n",
        "        if False:\n",
        masked="no simulated group broadcasts",
        tests=_STATE,
    ),
    Mutant(
        "clone-lags-behind-what-never-comes",
        "broker/leader/groups/unread.py",
        "            if not topic.startswith(RETRY_PREFIX) or topic == retry_topic(name):\n",
        "            if topic:\n",
        masked="it is shown, and nothing is decided by it",
        tests=("tests/broker/test_unread.py",),
    ),
    Mutant(
        "clone-over-a-group",
        _MOVING,
        "        if self._groups.get(command.target) is not None:\n",
        "        if False:\n",
        masked="who works on clones is nobody",
        tests=_STATE,
    ),
    Mutant(
        "clones-unbounded",
        "broker/state/offsets.py",
        "        if self._progress_count + len(found) > self.max_progress:\n",
        "        if False:\n",
        masked="no simulated group comes near the bound",
        tests=_STATE,
    ),
    Mutant(
        "former-holder-not-told",
        _CONSUMERS,
        "            self._keeper.tell_all(group)\n",
        "            pass\n",
        masked=_TOLD_LATE,
        tests=_SERVICE,
    ),
    Mutant(
        "moved-before-the-level-is-in-use",
        _CONSUMERS,
        "        if level < DELIVERY_LEVEL:\n",
        "        if False:\n",
        masked="such a command is void",
        tests=_SERVICE,
    ),
    Mutant(
        "page-of-a-deleted-topic",
        _CONSUMERS,
        "            if self._state.topics.get(topic.name) is topic:  # not deleted meanwhile\n",
        "            if True:\n",
        masked="simulated crews' topic stays",
        tests=_SERVICE,
    ),
    Mutant(
        "environment-goes-before-the-directory-that-is-named",
        "dledger_cli/group_options.py",
        '    if bootstrap is None or not _is_given(context, "directory"):\n',
        "    if True:\n",
        masked="the simulator has no command line",
        tests=(
            "tests/cli/test_commands.py::test_a_directory_that_is_named_goes_before_the_environment",
        ),
    ),
)
