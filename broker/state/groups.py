"""Consumer groups: which there are, what their members agreed on, and who is a member now.

This owns groups, their settings by version, their sessions, and when each was used last. What a
member holds is `broker.state.leases`, how far it has come `broker.state.offsets`; the machine tells
those when a session or a group is gone. It must never look at a clock: used and unused is lived
time, and a session ends because an entry says so.

    state                      on                                  becomes
    no group                 join                              group of these settings; session
    group                    join, its settings                session; who is the first to say
                                                               something of tags says it for all
    group                    join, others, a higher version    those settings; session
    group                    join, others, no higher one       unchanged  (refused: GroupDiffers)
    with sessions            join, another style               unchanged  (refused: GroupHasMembers)
    session                  join, its member and token        unchanged
    session                  join, its member, another token   that session ended; another one
    session                  end                               no session
    no session, long unused  forget                            no group
    any other                forget                            unchanged

A session's id is the index of the entry that began it, and so is a group's. A group that only ever
committed offsets has no settings here, and is there for the time of its last use. Bounds: `MAX_…`.
A state without groups has no section in its snapshots, which so are those of the releases before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from types import MappingProxyType
from typing import Final

from broker.state import filters
from broker.state.errors import SnapshotDamaged, SnapshotUnknown
from broker.state.layout import (
    CHOSEN_QUEUE,
    CHOSEN_QUEUES,
    GROUP_ATTEMPTS_SECTION,
    GROUP_SETTINGS_SECTION,
    GROUPS_SECTION,
    SESSIONS_SECTION,
)
from broker.state.refusals import (
    GroupDiffers,
    GroupHasMembers,
    Malformed,
    Refusal,
    TooManyGroups,
    TooManySessions,
    TooManyVersions,
)
from broker.state.snapshot import PayloadReader, Section, pack, pack_text
from dledger.core.errors import InvariantViolation
from dledger.records.reserved import DEFAULT_ATTEMPTS, MOST_ATTEMPTS, retry_topic

SECTION: Final = "groups"
SETTINGS_SECTION: Final = "group-settings"
SESSION_SECTION: Final = "sessions"
ATTEMPTS_SECTION: Final = "group-attempts"
OWN_SECTIONS: Final = (
    SECTION,
    SETTINGS_SECTION,
    filters.SECTION,
    SESSION_SECTION,
    ATTEMPTS_SECTION,
)
VERSION: Final = 1
MAX_GROUPS: Final = 10_000  # that have settings
MAX_SESSIONS: Final = 10_000
MAX_VERSIONS: Final = 4  # of one group's settings, in use at once
MAX_TOPICS: Final = 64
MAX_CHOICES: Final = 1_024  # queues that one member names
MAX_GROUP_BYTES: Final = 119
MAX_MEMBER_BYTES: Final = 255
MAX_TOPIC_BYTES: Final = 127
MAX_STRATEGY_BYTES: Final = 64
TOKEN_SIZE: Final = 8
_MAX_VERSION: Final = (1 << 32) - 1
MAX_VERSION_STEP: Final = 1 << 31  # above those in force, of what a leader lets a member name
_GROUP: Final = GROUPS_SECTION.run("created", "used_ms", "version")
_SETTINGS: Final = GROUP_SETTINGS_SECTION.run("version", "style", "start", "start_time_ms")
_COUNT: Final = GROUP_SETTINGS_SECTION.run("topic_count")
_SESSION: Final = SESSIONS_SECTION.run("session")
_VERSION: Final = SESSIONS_SECTION.run("version")
_ATTEMPTS: Final = GROUP_ATTEMPTS_SECTION.run("version", "max_attempts")
_CHOICES: Final = SESSIONS_SECTION.run("choice_count")
_CHOICE: Final = CHOSEN_QUEUES.run("queue_count")
_QUEUE_ID: Final = CHOSEN_QUEUE.struct()


Choices = tuple[tuple[str, tuple[int, ...]], ...]  # topic, queue ids


class Start(IntEnum):
    """Where a group starts in topics that are older than itself."""

    FIRST = 0
    LAST = 1
    TIME = 2


@dataclass(frozen=True, slots=True)
class Settings:
    """What all members of a group agree on. `topics` ascend; `start_time_ms` is that of the first
    join, whatever others say."""

    version: int = 0
    is_broadcast: bool = False
    is_orderly: bool = False
    strategy: str = ""
    start: Start = Start.FIRST
    start_time_ms: int = 0
    topics: tuple[str, ...] = ()
    max_attempts: int = 0  # 0: as many as is usual
    tags: filters.Filters | None = None

    @property
    def attempts(self) -> int:
        """How often a message is tried."""
        return self.max_attempts or DEFAULT_ATTEMPTS

    @property
    def style(self) -> tuple[bool, bool]:
        """What doesn't change while there are sessions."""
        return self.is_broadcast, self.is_orderly

    def differences(self, other: Settings) -> tuple[str, ...]:
        """The names of what isn't the same in `other`; the version and the time aside."""
        names = ("is_broadcast", "is_orderly", "strategy", "start", "topics", "max_attempts")
        found = tuple(name for name in names if getattr(self, name) != getattr(other, name))
        return (*found, "tags") if filters.differ(self.tags, other.tags) else found


@dataclass(frozen=True, slots=True)
class Session:
    """A member, from its join to its end. `choices`: the queues that it wants to have, by topic."""

    session: int
    group: str
    member: str
    token: bytes
    version: int  # of the settings that it joined with
    choices: Choices = ()


@dataclass(frozen=True, slots=True)
class JoinWish:
    """Who wants to be a member of what."""

    group: str
    member: str
    token: bytes
    settings: Settings
    choices: Choices = ()


@dataclass(slots=True)
class Group:
    """A group; read only for all but `Groups`. `created` 0: it has only committed offsets."""

    name: str
    created: int = 0
    used_ms: int = 0
    version: int = 0  # of those that hold; `versions` has older ones that sessions have
    versions: dict[int, Settings] = field(default_factory=dict)
    members: dict[str, Session] = field(default_factory=dict)
    snapshots: int = field(default=0, compare=False)  # taken before this object was made

    @property
    def settings(self) -> Settings:
        """Those that hold; the group must have been joined once."""
        return self.versions[self.version]

    @property
    def has_retries(self) -> bool:
        """Whether its failed messages come again by its retry topic: in order they stay in front of
        their queue, and a group that broadcasts has no attempts."""
        return bool(self.created) and not any(self.settings.style)


NOBODY: Final[Mapping[str, Session]] = MappingProxyType({})


@dataclass(slots=True)
class Groups:
    """As of the last applied entry. Every field that is compared is replicated state or its bound.
    Who is changed after a snapshot was taken is copied first (`_own`)."""

    max_groups: int = MAX_GROUPS
    max_sessions: int = MAX_SESSIONS
    _groups: dict[str, Group] = field(default_factory=dict, init=False)
    _sessions: dict[int, Session] = field(default_factory=dict, init=False)
    _joined: int = field(default=0, init=False)  # groups that have settings
    _snapshots: int = field(default=0, init=False, compare=False)  # taken so far

    # --- reading ------------------------------------------------------------------------------

    def get(self, name: str) -> Group | None:
        """The group; None if nobody ever joined or committed, or it is forgotten."""
        return self._groups.get(name)

    def joined(self, name: str) -> Group | None:
        """The group, if it has settings."""
        group = self._groups.get(name)
        return group if group is not None and group.created else None

    def members(self, name: str) -> Mapping[str, Session]:
        """Who is in the group now, by member."""
        group = self._groups.get(name)
        return NOBODY if group is None else MappingProxyType(group.members)

    def session(self, session: int) -> Session | None:
        """The session, if it isn't over."""
        return self._sessions.get(session)

    def sessions(self) -> tuple[int, ...]:
        """Those that aren't over, in the order in which they began."""
        return tuple(self._sessions)

    def __iter__(self) -> Iterator[Group]:
        return iter(self._groups.values())

    def __len__(self) -> int:
        return self._joined

    @property
    def session_count(self) -> int:
        """Sessions of all groups."""
        return len(self._sessions)

    def forgettable(
        self,
        lived_ms: int,
        unused_ms: int,
        limit: int,
        spares: Callable[[Group], bool] = lambda _: False,
    ) -> tuple[str, ...]:
        """Some groups that may be forgotten, of those that `spares` doesn't hold; looks at all."""
        found: list[str] = []
        for group in self._groups.values():
            is_unused = not group.members and lived_ms - group.used_ms >= unused_ms
            if is_unused and not spares(group):
                found.append(group.name)
                if len(found) == limit:
                    break
        return tuple(found)

    def takes(self, session: Session, topic: str) -> bool:
        """Whether the session may hold queues of the topic: it and its group want it, the same
        messages of it, and lease."""
        group = self._groups[session.group]
        now, own = group.settings, group.versions[session.version]
        if now.is_broadcast:
            return False
        if topic == retry_topic(group.name) and group.has_retries:
            return True
        is_known = topic in own.topics and topic in now.topics
        return is_known and filters.tags_for(own.tags, topic) == filters.tags_for(now.tags, topic)

    # --- transitions --------------------------------------------------------------------------

    def join(self, wish: JoinWish, index: int, lived_ms: int) -> Refusal | Session | None:
        """The member has a session, which entry `index` began unless it had one by that token;
        or why not.

        Returns:
            The session that ended for it, None, or the refusal.
        """
        present = self._groups.get(wish.group)
        before = None if present is None else present.members.get(wish.member)
        if before is not None and before.token == wish.token:
            return None
        refusal = self._refusal_of(wish, present, before)
        if refusal is not None:
            return refusal
        group = self._own(wish.group)
        if not group.created:
            group.created = index
            self._joined += 1
        self._settle(group, wish.settings)
        if before is not None:
            self._remove(group, before)
        session = Session(index, wish.group, wish.member, wish.token, group.version, wish.choices)
        group.members[wish.member] = self._sessions[index] = session
        group.used_ms = lived_ms
        self._drop_versions(group)
        return before

    def _refusal_of(
        self, wish: JoinWish, group: Group | None, before: Session | None
    ) -> Refusal | None:
        why = malformed(wish)
        if why:
            return Malformed(why)
        if (group is None or not group.created) and self._joined >= self.max_groups:
            return TooManyGroups(self.max_groups)
        if before is None and len(self._sessions) >= self.max_sessions:
            return TooManySessions(self.max_sessions)
        if group is None or not group.created:
            return None
        differences = group.settings.differences(wish.settings)
        if wish.settings.version <= group.version:
            return GroupDiffers(wish.group, differences, group.version) if differences else None
        others = any(each is not before for each in group.members.values())
        if others and wish.settings.style != group.settings.style:
            return GroupHasMembers(wish.group)
        left = {each.version for each in group.members.values() if each is not before}
        if len(left | {wish.settings.version}) > MAX_VERSIONS:
            return TooManyVersions(wish.group, MAX_VERSIONS)
        return None

    def _settle(self, group: Group, settings: Settings) -> None:
        """The settings hold from now on, if their version is the highest."""
        if not group.versions:
            group.version = settings.version
            group.versions[settings.version] = settings
        elif settings.version > group.version:
            time_ms = group.settings.start_time_ms
            if settings.start is not group.settings.start:
                time_ms = settings.start_time_ms
            group.version = settings.version
            group.versions[settings.version] = replace(settings, start_time_ms=time_ms)
        elif group.settings.tags is None and settings.tags is not None:
            group.versions[group.version] = replace(group.settings, tags=settings.tags)

    def end(self, session: int, lived_ms: int) -> Session | None:
        """The session is over; None: it was."""
        found = self._sessions.get(session)
        if found is not None:
            group = self._own(found.group)
            self._remove(group, found)
            group.used_ms = lived_ms
            # The older ones of a version come first, so another one of it is found at once.
            if all(each.version != found.version for each in group.members.values()):
                self._drop_versions(group)
        return found

    def _remove(self, group: Group, session: Session) -> None:
        del group.members[session.member]
        del self._sessions[session.session]

    def _drop_versions(self, group: Group) -> None:
        """Settings go that nobody has, and that don't hold."""
        if len(group.versions) == 1:
            return  # those that hold
        wanted = {each.version for each in group.members.values()} | {group.version}
        if len(group.versions) > len(wanted):
            group.versions = {v: each for v, each in group.versions.items() if v in wanted}

    def use(self, name: str, lived_ms: int) -> None:
        """The group has committed something."""
        self._own(name).used_ms = lived_ms

    def _own(self, name: str) -> Group:
        """The group, made if there is none, to be changed: what a snapshot shows stays there."""
        group = self._groups.get(name)
        if group is None or group.snapshots != self._snapshots:
            group = Group(name) if group is None else replace(group)
            group.versions, group.members = group.versions.copy(), group.members.copy()
            group.snapshots = self._snapshots
            self._groups[name] = group
        return group

    def forget(self, names: Iterable[str], lived_ms: int, unused_ms: int) -> tuple[str, ...]:
        """Those that are gone: who has no session and wasn't used for so long."""
        gone: list[str] = []
        for name in names:
            group = self._groups.get(name)
            if group is not None and not group.members and lived_ms - group.used_ms >= unused_ms:
                self._delete(group)
                gone.append(name)
        return tuple(gone)

    def on_nothing_committed(self, name: str) -> None:
        """The last topic is gone in which the group had committed anything."""
        group = self._groups.get(name)
        if group is not None and not group.created:
            self._delete(group)

    def _delete(self, group: Group) -> None:
        del self._groups[group.name]
        self._joined -= group.created > 0

    # --- snapshot -----------------------------------------------------------------------------

    def snapshot(self) -> tuple[Section, ...]:
        """The groups as they are now, whatever is applied while the payloads are taken."""
        groups, sessions = tuple(self._groups.values()), tuple(self._sessions.values())
        if not groups:
            return ()
        self._snapshots += 1
        found = [Section(SECTION, VERSION, pack(map(_group_record, groups)))]
        if self._joined:
            records = (
                _settings_record(g.name, each) for g in groups for each in g.versions.values()
            )
            found.append(Section(SETTINGS_SECTION, VERSION, pack(records)))
        said = [
            (g.name, version, each.tags)
            for g in groups
            for version, each in g.versions.items()
            if each.tags is not None
        ]
        if said:
            records = (filters.filters_record(*each) for each in said)
            found.append(Section(filters.SECTION, filters.VERSION, pack(records)))
        if sessions:
            found.append(Section(SESSION_SECTION, VERSION, pack(map(_session_record, sessions))))
        wishes = [
            pack_text(g.name) + _ATTEMPTS.pack(each.version, each.max_attempts)
            for g in groups
            for each in g.versions.values()
            if each.max_attempts
        ]
        if wishes:
            found.append(Section(ATTEMPTS_SECTION, VERSION, pack(wishes)))
        return tuple(found)

    def restore(self, section: str, version: int, payloads: Iterable[bytes]) -> None:
        """One of `OWN_SECTIONS`, in their order, becomes what `snapshot` wrote.

        Raises:
            SnapshotUnknown, SnapshotDamaged: it doesn't; this object is of no use then.
        """
        if version != VERSION:
            raise SnapshotUnknown(section, version)
        step = {
            SECTION: self._restore_group,
            SETTINGS_SECTION: self._restore_settings,
            filters.SECTION: self._restore_filters,
            SESSION_SECTION: self._restore_session,
            ATTEMPTS_SECTION: self._restore_attempts,
        }[section]
        for payload in payloads:
            reader = PayloadReader(section, payload)
            while not reader.is_at_end:
                step(reader)

    def _restore_group(self, reader: PayloadReader) -> None:
        name = reader.take_text()
        if name in self._groups:
            raise SnapshotDamaged(SECTION, "each group once", name)
        created, used_ms, version = reader.take(_GROUP)
        self._groups[name] = group = Group(name, created, used_ms, version)
        self._joined += group.created > 0

    def _restore_settings(self, reader: PayloadReader) -> None:
        group = self._known(SETTINGS_SECTION, reader.take_text())
        version, style, start, time_ms = reader.take(_SETTINGS)
        strategy = reader.take_text()
        (count,) = reader.take(_COUNT)
        topics = tuple(reader.take_text() for _ in range(count))
        if start not in set(Start) or style > 3 or version in group.versions:
            raise SnapshotDamaged(SETTINGS_SECTION, "settings", (version, style, start))
        group.versions[version] = Settings(
            version, bool(style & 1), bool(style & 2), strategy, Start(start), time_ms, topics
        )

    def _restore_filters(self, reader: PayloadReader) -> None:
        for name, version, tags in filters.take_filters(reader):
            group = self._known(filters.SECTION, name)
            settings = group.versions.get(version)
            if settings is None or settings.tags is not None:
                raise SnapshotDamaged(filters.SECTION, "settings that there are", (name, version))
            group.versions[version] = replace(settings, tags=tags)

    def _restore_session(self, reader: PayloadReader) -> None:
        (number,), token = reader.take(_SESSION), reader.take_bytes(TOKEN_SIZE)
        (version,) = reader.take(_VERSION)
        group = self._known(SESSION_SECTION, reader.take_text())
        member = reader.take_text()
        (count,) = reader.take(_CHOICES)
        choices = tuple(_take_choice(reader) for _ in range(count))
        session = Session(number, group.name, member, token, version, choices)
        if number in self._sessions or member in group.members:
            raise SnapshotDamaged(SESSION_SECTION, "each session once", number)
        self._sessions[number] = group.members[member] = session

    def _restore_attempts(self, reader: PayloadReader) -> None:
        group = self._known(ATTEMPTS_SECTION, reader.take_text())
        version, attempts = reader.take(_ATTEMPTS)
        settings = group.versions.get(version)
        if settings is None or settings.max_attempts or not 0 < attempts <= MOST_ATTEMPTS:
            raise SnapshotDamaged(ATTEMPTS_SECTION, "attempts of settings", (version, attempts))
        group.versions[version] = replace(settings, max_attempts=attempts)

    def _known(self, section: str, name: str) -> Group:
        group = self._groups.get(name)
        if group is None:
            raise SnapshotDamaged(section, "a group that is there", name)
        return group

    # --- invariants ---------------------------------------------------------------------------

    def check_invariants(self, applied_index: int, lived_ms: int) -> None:
        """Raises:
        InvariantViolation: names what doesn't hold.
        """
        joined = [group for group in self._groups.values() if group.created]
        if len(joined) != self._joined or self._joined > self.max_groups:
            raise InvariantViolation(f"{len(joined)} groups, {self._joined} counted")
        if len(self._sessions) > self.max_sessions:
            raise InvariantViolation(f"{len(self._sessions)} sessions")
        held = {each.session: each for g in self._groups.values() for each in g.members.values()}
        if held != self._sessions:
            raise InvariantViolation("sessions are not the members of the groups")
        for name, group in self._groups.items():
            if group.name != name or group.created > applied_index or group.used_ms > lived_ms:
                raise InvariantViolation(f"group {name!r} is {group}")
            wanted = {each.version for each in group.members.values()}
            if group.created:
                wanted.add(group.version)
            if set(group.versions) != wanted or max(wanted, default=0) != group.version:
                raise InvariantViolation(f"group {name!r} has settings {set(group.versions)}")
            for member, each in group.members.items():
                if (each.group, each.member) != (name, member) or each.session > applied_index:
                    raise InvariantViolation(f"session {each.session} is {each}")


def malformed(wish: JoinWish) -> str:
    """Why nobody may join so; empty if it is all right."""
    settings = wish.settings
    if not 0 < len(wish.group.encode()) <= MAX_GROUP_BYTES:
        return f"a group's name has 1 to {MAX_GROUP_BYTES} bytes"
    if not 0 < len(wish.member.encode()) <= MAX_MEMBER_BYTES:
        return f"a member's name has 1 to {MAX_MEMBER_BYTES} bytes"
    if len(wish.token) != TOKEN_SIZE:
        return f"a token has {TOKEN_SIZE} bytes, not {len(wish.token)}"
    if len(settings.strategy.encode()) > MAX_STRATEGY_BYTES:
        return f"a strategy's name has {MAX_STRATEGY_BYTES} bytes at most"
    if not 0 <= settings.version <= _MAX_VERSION or settings.start_time_ms < 0:
        return "versions and times are not negative"
    if not 0 < len(settings.topics) <= MAX_TOPICS:
        return f"a group has 1 to {MAX_TOPICS} topics"
    if list(settings.topics) != sorted(set(settings.topics)):
        return "topics are named in ascending order, each once"
    if any(len(topic.encode()) > MAX_TOPIC_BYTES for topic in settings.topics):
        return f"a topic's name has {MAX_TOPIC_BYTES} bytes at most"
    if settings.max_attempts > MOST_ATTEMPTS:
        return f"a message is tried {MOST_ATTEMPTS} times at most"
    return filters.malformed(settings.tags, settings.topics) or _malformed_choices(
        wish.choices, settings.topics
    )


def too_high(version: int, group: Group | None) -> str:
    """Why a leader lets no member name settings of that version; empty if it does. It is asked
    before they are in the log: there the highest version that there is would hold for good, and
    nobody could change the group's settings any more. One slip doesn't lead there."""
    in_force = 0 if group is None else group.version
    if version - in_force <= MAX_VERSION_STEP:
        return ""
    return f"version {version}: {MAX_VERSION_STEP:,} at most above {in_force}, that of the group"


def _malformed_choices(choices: Choices, topics: tuple[str, ...]) -> str:
    chosen = [topic for topic, _ in choices]
    if chosen != sorted(set(chosen)) or not set(chosen) <= set(topics):
        return "queues are chosen of the group's topics, in ascending order"
    if any(list(queues) != sorted(set(queues)) for _, queues in choices):
        return "queues are chosen in ascending order, each once"
    if sum(len(queues) for _, queues in choices) > MAX_CHOICES:
        return f"a member chooses {MAX_CHOICES} queues at most"
    return ""


def _group_record(group: Group) -> bytes:
    return pack_text(group.name) + _GROUP.pack(group.created, group.used_ms, group.version)


def _settings_record(name: str, settings: Settings) -> bytes:
    style = settings.is_broadcast | settings.is_orderly << 1
    head = _SETTINGS.pack(settings.version, style, settings.start, settings.start_time_ms)
    texts = [pack_text(topic) for topic in settings.topics]
    count = _COUNT.pack(len(texts))
    return b"".join((pack_text(name), head, pack_text(settings.strategy), count, *texts))


def _session_record(session: Session) -> bytes:
    head = _SESSION.pack(session.session) + session.token + _VERSION.pack(session.version)
    names = pack_text(session.group) + pack_text(session.member)
    choices = [
        pack_text(topic) + _CHOICE.pack(len(queues)) + b"".join(map(_QUEUE_ID.pack, queues))
        for topic, queues in session.choices
    ]
    return b"".join((head, names, _CHOICES.pack(len(choices)), *choices))


def _take_choice(reader: PayloadReader) -> tuple[str, tuple[int, ...]]:
    topic = reader.take_text()
    (count,) = reader.take(_CHOICE)
    return topic, tuple(queue_id for (queue_id,) in reader.take_many(_QUEUE_ID, count))
