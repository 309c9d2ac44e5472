"""Defects in what an attempt is told that asks again (docs/adr/0057-per-message-delivery.md)."""

from __future__ import annotations

from chaos.mutants.mutant import Mutant

_WIRE = ("tests/integration/test_deliveries.py",)
_CHOICE = ("tests/broker/test_choosing.py",)
_AGAIN = ("tests/broker/test_asked_again.py",)
_DENIALS = ("tests/broker/test_denials.py",)
_DESK = ("tests/broker/test_desk.py",)
_TOLD = ("tests/broker/test_told_handouts.py",)
_FEW_REFUSED = "few simulated receives are refused once what they acknowledge is in the log"
_FEW_MENDED = "few simulated queues are mended while their leader is asked again"

ASKED_AGAIN = (
    Mutant(
        "who-has-what-lies-behind-what-was-returned-goes-on",
        "broker/leader/deliveries/choosing.py",
        "            each.base < first\n            or (\n",
        "            (each.base < first and each.attempt_id != NO_ATTEMPT)\n            or (\n",
        masked="few simulated workers return the front of another one's lot",
        tests=("tests/broker/test_choosing.py",),
    ),
    Mutant(
        "who-is-passed-in-order-hides-what-it-gives-back",
        "broker/leader/deliveries/choosing.py",
        "            wish.what == SETTLING_RETURNED and wish.hidden_ms > 0\n",
        "            False\n",
        masked="few simulated workers give back late what is behind another one's",
        tests=("tests/broker/test_choosing.py",),
    ),
    Mutant(
        "who-is-passed-in-order-goes-on",
        "broker/leader/deliveries/choosing.py",
        "        if not self.planning.is_fifo:\n            return False\n        mine",
        "        if self.planning:\n            return False\n        mine",
        seed=19_000_079,
        tests=("tests/broker/test_choosing.py",),
    ),
    Mutant(
        "what-an-attempt-was-given-and-cannot-be-read-is-nothing",
        "broker/services/deliveries.py",
        "        if receiver.looks_back and (receiver.lacks or not handed):\n",
        "        if False:\n",
        masked=_FEW_REFUSED,
        tests=_TOLD,
    ),
    Mutant(
        "part-of-what-an-attempt-was-given-told-as-the-whole",
        "broker/services/deliveries.py",
        "(receiver.lacks or not handed)",
        "not handed",
        masked=_FEW_MENDED,
        tests=_TOLD,
    ),
    Mutant(
        "what-an-attempt-lacks-of-its-own-is-not-noted",
        "broker/leader/deliveries/choosing.py",
        "        receiver.lacks = not is_all\n",
        "",
        masked=_FEW_MENDED,
        tests=_AGAIN,
    ),
    Mutant(
        "what-is-told-again-cut-to-the-bytes-of-the-receive",
        "broker/leader/deliveries/choosing.py",
        "                base, records = "
        "await self._whole(queue_id, first, first + count, taken.size)\n"
        "                count += first - base\n"
        "                if not count:\n"
        "                    continue\n",
        "                found = "
        "await self._found(queue_id, first, count, _room(receiver, taken))\n"
        "                if found is None:\n"
        "                    continue\n"
        "                base, count, records = first, found.count, [found.records]\n",
        seed=21,
        tests=_AGAIN,
    ),
    Mutant(
        "in-order-told-again-as-the-rows-lie",
        "broker/leader/deliveries/choosing.py",
        "in in_order(hands) if self.planning.is_fifo else hands:\n",
        "in hands:\n",
        masked=_FEW_MENDED,
        tests=_AGAIN,
    ),
    Mutant(
        "in-order-told-again-with-what-it-was-passed-with",
        "broker/leader/deliveries/choosing.py",
        "            self._before = {who: latest(given) for who, given in self._before.items()}\n",
        "            pass\n",
        masked="few simulated attempts are passed, ask again, are given others and ask again",
        tests=_AGAIN,
    ),
    Mutant(
        "what-is-left-of-what-an-attempt-was-given-gone-with-its-front",
        "broker/leader/deliveries/choosing.py",
        "                base = at = min(end, max(at + 1, self._gone_before))\n",
        "                base = at = end\n",
        masked="few simulated fronts go on while somebody asks again",
        tests=_AGAIN,
    ),
    Mutant(
        "who-asks-again-is-told-of-nothing-by-a-leader-of-before",
        "broker/services/deliveries.py",
        "            await self._confirm_nothing(leadership)\n",
        "            pass\n",
        masked="few simulated attempts ask two leaders while both serve",
        tests=_DENIALS,
    ),
    Mutant(
        "told-again-more-than-an-answer-holds",
        "broker/leader/deliveries/choosing.py",
        "            if size >= MOST_AGAIN:\n",
        "            if False:\n",
        masked="no simulated attempt is used for several receives",
        tests=_AGAIN,
    ),
    Mutant(
        "pieces-told-again-without-a-bound",
        "broker/leader/deliveries/choosing.py",
        "        pieces = self._again + len(self.command.given)\n",
        "        pieces = len(self.command.given)\n",
        masked="it costs time and no truth",
        tests=_DESK,
    ),
    Mutant(
        "attempt-id-ignored",
        "broker/leader/deliveries/choosing.py",
        "is_all = await self._of_each(queues, self._give_it_again, receiver, taken)\n",
        "is_all = True\n",
        masked="what was given comes again all the same, when its time is over",
        tests=_WIRE,
    ),
    Mutant(
        "asked-again-and-looked-for-in-every-command",
        "broker/leader/deliveries/choosing.py",
        "            each.looks_back = each.wanted.attempt_id in self._before\n",
        "            pass\n",
        masked="it costs time and no truth",
        tests=_CHOICE,
    ),
    Mutant(
        "two-lots-for-one-attempt",
        "broker/leader/deliveries/choosing.py",
        "        receiver.looks_back = bool(taken.parts) or not is_all\n",
        "        receiver.looks_back = bool(taken.parts)\n",
        masked="no simulated receiver asks again while a queue is mended",
        tests=_CHOICE,
    ),
    Mutant(
        "who-asks-again-of-a-closed-topic-is-told-that-there-is-nothing",
        "broker/services/deliveries.py",
        "        if wish.is_again:\n            raise error\n",
        "",
        masked=_FEW_REFUSED,
        tests=_TOLD,
    ),
    Mutant(
        "refusal-for-good-is-asked-again-until-the-deadline",
        "broker/services/deliveries.py",
        "(wish.is_again and not error.traits.is_retriable)",
        "False",
        masked=_FEW_REFUSED,
        tests=_TOLD,
    ),
    Mutant(
        "attempt-refused-by-what-its-own-look-has-read",
        "broker/leader/deliveries/desk.py",
        "        if not self._held:\n            self._around.check_room()\n",
        "        self._around.check_room()\n",
        masked="few simulated nodes have so little room, and who is refused asks again",
        tests=_TOLD,
    ),
    Mutant(
        "told-again-as-much-as-there-is-room-for",
        "broker/services/deliveries.py",
        "                return await self._pulls.read_handed_out(request)\n",
        "                return await self._pulls.read(request)\n",
        masked="few simulated nodes have so little room, and who is refused asks again",
        tests=_TOLD,
    ),
    Mutant(
        "handed-out-and-counted-when-all-else-is-known",
        "broker/services/deliveries.py",
        "call)\n        if receiver.looks_back and (receiver.lacks or not handed):\n",
        "call) if settler is None else None\n"
        "        if receiver.looks_back and (receiver.lacks or not handed):\n",
        masked="it costs memory and no truth",
        tests=_TOLD,
    ),
    Mutant(
        "attempt-that-asked-again-while-it-was-looked-after-waits-twice",
        "broker/leader/deliveries/desk.py",
        "        self._take_places()\n        return choice",
        "        return choice",
        masked="a half-open call of a simulated receiver ends with its hold",
        tests=_DESK,
    ),
    Mutant(
        "attempt-whose-command-was-refused-waits-twice",
        "broker/leader/deliveries/desk.py",
        "        self._take_places()\n        for settler",
        "        for settler",
        masked=_FEW_REFUSED,
        tests=_DESK,
    ),
    Mutant(
        "who-asks-again-for-what-cannot-be-read-holds-up-all",
        "broker/leader/deliveries/desk.py",
        "            if not (is_dry or receiver.looks_back):\n",
        "            is_dry = is_dry or receiver.looks_back\n            if not is_dry:\n",
        masked="whoever is told to come again comes again",
        tests=_DESK,
    ),
)
