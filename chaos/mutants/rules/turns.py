"""Defects in how calls share the turns of a leader's loop (docs/adr/0027-turns.md)."""

from __future__ import annotations

from chaos.mutants.mutant import Mutant

_OWN = "no simulated node shares its loop by the clock: its turns are counted"
_TIMES = ("tests/broker/test_offsets_by_time.py",)
_STARTING = ("tests/broker/test_starting.py",)
_RARE = "few simulated groups begin at a time in a topic that changes meanwhile"
_CALLS = ("tests/broker/test_call_turns.py",)

TURNS = (
    Mutant(
        "sends-wait-behind-paused-calls",
        "broker/wiring.py",
        " or ports.turns,\n            ports.turns,\n",
        " or ports.turns,\n            ports.call_turns or ports.turns,\n",
        masked="simulated calls have turns of their own",
        tests=("tests/broker/test_turns.py",),
    ),
    Mutant(
        "calls-share-no-turn",
        "broker/wiring.py",
        "            ports.call_turns or ports.turns,\n",
        "            ports.turns,\n",
        masked="simulated calls have turns of their own",
        tests=("tests/broker/test_turns.py",),
    ),
    Mutant(
        "each-call-has-a-share-of-a-turn-of-its-own",
        "broker/turns.py",
        "        clock, end = self._clock, self._end\n",
        "        clock, end = self._clock, self._clock() + SHARE_S\n",
        masked=_OWN,
        tests=_CALLS,
    ),
    Mutant(
        "who-comes-begins-before-those-that-paused",
        "broker/turns.py",
        "        if self._looking and asyncio.current_task() is not self._going_on:\n",
        "        if False:\n",
        masked=_OWN,
        tests=_CALLS,
    ),
    Mutant(
        "who-goes-on-is-taken-for-one-that-comes",
        "broker/turns.py",
        "        if self._looking and asyncio.current_task() is not self._going_on:\n",
        "        if self._looking:\n",
        masked=_OWN,
        tests=_CALLS,
    ),
    Mutant(
        "a-few-of-those-that-paused-go-on-in-a-turn",
        "broker/turns.py",
        "LOOKING: Final = 256\n",
        "LOOKING: Final = 16\n",
        masked=_OWN,
        tests=_CALLS,
    ),
    Mutant(
        "all-who-paused-go-on-in-one-turn",
        "broker/turns.py",
        "        if self._is_begun and self._clock() >= self._end:\n",
        "        if False:\n",
        masked=_OWN,
        tests=_CALLS,
    ),
    Mutant(
        "who-paused-first-is-passed",
        "broker/turns.py",
        "        if self._looking[0] is not place:\n",
        "        if self._looking[-1] is not place:\n",
        masked=_OWN,
        tests=_CALLS,
    ),
    Mutant(
        "who-is-cancelled-keeps-its-place",
        "broker/turns.py",
        "            if not following.done():  # else it was cancelled\n",
        "            if following:\n",
        masked=_OWN,
        tests=_CALLS,
    ),
    Mutant(
        "those-behind-who-was-cancelled-are-not-told-to-look",
        "broker/turns.py",
        "        while self._behind and len(self._looking) < LOOKING:\n",
        "        if self._behind and len(self._looking) < LOOKING:\n",
        masked=_OWN,
        tests=_CALLS,
    ),
    Mutant(
        "a-turn-of-a-loop-that-was-closed-never-ends",
        "broker/turns.py",
        "        if loop is not self._loop:\n",
        "        if self._loop is None:\n",
        masked=_OWN,
        tests=_CALLS,
    ),
    Mutant(
        "batches-that-are-stored-already-cost-nothing",
        "broker/services/messages.py",
        " + (BEHIND_WEIGHT if behind else 0)\n",
        "\n",
        masked="a long turn is no harm to a simulated group",
        tests=("tests/broker/test_turns.py",),
    ),
    Mutant(
        "a-time-is-looked-for-in-one-turn",
        "broker/services/times.py",
        "            if piece.is_over():\n",
        "            if False:\n",
        masked="a long turn is no harm to a simulated group",
        tests=_TIMES,
    ),
    Mutant(
        "where-a-group-starts-is-looked-for-in-one-turn",
        "broker/leader/groups/assigning.py",
        "                next(steps)\n                if is_enough():\n",
        "                next(steps)\n                if False:\n",
        masked="a long turn is no harm to a simulated group",
        tests=_STARTING,
    ),
    Mutant(
        "what-was-found-is-forgotten-when-somebody-comes",
        "broker/leader/groups/assigning.py",
        "        part.look = _Look(facts,",
        "        part.begun = Beginnings()\n        part.look = _Look(facts,",
        masked="the same is found again",
        tests=_STARTING,
    ),
    Mutant(
        "who-begins-in-one-topic-waits-in-all",
        "broker/leader/groups/assigning.py",
        "            part.granting or part.look is not None or",
        "            part.granting or part.look is not None or part.begins is not None or",
        masked=_RARE,
        tests=_STARTING,
    ),
    Mutant(
        "what-waits-for-where-it-begins-keeps-the-others-waiting",
        "broker/leader/groups/assigning.py",
        "        if not told:\n            return\n",
        "        if not told or unknown:\n            return\n",
        masked=_RARE,
        tests=_STARTING,
    ),
    Mutant(
        "found-where-it-begins-and-nobody-looks",
        "broker/leader/groups/assigning.py",
        "            part.begins = None\n            self._owner.look_again(name)\n",
        "            part.begins = None\n",
        masked=_RARE,
        tests=_STARTING,
    ),
    Mutant(
        "group-starts-at-what-went-since-it-was-found",
        "broker/leader/groups/starting.py",
        "        return [max(at, reader.bounds(ref, queue)[0]) for",
        "        return [max(at, reader.bounds(ref, queue)[0] * 0) for",
        masked=_RARE,
        tests=_STARTING,
    ),
    Mutant(
        "what-went-while-a-time-was-looked-for-is-the-answer",
        "broker/reading/queues.py",
        "            low = max(low, self.bounds(topic, queue_id)[0])\n",
        "",
        masked=_RARE,
        tests=_TIMES,
    ),
)
