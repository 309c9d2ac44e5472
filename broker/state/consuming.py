"""What commands about consumer groups do to several owners: groups, leases and offsets together.

The machine gives this the commands of ADR 55, as it would do itself: only the machine and this know
more than one owner. Each queue that a command names is judged by itself; which were refused, and
why, is one value.

    command         what it does
    join            groups; what a session that ended for it held is free, as without a goodbye
    end sessions    groups, then leases; attempts, of those without a goodbye (ADR 63)
    grant leases    offsets, where the group has no start yet, then leases
    commit leases   offsets (the frontier), then leases (what is finished above it); attempts,
                    whether the message in front is begun
    forget groups   groups, then offsets, leases and attempts
    (a recovery)    groups, then leases: all sessions are over
    commit offsets  offsets, if the group has no session; nothing finished above them is left

Whatever moves a frontier tells attempts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from broker.state.attempts import Attempts, careful_from
from broker.state.filters import filters_of
from broker.state.groups import Groups, JoinWish, Session, Settings, Start
from broker.state.leases import Leases, Place, Ranges, ranges_of, united
from broker.state.offsets import OffsetCommit, Offsets
from broker.state.refusals import (
    GroupHasMembers,
    Malformed,
    OffsetOutOfRange,
    PartlyRefused,
    QueueNotFound,
    QueueRefusal,
    QueueRefused,
    Refusal,
    SessionUnknown,
    StartMissing,
    TopicNotFound,
    TopicNotTaken,
    TopicReplaced,
)
from broker.state.topics import TopicRef, TopicState
from dledger.core.errors import InvariantViolation
from dledger.level import DELIVERY_LEVEL, TOPIC_RULES_LEVEL
from dledger.records.reserved import retry_topic
from dledger.wire.commands_pb2 import (
    CommitLeasesCommand,
    EndSessionsCommand,
    ForgetGroupsCommand,
    GrantLeasesCommand,
    GroupSettings,
    JoinGroupCommand,
    QueueGrant,
    QueueProgress,
    TopicGrants,
    TopicProgress,
)

Meant = Callable[[TopicRef], TopicState | TopicNotFound | TopicReplaced]


@dataclass(frozen=True, slots=True)
class At:
    """The entry that is applied, and as of it the lived time and the level in use."""

    index: int
    lived_ms: int
    level: int = DELIVERY_LEVEL


class Consuming:
    """The four owners, and how to find a topic. `changed` is told each group of which something
    has changed that its members care for."""

    def __init__(
        self,
        groups: Groups,
        leases: Leases,
        offsets: Offsets,
        attempts: Attempts,
        meant: Meant,
        changed: Callable[[str], None],
    ) -> None:
        self._groups = groups
        self._leases = leases
        self._attempts = attempts
        self._offsets = offsets
        self._meant = meant
        self._changed = changed

    # --- members ------------------------------------------------------------------------------

    def join(self, command: JoinGroupCommand, at: At) -> Refusal | None:
        """The member has a session; or why not."""
        if int(command.settings.start) not in set(map(int, Start)):
            return Malformed(f"a group can't start at {command.settings.start}")
        before = self._groups.join(wish_of(command, at.level), at.index, at.lived_ms)
        if before is not None and not isinstance(before, Session):
            return before
        if before is not None:
            self._vanished(before, at)
            self._leases.on_session_ended(before.session)
        self._changed(command.group)
        return None

    def end(self, command: EndSessionsCommand, at: At) -> None:
        """The sessions are over, and what they held is free."""
        self._end(command.sessions, at, frozenset(command.vanished))

    def on_recovered(self, at: At) -> None:
        """The group of brokers goes on from a survivor's log, which may end before what members
        were given: all sessions are over. Frontiers and finished ranges stay, as they are of this
        log and within its queues."""
        self._end(self._groups.sessions(), at)

    def _end(self, sessions: Iterable[int], at: At, vanished: frozenset[int] = frozenset()) -> None:
        for session in sessions:
            ended = self._groups.end(session, at.lived_ms)
            if ended is not None:
                if session in vanished:
                    self._vanished(ended, at)
                self._leases.on_session_ended(session)
                self._changed(ended.group)

    def _vanished(self, session: Session, at: At) -> None:
        """Its member said no goodbye: what it had at the front of its queues may have killed it, or
        one of them did that is known to have been all that it was at work on."""
        if at.level < TOPIC_RULES_LEVEL:
            return
        held = self._leases.held_by(session.session)
        topics = self._topics_of(session.group) if held else {}
        careful = self._careful_from(session.group)
        for place in held:
            topic = topics.get(place.incarnation)
            if topic is None:
                continue  # it is none of the group's any more
            frontier = self._offsets.of(place.group, topic.name)[place.queue_id]
            if frontier < topic.next_offsets[place.queue_id]:
                self._attempts.vanish(place, frontier, self._leases.of(place).epoch, careful)

    def _careful_from(self, name: str) -> int:
        group = self._groups.get(name)
        assert group is not None
        return careful_from(is_orderly=group.settings.is_orderly)

    def _topics_of(self, name: str) -> dict[int, TopicState]:
        """Those that the group's members may hold queues of, by incarnation."""
        group = self._groups.get(name)
        assert group is not None
        names = {topic for each in group.versions.values() for topic in each.topics}
        found = (self._meant(TopicRef(topic)) for topic in (*sorted(names), retry_topic(name)))
        return {each.incarnation: each for each in found if isinstance(each, TopicState)}

    def forget(self, command: ForgetGroupsCommand, at: At) -> None:
        """Those that nobody has used for so long are gone, with all that they committed."""
        for name in self._groups.forget(command.groups, at.lived_ms, command.unused_ms):
            self._offsets.on_group_forgotten(name)
            self._leases.on_group_forgotten(name)
            self._attempts.on_group_forgotten(name)
            self._changed(name)

    # --- leases -------------------------------------------------------------------------------

    def grant(self, command: GrantLeasesCommand, at: At) -> Refusal | None:
        """Each queue is held by whom the command names, if that can be."""
        refused: list[QueueRefused] = []
        for each in command.topics:
            for grant, why in self._grant_in(command.group, each, at.index):
                refused.append(QueueRefused(each.topic, each.incarnation, grant.queue_id, why))
        self._changed(command.group)
        return PartlyRefused(tuple(refused)) if refused else None

    def _grant_in(
        self, group: str, grants: TopicGrants, index: int
    ) -> list[tuple[QueueGrant, QueueRefusal]]:
        """What of one topic is refused; the rest is done."""
        topic = self._meant(TopicRef(grants.topic, grants.incarnation))
        if not isinstance(topic, TopicState):
            return [(grant, topic) for grant in grants.grants]
        no_start = self._start(group, topic, grants)
        refused: list[tuple[QueueGrant, QueueRefusal]] = []
        for grant in grants.grants:
            why = no_start or self._grant(group, topic, grant, index)
            if why is not None:
                refused.append((grant, why))
        return refused

    def _start(self, group: str, topic: TopicState, grants: TopicGrants) -> QueueRefusal | None:
        """The group has a start in all queues of the topic that the command has starts for."""
        started = self._leases.started(group, topic.incarnation)
        starts, ends = grants.starts, topic.next_offsets
        if not starts or grants.first_start != started:
            return None  # another command has said so before
        if started + len(starts) > len(ends):
            return QueueNotFound(topic.name, started + len(starts) - 1, len(ends))
        known = self._offsets.of(group, topic.name)
        missing = tuple(
            (queue_id, offset)
            for queue_id, offset in enumerate(starts, started)
            if queue_id not in known
        )
        refusal = self._put(group, topic, missing) if missing else None
        if refusal is None:
            self._leases.start(group, topic.incarnation, started + len(starts))
        return refusal

    def _put(
        self, group: str, topic: TopicState, offsets: tuple[tuple[int, int], ...]
    ) -> QueueRefusal | None:
        commit = OffsetCommit(group, topic.name, offsets, is_reset=False)
        refusal = self._offsets.commit(commit, topic.next_offsets)
        if refusal is None:
            self._on_frontiers(group, topic, (queue_id for queue_id, _ in offsets))
        return refusal

    def _on_frontiers(self, group: str, topic: TopicState, queues: Iterable[int]) -> None:
        committed = self._offsets.of(group, topic.name)
        for queue_id in queues:
            place = Place(group, topic.incarnation, queue_id)
            self._attempts.on_frontier(place, committed[queue_id])

    def _grant(
        self, group: str, topic: TopicState, grant: QueueGrant, index: int
    ) -> QueueRefusal | None:
        place = Place(group, topic.incarnation, grant.queue_id)
        if grant.queue_id >= self._leases.started(group, topic.incarnation):
            return StartMissing(grant.queue_id)
        if grant.session:
            session = self._groups.session(grant.session)
            if session is None or session.group != group:
                return SessionUnknown(grant.session)
            if not self._groups.takes(session, topic.name):
                return TopicNotTaken(topic.name)
        return self._leases.grant(place, grant.session, grant.former_epoch, index)

    # --- commits ------------------------------------------------------------------------------

    def commit(self, command: CommitLeasesCommand, at: At) -> Refusal | None:
        """Each queue that the session holds by the epoch it names is so far; others are not."""
        session = self._groups.session(command.session)
        if session is None or session.group != command.group:
            return SessionUnknown(command.session)
        refused: list[QueueRefused] = []
        released = False
        for each in command.topics:
            for queue, why in self._progress(command, each):
                refused.append(QueueRefused(each.topic, each.incarnation, queue.queue_id, why))
            released = released or any(queue.release for queue in each.queues)
        self._groups.use(command.group, at.lived_ms)
        if released:
            self._changed(command.group)
        return PartlyRefused(tuple(refused)) if refused else None

    def _progress(
        self, command: CommitLeasesCommand, progress: TopicProgress
    ) -> list[tuple[QueueProgress, QueueRefusal]]:
        """What of one topic is refused; the rest is done."""
        topic = self._meant(TopicRef(progress.topic, progress.incarnation))
        if not isinstance(topic, TopicState):
            return [(queue, topic) for queue in progress.queues]
        refused: list[tuple[QueueProgress, QueueRefusal]] = []
        frontiers: dict[int, int] = {}
        begun: dict[int, int] = {}  # by which epoch the message in front is
        known = self._offsets.of(command.group, topic.name)
        for queue in progress.queues:
            place = Place(command.group, topic.incarnation, queue.queue_id)
            before = frontiers.get(queue.queue_id, known.get(queue.queue_id, 0))
            done = self._judged(place, command.session, queue, topic, before)
            if isinstance(done, tuple):
                frontiers[queue.queue_id], finished = done
                begun[queue.queue_id] = queue.epoch if queue.begun else 0
                self._leases.progress(place, finished)
                if queue.release:
                    self._leases.release(place)
            else:
                refused.append((queue, done))
        if frontiers:
            self._put(command.group, topic, tuple(frontiers.items()))
        for queue_id, epoch in begun.items():
            self._attempts.begin(Place(command.group, topic.incarnation, queue_id), epoch)
        return refused

    def _judged(
        self, place: Place, session: int, queue: QueueProgress, topic: TopicState, before: int
    ) -> tuple[int, Ranges] | QueueRefusal:
        """Frontier and finished ranges of the queue from now on; or why they stay."""
        refusal = self._leases.refusal_of(place, session, queue.epoch)
        if refusal is not None:
            return refusal
        told = ranges_of(queue.frontier, queue.finished)
        if told is None:
            return Malformed("finished ranges are runs of one or more, in pairs")
        last = told[-1][1] if told else queue.frontier
        if last > topic.next_offsets[queue.queue_id]:
            return OffsetOutOfRange(topic.name, queue.queue_id, last)
        done: Ranges = ((0, queue.frontier),) if queue.frontier else ()
        frontier, finished = united(before, self._leases.of(place).finished, (*done, *told))
        return self._leases.too_many(place, finished) or (frontier, finished)

    # --- offsets ------------------------------------------------------------------------------

    def commit_offsets(self, commit: OffsetCommit, topic: TopicState, at: At) -> Refusal | None:
        """As `Offsets.commit`, of a group that has no session."""
        if self._groups.members(commit.group):
            return GroupHasMembers(commit.group)
        refusal = self._offsets.commit(commit, topic.next_offsets)
        if refusal is None:
            self._groups.use(commit.group, at.lived_ms)
            queues = [queue_id for queue_id, _ in commit.wanted]
            self._leases.on_committed(commit.group, topic.incarnation, queues)
            self._on_frontiers(commit.group, topic, queues)
        return refusal

    def begin(self, at: At) -> None:
        """From here on it is known when a group was used last: as of now, all that there are. By
        name: who began with a snapshot has them in another order than who applied everything."""
        for name in sorted(self._offsets.committed_groups()):
            self._groups.use(name, at.lived_ms)

    def on_topic_deleted(self, topic: TopicState, groups: Iterable[str]) -> None:
        """The topic is gone, and what `groups` had committed in it."""
        for name in (*groups, *self._leases.groups(topic.incarnation)):
            if not self._offsets.has(name):
                self._groups.on_nothing_committed(name)
        self._leases.on_topic_deleted(topic.incarnation)
        self._attempts.on_topic_deleted(topic.incarnation)

    # --- invariants ---------------------------------------------------------------------------

    def check_invariants(self, topics: Iterable[TopicState], *, is_counted: bool) -> None:
        """What holds between the owners.

        Args:
            topics: all there are.
            is_counted: whether it is known yet when groups were used.

        Raises:
            InvariantViolation: names what doesn't hold.
        """
        named = {topic.incarnation: topic for topic in topics}
        known = {group.name for group in self._groups if group.created}
        counted = {group.name for group in self._groups}
        if is_counted and counted != known | set(self._offsets.committed_groups()):
            raise InvariantViolation("groups that have committed are not those that are known")
        for incarnation in self._leases.incarnations():
            topic = named.get(incarnation)
            if topic is None:
                raise InvariantViolation(f"leases are in topic {incarnation}, which is gone")
            for group in self._leases.groups(incarnation):
                if group not in known:
                    raise InvariantViolation(f"group {group}, which nobody joined, has leases")
                self._check_in_topic(group, topic)

        for place, failed in self._attempts.places().items():
            topic = named.get(place.incarnation)
            committed = {} if topic is None else self._offsets.of(place.group, topic.name)
            ends = () if topic is None else topic.next_offsets
            at_front = committed.get(place.queue_id) == failed.offset
            if not at_front or failed.offset >= ends[place.queue_id]:
                raise InvariantViolation(f"{failed} is not at the front of {place}")

    def _check_in_topic(self, group: str, topic: TopicState) -> None:
        started = self._leases.started(group, topic.incarnation)
        offsets, ends = self._offsets.of(group, topic.name), topic.next_offsets
        if started > len(ends) or any(queue not in offsets for queue in range(started)):
            raise InvariantViolation(f"{group} has no start in {topic.name}, of {started} queues")
        for queue_id, lease in self._leases.in_topic(group, topic.incarnation).items():
            at = f"{group} in {topic.name}/{queue_id}: {lease}"
            if lease.session:
                session = self._groups.session(lease.session)
                if session is None or session.group != group:
                    raise InvariantViolation(f"{at}, whose session is over")
            if lease.finished and not (
                offsets[queue_id] < lease.finished[0][0] and lease.finished[-1][1] <= ends[queue_id]
            ):
                raise InvariantViolation(
                    f"{at}, frontier {offsets[queue_id]}, end {ends[queue_id]}"
                )


def wish_of(command: JoinGroupCommand, level: int) -> JoinWish:
    """The command as a value; what is of a level above `level` isn't in it, as the members that
    know no more haven't it either."""
    settings = settings_of(command.settings)
    if level >= DELIVERY_LEVEL:
        settings = replace(settings, tags=filters_of(command.settings))
    else:
        settings = replace(settings, max_attempts=0)
    return JoinWish(
        command.group,
        command.member,
        command.token,
        settings,
        tuple((each.topic, tuple(each.queue_ids)) for each in command.queues),
    )


def settings_of(wire: GroupSettings) -> Settings:
    """Settings as a value; the start must be one of `Start`."""
    return Settings(
        wire.version,
        wire.broadcast,
        wire.orderly,
        wire.strategy,
        Start(wire.start),
        wire.start_time_ms,
        tuple(wire.topics),
        wire.max_attempts,
    )
