"""Consumer groups in any order of anything, in one machine, beside an account kept by hand.

`test_consuming`, `test_attempts` and `test_retrying` have a machine each, for what they are about.
Here is what happens between them: two groups in several queues, commits of which some parts are
refused, units of several kinds in one entry, queues that go and come back, groups that are moved
and forgotten, topics made anew, and machines that go on from snapshots. After each entry both say
the same: what is finished, who holds which queue, what was counted of its front, and which copies
there are, one for each message that was sent back. In the end nothing is left of anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from random import Random

from broker.state.leases import Place, ranges_of
from broker.state.machine import StateMachine
from broker.state.retries import Queue
from dledger.level import KNOWN_LEVEL
from dledger.records.reserved import (
    CAREFUL_AFTER,
    LEVELS,
    SCHEDULE_TOPIC,
    dead_letter_topic,
    retry_topic,
)
from dledger.wire.commands_pb2 import (
    Command,
    CommitLeasesCommand,
    EndSessionsCommand,
    FailMessageCommand,
    FireDelayedCommand,
    ForgetGroupsCommand,
    GrantLeasesCommand,
    GroupSettings,
    JoinGroupCommand,
    MoveGroupCommand,
    QueueGrant,
    QueueProgress,
    QueueStart,
    ResendCommand,
    SendBackCommand,
    TopicGrants,
    TopicProgress,
    UpdateTopicCommand,
)
from tests.broker.test_compound import Log, Placed, delete
from tests.scale import examples

GROUPS = "gh"
RETRY, DEAD = retry_topic("g"), dead_letter_topic("g")  # group h sends back to be tried again only
WAITING = (2, 3)  # queues of the schedule topic that are used
CAREFUL_IN_ORDER = 1
NOBODY = 0, 0
NEVER_MS = 10**6  # the log's clock doesn't come so far
STEPS = 70
LIFE_MS = 10**9

Unit = tuple[list[Placed], Command]
About = tuple[object, ...]


@dataclass
class Account:
    """What a group has done in a queue of topic t."""

    finished: set[int] = field(default_factory=set)
    failed: tuple[int, int] | None = None  # the message in front, and how often
    begun_by: int = 0  # the epoch whose holder has begun that one; 0: none
    holder: tuple[int, int] = NOBODY  # session, epoch
    is_known: bool = False  # the group has an offset there

    @property
    def front(self) -> int:
        return next(each for each in count() if each not in self.finished)

    def failures(self, offset: int) -> int:
        return self.failed[1] if self.failed and self.failed[0] == offset else 0

    def finish(self, offsets: Iterable[int]) -> None:
        self.put(self.finished | set(offsets))

    def put(self, finished: Iterable[int]) -> None:
        """Exactly these are finished; what was counted of a message that isn't in front goes."""
        self.finished = set(finished)
        if self.failed is not None and self.failed[0] != self.front:
            self.failed, self.begun_by = None, 0

    def fail(self) -> None:
        self.failed, self.begun_by = (self.front, self.failures(self.front) + 1), 0

    def vanish(self, end: int, careful_after: int) -> None:
        """The holder is gone without a goodbye."""
        known = self.failures(self.front)
        if self.front < end and (known < careful_after or self.begun_by == self.holder[1]):
            self.fail()


class Life:
    """Two groups, drawn from a seed."""

    def __init__(self, seed: int, happened: Counter[str]) -> None:
        self.random, self.happened = Random(seed), happened
        self.log = Log(KNOWN_LEVEL)
        self.is_orderly = self.random.random() < 0.4
        self.incarnations: dict[str, int] = {}
        self.accounts: dict[tuple[str, int], Account] = {}
        self.sessions: dict[tuple[str, str], int] = {}  # by group and member
        self.started: Counter[str] = Counter()  # queues that have had a start, by group
        self.lows: Counter[int] = Counter()  # where queues that came back begin
        self.copies: set[tuple[Queue, int]] = set()
        self.moved: Counter[Queue] = Counter()
        self.resent: set[tuple[int, int]] = set()  # incarnation of the dead letters, offset
        self.tokens = count()
        for name, queues in ((SCHEDULE_TOPIC, LEVELS), (RETRY, 1), (DEAD, 1), ("t", 2)):
            self.incarnations[name] = self.log.topic(name, queues)
        self.send()

    @property
    def machine(self) -> StateMachine:
        return self.log.machine

    @property
    def t(self) -> int:
        return self.incarnations["t"]

    @property
    def ends(self) -> list[int]:
        """Of topic t's queues."""
        return list(self.machine.topics["t"].next_offsets)

    def account(self, group: str, queue_id: int) -> Account:
        return self.accounts.setdefault((group, queue_id), Account())

    def step(self) -> None:
        ways: dict[Callable[[], None], float] = {
            self.entry: 10,
            self.commit: 6,
            self.grant: 8,
            self.join: 2,
            self.leave: 1,
            self.send: 4,
            self.resize: 3,
            self.move: 2,
            self.make_anew: 0.5,
            self.restore: 1,
            self.forget: 0.7,
        }
        (way,) = self.random.choices(list(ways), list(ways.values()))
        way()
        self.check()

    # --- messages and topics --------------------------------------------------------------------

    def send(self) -> None:
        numbers = self.machine.queue_numbers.of(self.t, len(self.ends))
        queue_id = self.random.randrange(numbers.write_queues)
        bodies = [b"m"] * self.random.randint(1, 4)
        batch = Placed(self.ends[queue_id], *bodies, queue_id=queue_id, incarnation=self.t)
        assert self.log.units(([batch], [])) == [None]

    def resize(self) -> None:
        """A queue that goes is finished for each group that knew it, and was so before unless
        that is what was asked for; nobody holds it."""
        drop, queues = self.random.random() < 0.6, len(self.ends)
        before = self.machine.queue_numbers.of(self.t, queues)
        wish = UpdateTopicCommand(name="t", incarnation=self.t, drop=drop)
        wish.read_queues, wish.write_queues = (
            self.random.choice((0, self.random.randint(1, 5))) for _ in range(2)
        )
        self.log.command(Command(update_topic=wish))
        after = self.machine.queue_numbers.of(self.t, len(self.ends))
        self.happened["resized"] += after != before
        for queue_id in range(after.read_queues, before.read_queues):
            end = self.lows[queue_id] = self.ends[queue_id]
            for group in GROUPS:
                account = self.account(group, queue_id)
                account.holder = NOBODY
                if account.is_known:
                    assert drop or account.front == end, "a queue went that wasn't read"
                    account.put(range(end))
                self.happened["a queue went"] += 1

    def make_anew(self) -> None:
        name, queues = self.random.choice(
            (("t", self.random.randint(1, 3)), (SCHEDULE_TOPIC, LEVELS), (DEAD, 1))
        )
        former = self.incarnations[name]
        self.log.command(delete(former, name))
        self.incarnations[name] = self.log.topic(name, queues)
        self.copies = {each for each in self.copies if each[0].incarnation != former}
        if name == "t":
            self.accounts.clear()
            self.started.clear()
            self.lows.clear()

    # --- members ----------------------------------------------------------------------------------

    def join(self) -> None:
        """One that is there already has begun anew: who it was has vanished."""
        group, member = self.random.choice(GROUPS), self.random.choice("ab")
        settings = GroupSettings(topics=["t"], orderly=self.is_orderly)
        token = b"%08d" % next(self.tokens)
        wish = JoinGroupCommand(group=group, member=member, token=token, settings=settings)
        former = self.sessions.get((group, member))
        session = self.log.command(Command(join_group=wish))
        assert self.machine.groups.members(group)[member].session == session
        if former is not None:
            self._end(group, former, vanished=True)
        self.sessions[group, member] = session

    def leave(self) -> None:
        if self.sessions:
            (group, member), session = self.random.choice(list(self.sessions.items()))
            vanished = self.random.random() < 0.5
            gone = [session]
            command = EndSessionsCommand(sessions=gone, vanished=gone if vanished else [])
            self.log.command(Command(end_sessions=command))
            self._end(group, session, vanished=vanished)
            del self.sessions[group, member]

    def _end(self, group: str, session: int, *, vanished: bool) -> None:
        careful_after = CAREFUL_IN_ORDER if self.is_orderly else CAREFUL_AFTER
        for (name, queue_id), account in self.accounts.items():
            if name == group and account.holder[0] == session:
                if vanished:
                    account.vanish(self.ends[queue_id], careful_after)
                account.holder = NOBODY

    def grant(self) -> None:
        """Some queues, of which some have another holder by now; and where queues begin that the
        group hasn't begun."""
        if not self.sessions:
            return
        (group, _), session = self.random.choice(list(self.sessions.items()))
        started, ends = self.started[group], self.ends
        assert self.machine.leases.started(group, self.t) == started
        new = range(started, len(ends) if self.random.random() < 0.8 else started)
        starts = [self.random.randint(self.lows[at], ends[at]) for at in new]
        wanted = {at: self.random.random() < 0.15 for at in range(len(ends)) if self._likely()}
        grants = [
            QueueGrant(
                queue_id=at,
                session=session,
                former_epoch=self.account(group, at).holder[1] + 7 * is_stale,
            )
            for at, is_stale in wanted.items()
        ]
        told = TopicGrants(
            topic="t", incarnation=self.t, first_start=started, starts=starts, grants=grants
        )
        grant = GrantLeasesCommand(group=group, topics=[told])
        epoch = self.log.command(Command(grant_leases=grant))
        self.started[group] += len(starts)
        for at, start in zip(new, starts, strict=True):
            account = self.account(group, at)
            if not account.is_known:
                account.is_known = True
                account.finish(range(start))
        for at, is_stale in wanted.items():
            if not is_stale and at < self.started[group]:
                self.account(group, at).holder = session, epoch

    def _likely(self) -> bool:
        return self.random.random() < 0.7

    def commit(self) -> None:
        """Several queues at once, mostly by somebody who holds some; each part is judged by itself:
        by a lease that is over, beyond the end."""
        if not self.sessions:
            return
        there = [(group, session) for (group, _), session in self.sessions.items()]
        holders = [
            (group, each.holder[0])
            for (group, _), each in self.accounts.items()
            if each.holder != NOBODY
        ]
        group, session = self.random.choice(there + 3 * holders)
        parts = [self._progress(group, at) for at in range(len(self.ends)) if self._likely()]
        told = TopicProgress(topic="t", incarnation=self.t, queues=parts)
        commit = CommitLeasesCommand(group=group, session=session, topics=[told])
        self.log.command(Command(commit_leases=commit))
        for each in parts:
            account = self.account(group, each.queue_id)
            ranges = ranges_of(each.frontier, each.finished)
            assert ranges is not None
            last = ranges[-1][1] if ranges else each.frontier
            if account.holder != (session, each.epoch) or last > self.ends[each.queue_id]:
                self.happened["part of a commit refused"] += 1
                continue
            self.happened["part of a commit taken"] += 1
            account.finish({*range(each.frontier), *(at for one in ranges for at in range(*one))})
            account.begun_by = each.epoch if each.begun and account.failed else 0
            if each.release:
                account.holder = NOBODY

    def _progress(self, group: str, queue_id: int) -> QueueProgress:
        random, account, end = self.random, self.account(group, queue_id), self.ends[queue_id]
        epoch = account.holder[1]
        if not epoch or random.random() < 0.15:
            epoch = random.randint(1, len(self.log.frames))
        frontier = random.choice((account.front, random.randint(0, end)))
        runs = [random.randint(1, 2) for _ in range(2 * random.choice((0, 0, 0, 1, 2)))]
        return QueueProgress(
            queue_id=queue_id,
            epoch=epoch,
            frontier=frontier + (random.random() < 0.1),
            finished=runs,
            release=random.random() < 0.1,
            begun=random.random() < 0.3,
        )

    # --- operators --------------------------------------------------------------------------------

    def move(self) -> None:
        group, queue_id = self.random.choice(GROUPS), self.random.randrange(len(self.ends))
        offset, forward = self.random.randint(0, self.ends[queue_id]), self.random.random() < 0.5
        command = MoveGroupCommand(group=group, topic="t", incarnation=self.t, forward=forward)
        command.queues.append(QueueStart(queue_id=queue_id, offset=offset))
        is_there = self.machine.groups.get(group) is not None
        self.log.command(Command(move_group=command))
        if is_there:
            account = self.account(group, queue_id)
            account.is_known, account.holder = True, NOBODY
            account.put({*range(offset), *(account.finished if forward else ())})

    def forget(self) -> None:
        group = self.random.choice(GROUPS)
        unused_ms = self.random.choice((0, LIFE_MS))
        command = ForgetGroupsCommand(groups=[group], unused_ms=unused_ms)
        self.log.command(Command(forget_groups=command))
        if self.machine.groups.get(group) is None:
            assert not any(name == group for name, _ in self.sessions)
            for key in [each for each in self.accounts if each[0] == group]:
                del self.accounts[key]
            self.started[group] = 0
            self.happened["forgotten"] += 1

    def restore(self) -> None:
        """The machine goes on from a snapshot, which it would write again."""
        former = list(self.machine.snapshot())
        restored = StateMachine.restore(iter(former), self.log.files, options=self.log.options)
        assert list(restored.snapshot()) == former
        restored.listen(self.log.told)
        self.log.machine = restored
        self.happened["restored"] += 1

    # --- units ------------------------------------------------------------------------------------

    def entry(self) -> None:
        """Up to four units, judged by what was before them; those that are taken take effect one
        after the other then."""
        units = self._drawn()
        held: set[About] = set()
        taken: list[bool] = []
        for unit in units:
            about = about_of(unit[1])
            taken.append(about not in held and self._is_taken(unit))
            if taken[-1]:
                held.add(about)
        found = self.log.units(*((batches, [command]) for batches, command in units))
        assert [refusal is None for refusal in found] == taken, (found, units)
        for unit, is_taken in zip(units, taken, strict=True):
            name = unit[1].WhichOneof("body") or ""
            self.happened[name if is_taken else f"{name} refused"] += 1
            if is_taken:
                self._take(unit)

    def _drawn(self) -> list[Unit]:
        """Units that a leader may put into one entry: none is about a message that one before it
        finishes by the way (`test_many_failures`)."""
        units: list[Unit] = []
        ahead: Counter[tuple[str, int]] = Counter()
        fronts: Counter[tuple[str, int]] = Counter()
        for _ in range(self.random.randint(1, 4)):
            match self.random.choice(("back", "back", "back", "fail", "fire", "resend")):
                case "fire":
                    units.append(self._fire(ahead))
                case "resend":
                    units.append(self._resend(ahead))
                case kind:
                    failed = self._failed()
                    if failed is None or failed.offset < fronts[failed.group, failed.queue_id]:
                        continue
                    if kind == "back":
                        units.append(self._back(failed, ahead))
                    else:
                        fronts[failed.group, failed.queue_id] = failed.offset
                        units.append(([], Command(fail_message=failed)))
        return units or [self._fire(ahead)]

    def _placed(
        self, ahead: Counter[tuple[str, int]], topic: str, queue_id: int, records: int = 1
    ) -> list[Placed]:
        """A batch behind those of the entry so far."""
        base = self.machine.topics[topic].next_offsets[queue_id] + ahead[topic, queue_id]
        ahead[topic, queue_id] += records
        incarnation = self.incarnations[topic]
        bodies = [b"m"] * records
        return [Placed(base, *bodies, topic=topic, queue_id=queue_id, incarnation=incarnation)]

    def _failed(self) -> FailMessageCommand | None:
        """A message of a queue that somebody holds; mostly as its holder would say it."""
        random = self.random
        held = [(key, each) for key, each in self.accounts.items() if each.holder != NOBODY]
        if not held:
            return None
        (group, queue_id), account = random.choice(held)
        session, epoch = account.holder
        offset = random.choice((account.front, random.randint(0, self.ends[queue_id])))
        return FailMessageCommand(
            group=group,
            session=session,
            topic="t",
            incarnation=self.t,
            queue_id=queue_id,
            epoch=epoch + (random.random() < 0.1),
            offset=offset,
            failures=account.failures(offset) + random.choice((0, 1, 1, 1, 2)),
        )

    def _back(self, failed: FailMessageCommand, ahead: Counter[tuple[str, int]]) -> Unit:
        places = [(SCHEDULE_TOPIC, each) for each in WAITING]
        place = self.random.choice([*places, (DEAD, 0)] if failed.group == "g" else places)
        command = SendBackCommand(
            group=failed.group,
            session=failed.session,
            topic=failed.topic,
            incarnation=failed.incarnation,
            queue_id=failed.queue_id,
            epoch=failed.epoch,
            offset=failed.offset,
        )
        return self._placed(ahead, *place), Command(send_back=command)

    def _fire(self, ahead: Counter[tuple[str, int]]) -> Unit:
        queue_id = self.random.choice(WAITING)
        incarnation, records = self.incarnations[SCHEDULE_TOPIC], self.random.randint(1, 2)
        first = self.moved[Queue(incarnation, queue_id)] + self.random.choice((0, 0, 0, 1))
        command = FireDelayedCommand(
            incarnation=incarnation,
            queue_id=queue_id,
            first=first,
            end=first + records,
            due_ms=self.random.choice((0, 0, 0, NEVER_MS)),
        )
        return self._placed(ahead, RETRY, 0, records), Command(fire_delayed=command)

    def _resend(self, ahead: Counter[tuple[str, int]]) -> Unit:
        queue_id = self.random.randrange(len(self.ends))
        offset = self.random.randint(0, 3)
        incarnation = self.incarnations[DEAD]
        command = ResendCommand(topic=DEAD, incarnation=incarnation, queue_id=0, offset=offset)
        return self._placed(ahead, "t", queue_id), Command(resend=command)

    def _is_taken(self, unit: Unit) -> bool:
        """By what is so before the entry, its keys aside."""
        batches, command = unit
        topics = self.machine.topics
        match command.WhichOneof("body"):
            case "send_back":
                return self._is_unfinished(command.send_back)
            case "fail_message":
                failed = command.fail_message
                known = self.account(failed.group, failed.queue_id).failures(failed.offset)
                return self._is_unfinished(failed) and failed.failures == known + 1
            case "fire_delayed":
                fire = command.fire_delayed
                is_next = fire.first == self.moved[Queue(fire.incarnation, fire.queue_id)]
                end = topics[SCHEDULE_TOPIC].next_offsets[fire.queue_id]
                return is_next and fire.end <= end and fire.due_ms < NEVER_MS
            case _:
                dead = command.resend
                is_new = (dead.incarnation, dead.offset) not in self.resent
                numbers = self.machine.queue_numbers.of(self.t, len(self.ends))
                is_open = batches[0].queue_id < numbers.write_queues
                return is_new and is_open and dead.offset < topics[DEAD].next_offsets[0]

    def _is_unfinished(self, failed: SendBackCommand | FailMessageCommand) -> bool:
        account = self.account(failed.group, failed.queue_id)
        is_held = account.holder == (failed.session, failed.epoch)
        is_there = failed.offset < self.ends[failed.queue_id]
        return is_held and is_there and failed.offset not in account.finished

    def _take(self, unit: Unit) -> None:
        batches, command = unit
        match command.WhichOneof("body"):
            case "send_back":
                back, (copy,) = command.send_back, batches
                account = self.account(back.group, back.queue_id)
                assert back.offset not in account.finished, "finished, and copied as well"
                account.finish([back.offset])
                self.copies.add((Queue(copy.incarnation, copy.queue_id), copy.base))
            case "fail_message":
                failed = command.fail_message
                account = self.account(failed.group, failed.queue_id)
                account.finish(range(failed.offset))
                if account.front == failed.offset:
                    account.fail()
            case "fire_delayed":
                fire = command.fire_delayed
                self.moved[Queue(fire.incarnation, fire.queue_id)] = fire.end
            case _:
                self.resent.add((command.resend.incarnation, command.resend.offset))

    # --- what both say ----------------------------------------------------------------------------

    def check(self) -> None:
        counted = self.machine.attempts.places()
        for group in GROUPS:
            offsets = self.machine.offsets.of(group, "t")
            for queue_id in range(len(self.ends)):
                account, place = self.account(group, queue_id), Place(group, self.t, queue_id)
                lease = self.machine.leases.of(place)
                ranges = (at for each in lease.finished for at in range(*each))
                assert {*range(offsets.get(queue_id, 0)), *ranges} == account.finished, place
                assert (lease.session if lease.epoch else 0, lease.epoch) == account.holder, place
                failed = counted.get(place)
                assert (failed and failed[:2]) == account.failed, place
        for topic in (SCHEDULE_TOPIC, DEAD):
            self._check_copies(topic)
        for queue, offset in self.moved.items():
            if queue.incarnation == self.incarnations[SCHEDULE_TOPIC]:
                assert self.machine.retries.moved_to(queue) == offset
        assert self.log.voids(0, RETRY).count(False) == self.moved.total()

    def _check_copies(self, topic: str) -> None:
        """Each lies where it was put, and nothing else can be read."""
        incarnation = self.incarnations[topic]
        there = {
            (Queue(incarnation, queue_id), offset)
            for queue_id in range(len(self.machine.topics[topic].next_offsets))
            for offset, is_void in enumerate(self.log.voids(queue_id, topic))
            if not is_void
        }
        assert there == {each for each in self.copies if each[0].incarnation == incarnation}

    def end(self) -> None:
        """All go, and nothing is left of what they did."""
        for session in self.sessions.values():
            self.log.command(Command(end_sessions=EndSessionsCommand(sessions=[session])))
        for name, incarnation in self.incarnations.items():
            self.log.command(delete(incarnation, name))
        self.log.command(
            Command(forget_groups=ForgetGroupsCommand(groups=list(GROUPS), unused_ms=0))
        )
        machine, empty = self.machine, Log(KNOWN_LEVEL).machine
        assert not machine.attempts.places()
        assert not list(machine.groups)
        assert not list(machine.leases.incarnations())
        assert not list(machine.offsets.committed_groups())
        for owner in ("queue_numbers", "retries", "leases", "attempts", "topic_retention"):
            assert getattr(machine, owner) == getattr(empty, owner), f"{owner} has something left"


def about_of(command: Command) -> About:
    """What no other unit of its entry is about."""
    match command.WhichOneof("body"):
        case "send_back" | "fail_message":
            failed = command.send_back if command.HasField("send_back") else command.fail_message
            return failed.group, failed.queue_id, failed.offset
        case "fire_delayed":
            return ("level", command.fire_delayed.queue_id)
        case _:
            return ("dead letter", command.resend.offset)


HAPPENS = {
    *("send_back", "fail_message", "fire_delayed", "resend"),
    *("send_back refused", "fail_message refused", "fire_delayed refused", "resend refused"),
    *("part of a commit taken", "part of a commit refused"),
    *("resized", "a queue went", "forgotten", "restored"),
}


def test_groups_are_what_their_account_says_whatever_happens() -> None:
    happened: Counter[str] = Counter()
    for seed in range(examples(300)):
        life = Life(seed, happened)
        try:
            for _ in range(STEPS):
                life.step()
            life.end()
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
    assert set(+happened) >= HAPPENS
