"""What a leader lets be, and in how much time: tables that grow, turns, patience."""

from __future__ import annotations

from typing import Final

from chaos.mutants.mutant import Mutant

_ROOM: Final = "broker/leader/offsets_room.py"
_UNITS_ROOM: Final = "broker/leader/units_room.py"
_UNITS: Final = ("tests/broker/test_units.py",)
_FAILURES: Final = ("tests/broker/test_many_failures.py",)
_FORGETTING_FILE: Final = "broker/leader/groups/forgetting.py"
_FORGETTING: Final = ("tests/broker/test_forgetting.py",)
_WISHES: Final = ("tests/broker/test_topic_retention.py",)
_KEEPER: Final = "broker/leader/groups/keeper.py"
_KEPT: Final = ("tests/broker/test_keeper.py",)
_OFFSETS: Final = ("tests/broker/test_offsets_room.py",)
_COUNTED: Final = "state.offsets.queue_count + coming + wanted <= MAX_QUEUE_OFFSETS\n"
_NEVER_NEAR: Final = "no simulated group comes near the bound"

BOUNDS = (
    Mutant(
        "offsets-of-all-queues-unbounded",
        _ROOM,
        _COUNTED,
        "True\n",
        masked=_NEVER_NEAR,
        tests=_OFFSETS,
    ),
    Mutant(
        "offsets-on-their-way-uncounted",
        _ROOM,
        _COUNTED,
        "state.offsets.queue_count + wanted <= MAX_QUEUE_OFFSETS\n",
        masked=_NEVER_NEAR,
        tests=_OFFSETS,
    ),
    Mutant(
        "offsets-counted-that-a-group-has",
        _ROOM,
        "    return sum(queue_id not in known for queue_id in queues)\n",
        "    return len(list(queues)) + 0 * len(known)\n",
        masked=_NEVER_NEAR,
        tests=_OFFSETS,
    ),
    Mutant(
        "no-room-for-a-topic-holds-up-the-others",
        "broker/leader/groups/assigning.py",
        "        if error.code is not ErrorCode.LIMIT_REACHED:\n            raise error\n",
        "        raise error\n",
        masked=_NEVER_NEAR,
        tests=_OFFSETS,
    ),
    Mutant(
        "queues-are-judged-that-have-no-room",
        "broker/leader/groups/assigning.py",
        "                self._no_room(group, error)\n                end = started\n",
        "                end = inf if started or error else 0\n",
        masked=_NEVER_NEAR,
        tests=_OFFSETS,
    ),
    Mutant(
        "topics-of-one-command-begin-each-by-itself",
        "broker/leader/groups/assigning.py",
        "                self._commands.check_begun(begun + new)\n",
        "                self._commands.check_begun(new)\n",
        masked=_NEVER_NEAR,
        tests=_OFFSETS,
    ),
    Mutant(
        "queues-without-room-hold-up-those-behind-them",
        "broker/leader/groups/assigning.py",
        "        while part.grants and not part.granting:\n            some: list[Grant] = []\n",
        "        for some in [list[Grant]()] * (not part.granting):\n",
        masked=_NEVER_NEAR,
        tests=_OFFSETS,
    ),
    Mutant(
        "no-room-for-new-queues-holds-up-a-desk",
        "broker/leader/deliveries/beginning.py",
        "if error.code is not ErrorCode.LIMIT_REACHED:\n                    raise\n",
        "raise\n",
        masked=_NEVER_NEAR,
        tests=_OFFSETS,
    ),
    Mutant(
        "no-room-for-starts-refuses-acknowledgements",
        "broker/leader/deliveries/desk.py",
        "                if self._beginning.leave_out(choice, error):\n",
        "                if False:\n",
        masked=_NEVER_NEAR,
        tests=_OFFSETS,
    ),
    Mutant(
        "starts-left-out-in-silence",
        "broker/leader/deliveries/beginning.py",
        "                self._tell(topic.name, lacking, error)\n",
        "",
        masked="a word to operators decides nothing",
        tests=_OFFSETS,
    ),
    Mutant(
        "offsets-of-a-deleted-topic-still-counted",
        "broker/state/offsets.py",
        "            self._queue_count -= len(offsets)\n",
        "",
        tests=("tests/broker/test_owners.py",),
        masked="no simulated group comes near the bound, and all count alike",
    ),
    Mutant(
        "state-that-is-too-large-pulled",
        "broker/pulling.py",
        "            if size > MAX_BYTES:  # of",
        "            if False:  # of",
        masked="no simulated state is so large",
        tests=("tests/broker/test_installing.py",),
    ),
    Mutant(
        "copies-keep-small-units-from-waiting",
        _UNITS_ROOM,
        "        if kept is None or kept.is_used_up:\n",
        "        if True:\n",
        masked="no simulated call sends back so much at once",
        tests=_UNITS,
    ),
    Mutant(
        "burial-keeps-desks-from-waiting",
        _UNITS_ROOM,
        "        return Kind.SINGLE_MESSAGES if has_messages else Kind.SINGLE\n",
        "        return Kind.SINGLE\n",
        masked=_NEVER_NEAR,
        tests=_UNITS,
    ),
    Mutant(
        "kept-part-of-waiting-units-unbounded",
        _UNITS_ROOM,
        "        if kept is None or kept.is_used_up:\n",
        "        if kept is None:\n",
        masked=_NEVER_NEAR,
        tests=_UNITS,
    ),
    Mutant(
        "failures-sent-back-in-one-turn",
        "broker/services/retries.py",
        "            if is_enough():\n                await self._turns.pause()\n"
        "                is_enough = self._turns.share()\n            begun",
        "            begun",
        masked="it costs time and no truth",
        tests=_FAILURES,
    ),
    Mutant(
        "failures-read-that-are-not-taken",
        "broker/services/retries.py",
        "        self._units.check_readable()\n",
        "",
        masked="it costs time and no truth",
        tests=_FAILURES,
    ),
    Mutant(
        "failures-counted-where-a-copy-would-have-room",
        "broker/services/retries.py",
        "        if here.stays:\n",
        "        self._units._room.check_readable()\n        if here.stays:\n",
        masked="no simulated call sends back so much at once",
        tests=_FAILURES,
    ),
    Mutant(
        "sixteen-groups-a-minute-forgotten",
        _FORGETTING_FILE,
        "        self._is_soon = len(names) >= FORGOTTEN_AT_ONCE\n",
        "        self._is_soon = False\n",
        masked=_NEVER_NEAR,
        tests=_FORGETTING,
    ),
    Mutant(
        "no-room-makes-nobody-look",
        _KEEPER,
        "            self._short_before = times\n            self.make_room()\n",
        "            self._short_before = times\n",
        masked=_NEVER_NEAR,
        tests=_FORGETTING,
    ),
    Mutant(
        "refused-by-the-state-makes-nobody-look",
        _ROOM,
        "        self.times_short += is_short\n",
        "",
        masked=_NEVER_NEAR,
        tests=_FORGETTING,
    ),
    Mutant(
        "no-time-lived-in-a-full-and-silent-group",
        _FORGETTING_FILE,
        "        if not names and not moves_time:\n",
        "        if not names:\n",
        masked=_NEVER_NEAR,
        tests=_FORGETTING,
    ),
    Mutant(
        "groups-at-work-take-the-turn-of-unused-ones",
        _FORGETTING_FILE,
        "        return self._state.deliveries.is_hiding(group.name, self._state.append_time_ms)\n",
        "        return False\n",
        masked="the state keeps them whoever is named",
        tests=_FORGETTING,
    ),
    Mutant(
        "groups-told-to-be-forgotten-that-are-there",
        _FORGETTING_FILE,
        "        gone = [name for name in names if self._state.groups.get(name) is None]\n",
        "        gone = list(names)\n",
        masked="no simulated group is unused for so long that it is forgotten",
        tests=_FORGETTING,
    ),
    Mutant(
        "half-a-minute-for-all-of-a-state",
        "broker/pulling.py",
        "                taken, until_s = self.taken_bytes, loop.time() + seconds\n",
        "                taken = self.taken_bytes\n",
        masked="simulated states are small, and nobody is far away",
        tests=("tests/broker/test_installing.py",),
    ),
    Mutant(
        "as-many-queues-a-look-however-many-there-are",
        "broker/leader/topic_retention.py",
        "        return max(QUEUES_A_LOOK, math.ceil(",
        "        return min(QUEUES_A_LOOK, math.ceil(",
        masked="few topics of simulated groups wish anything, and they have few queues",
        tests=_WISHES,
    ),
    Mutant(
        "looks-at-topics-wishes-that-take-no-time",
        "broker/leader/topic_retention.py",
        "int(lap_s / (2 * self._look_s))",
        "int(lap_s / self._look_s)",
        masked="few topics of simulated groups wish anything, and they have few queues",
        tests=_WISHES,
    ),
    Mutant(
        "look-at-topics-wishes-without-end",
        "broker/leader/topic_retention.py",
        "                if loop.time() >= until_s:\n",
        "                if False:\n",
        masked="no simulated disk is so slow to read",
        tests=_WISHES,
    ),
    Mutant(
        "strays-hide-what-else-is-ignored",
        "store/starting/judgement.py",
        "        if self._count[effect, kind] < MAX_FINDINGS:\n",
        "        if len(kept) < MAX_FINDINGS:\n",
        masked="nothing judges while a group runs",
        tests=("tests/starting/test_judgement.py",),
    ),
    Mutant(
        "topics-that-nobody-wants-kept",
        _KEEPER,
        "            if not groups:\n                self._subscribers.pop(topic, None)\n",
        "",
        masked="it costs memory and no truth",
        tests=_KEPT,
    ),
    Mutant(
        "sessions-that-ended-detached-kept",
        _KEEPER,
        "        kept.without_retries.difference_update(ended)\n",
        "        kept.without_retries.difference_update(set(ended) & set(gone))\n",
        masked="it costs memory and no truth",
        tests=_KEPT,
    ),
    Mutant(
        "what-desks-have-read-uncounted",
        "broker/leader/deliveries/desk.py",
        "        self._held.append(self._around.hold(len(found.records)))\n",
        "",
        masked="it costs memory and no truth",
        tests=("tests/broker/test_desk.py",),
    ),
    Mutant(
        "what-desks-have-read-counted-for-good",
        "broker/leader/deliveries/desk.py",
        "        held, self._held = self._held, []\n",
        "        held = list[Callable[[], None]]()\n",
        tests=("tests/broker/test_desk.py",),
        masked="no simulated desk reads as much as an answer may have",
    ),
)
