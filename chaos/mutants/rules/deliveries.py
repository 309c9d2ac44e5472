"""Defects in messages handed out one by one (docs/adr/0057-per-message-delivery.md)."""

from __future__ import annotations

from chaos.mutants.mutant import Mutant

_STATE = ("tests/broker/test_delivering.py",)
_WIRE = ("tests/integration/test_deliveries.py",)
_CHOICE = ("tests/broker/test_choosing.py",)
_DESK = ("tests/broker/test_desk.py",)
_TOLD = ("tests/broker/test_told_handouts.py",)
_HELD = ("tests/broker/test_reads.py", "tests/broker/test_turns.py")
_FEW_REFUSED = "few simulated receives are refused once what they acknowledge is in the log"
_PLANNED = "the leader asks the same rules, and proposes nothing that they refuse"

DELIVERIES = (
    Mutant(
        "snapshot-shows-handouts-of-later",
        "broker/state/deliveries.py",
        "        if topic.snapshots != self._snapshots:\n",
        "        if False:\n",
        masked="no simulated snapshot is written while something is applied",
        tests=_STATE,
    ),
    Mutant(
        "desk-that-fails-tells-an-error-of-its-program",
        "broker/services/deliveries.py",
        "            await desk.work()\n",
        "            if self._state.applied_index % 5 == 0:\n"
        "                raise KeyError(desk.place)\n"
        "            await desk.work()\n",
        seed=102,
    ),
    Mutant(
        "in-order-passes-what-cannot-be-read",
        "broker/leader/deliveries/choosing.py",
        "                if self.planning.is_fifo:  # nobody is given what is behind it\n",
        "                if False:\n",
        masked="reads that fail are mended before two receivers meet them, in a run",
        tests=("tests/broker/test_choosing.py",),
    ),
    Mutant(
        "counts-of-before-level-9-stay-wrong",
        "broker/state/commands.py",
        "        if wanted == TOPIC_RULES_LEVEL:\n",
        "        if False:\n",
        masked="little is handed out before a simulated group is of level 9",
        tests=("tests/broker/test_recounting.py",),
    ),
    Mutant(
        "handed-out-in-many-queues-and-told-of-one",
        "broker/leader/deliveries/desk.py",
        "                receiver.done.set_result(handed)\n",
        "                receiver.done.set_result(handed[:1])\n",
        masked="what nobody was told is due again, and handed out to others",
        tests=("tests/broker/test_any_delivery.py",),
    ),
    Mutant(
        "choice-of-a-leadership-before-is-told",
        "broker/leader/deliveries/desk.py",
        "                self._check_still(leadership)\n",
        "",
        masked="leadership comes back within one look in no seed that is known",
        tests=_DESK,
    ),
    Mutant(
        "begins-where-it-was-before-it-was-put-elsewhere",
        "broker/leader/deliveries/beginning.py",
        "            if is_gone or now.get(queue_id) != record:\n",
        "            if is_gone:\n",
        masked="no simulated group is put elsewhere before its first handout",
        tests=("tests/broker/test_first_handouts.py",),
    ),
    Mutant(
        "begins-where-it-is-as-it-is-put-elsewhere",
        "broker/leader/deliveries/beginning.py",
        "        if self._is_placing(self._group, topic.name):\n",
        "        if False:\n",
        masked="no simulated group is put elsewhere before its first handout",
        tests=("tests/broker/test_first_handouts.py",),
    ),
    Mutant(
        "all-that-is-over-is-buried-in-a-turn",
        "broker/leader/deliveries/over.py",
        "                if left <= 0:\n                    return 0\n",
        "",
        masked="few messages are over at once in a simulated shop",
        tests=("tests/broker/test_desk.py",),
    ),
    Mutant(
        "head-that-is-over-and-not-noted-is-passed",
        "broker/leader/deliveries/choosing.py",
        "                    if not is_noted:\n",
        "                    if False:\n",
        masked="few messages are over at once in a simulated shop",
        tests=("tests/broker/test_choosing.py",),
    ),
    Mutant(
        "what-is-over-and-not-noted-holds-up-what-is-due",
        "broker/leader/deliveries/choosing.py",
        "                if self.planning.is_fifo:  # those",
        "                if self.planning.is_fifo or not is_noted:  # those",
        masked="few messages are over at once in a simulated shop",
        tests=("tests/broker/test_choosing.py",),
    ),
    Mutant(
        "burials-go-on-behind-their-turn",
        "broker/leader/deliveries/over.py",
        "            if left <= 0:\n                break\n",
        "            left = max(left, 1)\n",
        masked="few messages are over at once in a simulated shop",
        tests=("tests/broker/test_desk.py",),
    ),
    Mutant(
        "lag-of-single-messages-counts-what-has-gone",
        "broker/services/consumers.py",
        "        if low > (frontier or 0):  # some of what is in hand may have gone\n",
        "        if False:\n",
        masked="a picture decides nothing",
        tests=("tests/broker/test_consumers.py",),
    ),
    Mutant(
        "handed-out-and-then-refused-for-want-of-room",
        "broker/services/deliveries.py",
        "        self._pulls.account_handed_out(",
        "        self._pulls.account(",
        seed=13,
        tests=_TOLD,
    ),
    Mutant(
        "messages-chosen-where-no-answer-has-room",
        "broker/leader/deliveries/desk.py",
        "        self._around.check_room()\n        return self._kept(await self._read(",
        "        return self._kept(await self._read(",
        masked="what is handed out is answered, over the budget if need be",
        tests=_TOLD,
    ),
    Mutant(
        "handed-out-and-told-that-it-did-not-happen",
        "broker/services/deliveries.py",
        "            if not is_denied or not (handed or",
        "            if True or not (handed or",
        masked="few simulated leaders are lost between an entry and its answer",
        tests=_TOLD,
    ),
    Mutant(
        "time-that-ends-while-it-is-looked-after-is-endless",
        "broker/services/deliveries.py",
        "                if receiver.looked.done():  # it is looked after once more just now\n"
        "                    receiver.looked = asyncio.get_running_loop().create_future()\n",
        "                break\n",
        masked="a hold must end within a look",
        tests=_DESK,
    ),
    Mutant(
        "acknowledged-and-told-that-it-did-not-happen",
        "broker/services/deliveries.py",
        "            if settler is None or (",
        "            if True or (",
        masked=_FEW_REFUSED,
        tests=_TOLD,
    ),
    Mutant(
        "acknowledged-and-told-that-nothing-may-be-read",
        "broker/services/deliveries.py",
        "            return await self._only_settled(wish, topic, error)\n",
        "            await self._only_settled(wish, topic, error)\n            raise\n",
        masked=_FEW_REFUSED,
        tests=_TOLD,
    ),
    Mutant(
        "receive-denied-by-a-leader-of-before",
        "broker/services/deliveries.py",
        "await self._gate.denying_surely(self._receive(wish, topic, call, heard_s))",
        "await self._receive(wish, topic, call, heard_s)",
        masked="no simulated group changes its style",
        tests=("tests/broker/test_denials.py",),
    ),
    Mutant(
        "queues-kept-by-a-leader-of-before",
        "broker/services/topics.py",
        "await self._gate.denying_surely(self._update(topic, wish))",
        "await self._update(topic, wish)",
        masked="no simulated operator shrinks a topic that nobody reads",
        tests=("tests/broker/test_denials.py",),
    ),
    Mutant(
        "what-took-effect-is-denied-with-the-rest",
        "broker/services/deliveries.py",
        "not (handed or settler.took_effect)",
        "not handed",
        masked="few simulated leaders are lost between an entry and its answer",
        tests=_TOLD,
    ),
    Mutant(
        "finished-before-and-told-that-it-did-not-happen",
        "broker/leader/deliveries/desk.py",
        "                    for settler in settlers:\n"
        "                        _finish(settler)\n"
        "                    if choice.failure is not None",
        "                    if choice.failure is not None and not choice.over:\n"
        "                        self.fail_all(choice.failure)\n"
        "                    for settler in settlers:\n"
        "                        _finish(settler)\n"
        "                    if choice.failure is not None",
        masked=_FEW_REFUSED,
        tests=_TOLD,
    ),
    Mutant(
        "queue-that-goes-meanwhile-is-a-fault",
        "broker/leader/deliveries/choosing.py",
        "            raise BrokerError(ErrorCode.BUSY, text)\n        return draft\n",
        "            raise TypeError(text)\n        return draft\n",
        masked="simulated shops' topics keep their queues",
        tests=("tests/broker/test_choosing.py",),
    ),
    Mutant(
        "faults-of-receives-reach-users-as-they-are",
        "dledger/client/receives.py",
        'self._failed(call, fault("receiving", error, Outcome.MAY_HAVE_HAPPENED))',
        "self._failed(call, error)",
        masked="found by the library's simulation: its seed 2615034",
        tests=("tests/client/test_receives.py",),
    ),
    Mutant(
        "rows-lost-where-pages-become-one",
        "broker/state/handouts.py",
        "        if len(pages) > 1 and not self._loses_rows:\n",
        "        if False:\n",
        masked="few simulated queues have more than two pages of messages in hand",
        tests=_STATE,
    ),
    Mutant(
        "rows-kept-beside-members-that-lose-them",
        "broker/state/delivering.py",
        "loses_rows=self.level < TOPIC_RULES_LEVEL)",
        "loses_rows=False)",
        masked="simulated members of the level before are this program",
        tests=_STATE,
    ),
    Mutant(
        "ack-by-a-superseded-hand",
        "broker/state/handouts.py",
        "if each.index == index else 0\n",
        "if each.index >= index else 0\n",
        masked="no two hands of an offset are near each other in a simulated log's pages",
        tests=_STATE,
    ),
    Mutant(
        "given-again-before-its-time",
        "broker/state/delivering.py",
        "            if each.hidden_until_ms > self.at.append_time_ms:\n",
        "            if False:\n",
        masked=_PLANNED,
        tests=_STATE,
    ),
    Mutant(
        "due-before-its-time-for-the-leader-too",
        "broker/state/delivering.py",
        "        until_ms = self.at.append_time_ms + wish.hidden_ms\n        by = ",
        "        until_ms = self.at.append_time_ms\n        by = ",
        tests=_STATE,
    ),
    Mutant(
        "bound-holds-back-what-is-due",
        "broker/state/delivering.py",
        "        if not wish.mask or wish.former >= self.at.index:\n",
        "        if not self.room(wish.queue_id) or wish.former >= self.at.index:\n",
        masked="no simulated group comes near the bound",
        tests=_STATE,
    ),
    Mutant(
        "returned-and-still-in-hand",
        "broker/state/delivering.py",
        "                left = left._replace(index=self.at.index, attempt_id=NO_ATTEMPT)\n",
        "                left = left._replace(attempt_id=NO_ATTEMPT)\n",
        tests=_STATE,
    ),
    Mutant(
        "extending-takes-all-of-a-hand",
        "broker/state/handouts.py",
        "                if bits != each.mask:\n"
        "                    left.append(trimmed(each, each.mask & ~bits) if bits else each)\n",
        "                if not bits:\n                    left.append(each)\n",
        tests=_STATE,
    ),
    Mutant(
        "attempts-not-counted",
        "broker/state/delivering.py",
        "min(each.attempt + 1, MAX_ATTEMPT)",
        "each.attempt",
        tests=_STATE,
    ),
    Mutant(
        "group-received-from-while-its-members-hold-queues",
        "broker/state/delivering.py",
        "    if owners.groups.joined(group) is not None:\n",
        "    if False:\n",
        masked="no simulated group is tried in two ways from this side",
        tests=_STATE,
    ),
    Mutant(
        "offsets-committed-past-what-is-in-hand",
        "broker/state/compound.py",
        "        if owners.deliveries.has(body.group) or body.group in growth.delivered:\n",
        "        if False:\n",
        tests=_WIRE,
    ),
    Mutant(
        "fifo-out-of-order",
        "broker/state/delivering.py",
        "        if not self.is_fifo:\n            return None\n",
        "        if True:\n            return None\n",
        masked=_PLANNED,
        tests=_STATE,
    ),
    Mutant(
        "fifo-given-to-two",
        "broker/leader/deliveries/choosing.py",
        "        if self.planning.is_fifo and draft.unfinished:\n",
        "        if False:\n",
        masked="what the leader proposes so is refused by every replica",
        tests=_WIRE,
    ),
    Mutant(
        "all-hands-looked-at-in-one-turn",
        "broker/leader/deliveries/hands.py",
        "            if is_enough():\n",
        "            if False:\n",
        masked="it costs time and no truth",
        tests=_CHOICE,
    ),
    Mutant(
        "all-hands-unpacked-for-what-is-due",
        "broker/state/handouts.py",
        "            if page.due_ms <= now_ms\n",
        "            if True\n",
        masked="it costs time and no truth",
        tests=_CHOICE,
    ),
    Mutant(
        "unreadable-queue-holds-up-its-whole-desk",
        "broker/leader/deliveries/choosing.py",
        "                if error.code is ErrorCode.NOT_LEADER:\n",
        "                if error:\n",
        masked="whoever is told so asks again",
        tests=_CHOICE,
    ),
    Mutant(
        "finished-twice-is-an-error",
        "broker/leader/deliveries/choosing.py",
        "            left &= others | never_given\n",
        "            left |= 0\n",
        masked="whoever is told so does it again, which is no wrong",
        tests=_WIRE,
    ),
    Mutant(
        "acknowledged-and-not-written",
        "broker/leader/deliveries/choosing.py",
        "        if refusal is None:\n            self.command.settled.append(told)\n",
        "        if refusal is None:\n",
        seed=2,
        tests=_WIRE,
    ),
    Mutant(
        "a-message-more-than-has-gone-passed-over",
        "broker/leader/deliveries/choosing.py",
        "            passed = self._gone_before if found is None else found.next_offset\n",
        "            passed = self._gone_before + 1 if found is None else found.next_offset\n",
        seed=11,
        under="move-start",
    ),
    Mutant(
        "stale-receipt-acknowledged",
        "broker/leader/deliveries/choosing.py",
        "            left &= others | never_given\n",
        "            left = 0\n",
        tests=_WIRE,
    ),
    Mutant(
        "everybody-starts-where-he-likes",
        "broker/state/delivering.py",
        "    if not starts or command.first_start != known:\n",
        "    if not starts:\n",
        masked=_PLANNED,
        tests=_STATE,
    ),
    Mutant(
        "fifo-past-what-is-to-be-buried",
        "broker/leader/deliveries/choosing.py",
        "        return is_hidden or is_over or queue_id in self.planning.given\n",
        "        return is_hidden or queue_id in self.planning.given\n",
        masked="two receivers have to wait, and another queue to have something, at one moment",
        tests=_CHOICE,
    ),
    Mutant(
        "messages-leave-that-no-handout-has",
        "broker/leader/deliveries/choosing.py",
        "        if given < found.count:\n",
        "        if False:\n",
        masked="no simulated receiver wants more than one handout spans",
        tests=_CHOICE,
    ),
    Mutant(
        "one-handout-of-many-is-written",
        "broker/leader/deliveries/choosing.py",
        "            self.command.given.append(wish)\n            given += count\n",
        "            if not given:\n                self.command.given.append(wish)\n"
        "            given += count\n",
        masked="no simulated receiver wants more than one handout spans",
        tests=_CHOICE,
    ),
    Mutant(
        "leader-lost-in-a-burial-is-a-fault",
        "broker/leader/deliveries/desk.py",
        "                    self._answer(choice, settlers, result.index)\n"
        "                    await self._burials.bury(choice)\n"
        "                    await self._rest(loop.time() - began_s)\n"
        "                    continue\n"
        "            except BrokerError as error:\n"
        "                if self._beginning.leave_out(choice, error):\n"
        "                    self._take_back(settlers)\n"
        "                    self._settlers = settlers + self._settlers\n"
        "                else:\n"
        "                    self.fail_all(error)\n"
        "                continue\n",
        "            except BrokerError as error:\n"
        "                if self._beginning.leave_out(choice, error):\n"
        "                    self._take_back(settlers)\n"
        "                    self._settlers = settlers + self._settlers\n"
        "                else:\n"
        "                    self.fail_all(error)\n"
        "                continue\n"
        "            if result.refusal is None:\n"
        "                self._answer(choice, settlers, result.index)\n"
        "                await self._burials.bury(choice)\n"
        "                continue\n",
        masked="simulated receivers take no error of a leader that is lost for a defect",
        tests=_DESK,
    ),
    Mutant(
        "closed-topic-refuses-what-is-settled-meanwhile",
        "broker/leader/deliveries/desk.py",
        "                        self._fail_receivers(choice.failure)\n",
        "                        self.fail_all(choice.failure)\n",
        masked="a read has to fail just as somebody settles",
        tests=("tests/broker/test_desk.py::test_what_is_settled_while_a_read_fails_is_settled",),
    ),
    Mutant(
        "unburied-message-holds-up-the-others",
        "broker/leader/deliveries/over.py",
        "                if error.code not in _OF_THE_MESSAGE:\n",
        "                if error:\n",
        masked="every simulated message can be copied",
        tests=_DESK,
    ),
    Mutant(
        "rot-that-a-desk-meets-is-told-to-nobody",
        "broker/services/deliveries.py",
        "            desk.fail_all(self._soundness.told(error))\n",
        "            desk.fail_all(BrokerError(ErrorCode.INTERNAL, str(error)))\n",
        masked="no simulated leader has rot that only a desk reads",
        tests=_DESK,
    ),
    Mutant(
        "buried-after-attempts-that-somebody-else-wishes-for",
        "broker/leader/deliveries/desk.py",
        "Burials(place, around.bury, ",
        "Burials(place, lambda *each: around.bury(*each[:4], self.max_attempts), ",
        masked="all receivers of a simulated group wish for the same",
        tests=_DESK,
    ),
    Mutant(
        "desk-of-who-was-refused",
        "broker/services/deliveries.py",
        "        try:\n            await self._check_readable(topic)\n",
        "        desk = self._desk_for(wish, topic)\n"
        "        try:\n            await self._check_readable(topic)\n",
        masked="no simulated group is tried in two ways from this side",
        tests=_DESK,
    ),
    Mutant(
        "message-of-the-look-waited-for",
        "broker/reading/held.py",
        "        if missed := self._arrived(keys, looked):\n",
        "        if missed := None:\n",
        masked="whoever waits looks again within five seconds",
        tests=_HELD,
    ),
    Mutant(
        "who-waits-is-not-in-use",
        "broker/leader/deliveries/desk.py",
        "not await self._use(choice, is_asked=is_asked)",
        "True",
        masked="no simulated group is unused for an hour",
        tests=_DESK,
    ),
    Mutant(
        "who-may-not-read-is-not-in-use",
        "broker/services/deliveries.py",
        "                self._keep_in_use(wish, topic)\n",
        "                pass\n",
        masked="no simulated group is unused for an hour",
        tests=_DESK,
    ),
    Mutant(
        "forgotten-under-who-waits",
        "broker/leader/groups/forgetting.py",
        "        if self._is_waited_for(group.name):\n",
        "        if False:\n",
        masked="no simulated group is unused for so long that it is forgotten",
        tests=_DESK,
    ),
    Mutant(
        "settled-and-still-in-hand",
        "broker/leader/deliveries/choosing.py",
        "                hands.move(told.handout, told.base, told.mask, to)\n",
        "                pass\n",
        masked="no simulated receiver settles a message twice in one call, and others late",
        tests=_CHOICE,
    ),
    Mutant(
        "hands-near-by-overlooked",
        "broker/leader/deliveries/hands.py",
        "    return range((base - SPAN + 1) // SPAN, ",
        "    return range(base // SPAN, ",
        masked="whoever is told so does it again, which is no wrong",
        tests=_CHOICE,
    ),
    Mutant(
        "all-hands-looked-at-for-each-that-is-late",
        "broker/leader/deliveries/choosing.py",
        "            hands = self._hands[wish.queue_id] = await Hands.of(draft, self.turns)\n",
        "            hands = await Hands.of(draft, self.turns)\n",
        masked="it costs time and no truth",
        tests=_CHOICE,
    ),
    Mutant(
        "command-gives-as-much-as-is-asked",
        "broker/leader/deliveries/choosing.py",
        " or pieces >= MAX_GIVEN\n",
        "\n",
        masked="it costs time and no truth",
        tests=_CHOICE,
    ),
    Mutant(
        "chosen-in-one-turn",
        "broker/leader/deliveries/choosing.py",
        "            await self.turns.pause()\n",
        "            pass\n",
        masked="it costs time and no truth",
        tests=_CHOICE,
    ),
)
