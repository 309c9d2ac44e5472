"""Who is to have which queue: a group's strategies, as pure functions.

Each is given the members that want a topic and the queues, both in a fixed order, and who holds
what; it answers with a session for each queue, or none. That all members see one list, the
leader's, is what RocketMQ's lack, which choose for themselves. Names are RocketMQ's, but for
`STICKY`. Others come from the entry points of `ENTRY_POINTS`: the same on all nodes, as any may
lead.

A group may have 65,536 queues and 10,000 members, so each works in steps
(`broker.leader.groups.steps`). So may one from another package; one that answers at once is asked
in one turn, however long it takes, and the leader says so where that is long.

Even ones give at most one more to one than to another, per topic (`STICKY`: over all topics that
the same members want). Who gets more is rotated by `Share.salt`, so that of many groups not always
the same member does.

Source: RocketMQ `AllocateMessageQueueAveragely`, `…AveragelyByCircle`, `…ByConfig`,
`…ConsistentHash`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from itertools import chain, repeat
from math import inf
from time import monotonic
from typing import Final, NamedTuple

import structlog
from crc32c import crc32c

from broker.leader.groups.steps import STEP, Steps

ENTRY_POINTS: Final = "dledger.strategies"
LOOK_AGAIN_S: Final = 60.0  # at what is installed
STICKY: Final = "STICKY"
VIRTUAL_NODES: Final = 10  # of one member on the ring
ARCS: Final = 256  # of the ring, each put in order by itself

log = structlog.get_logger(__name__)


class QueueName(NamedTuple):
    """A queue of a topic."""

    topic: str
    queue_id: int


@dataclass(frozen=True, slots=True)
class Member:
    """A session that may have queues; `choices`: those that it names."""

    session: int
    name: str
    topics: frozenset[str]
    choices: frozenset[QueueName] = frozenset()


@dataclass(frozen=True, slots=True)
class Share:
    """What is to be shared out, among whom: members by name, queues by topic and number.

    Attributes:
        held: who has which queue now, of these members.
        salt: the same for a group and broker group, another one for others.
    """

    members: Sequence[Member]
    queues: Sequence[QueueName]
    held: Mapping[QueueName, int]
    salt: int = 0


Given = Mapping[QueueName, int]
Strategy = Callable[[Share], Given | Steps[Given]]


class StrategyUnknown(LookupError):
    """This program has no strategy of that name."""


def share_out(strategy: Strategy, share: Share) -> Steps[dict[QueueName, int]]:
    """The session of each queue that is to have one; each wants its topic.

    Raises:
        ValueError: the strategy names a session or a queue that isn't there.
    """
    kinds = list(dict.fromkeys(each.topics for each in share.members))
    alike: dict[tuple[frozenset[str], ...], list[QueueName]] = {}  # by who wants them
    wanting: dict[str, list[QueueName]] = {}
    for at, queue in enumerate(share.queues):
        if queue.topic not in wanting:
            takers = tuple(kind for kind in kinds if queue.topic in kind)
            wanting[queue.topic] = alike.setdefault(takers, [])
        wanting[queue.topic].append(queue)
        if not at % STEP:
            yield
    found: dict[QueueName, int] = {}
    for takers, queues in alike.items():
        members = [each for each in share.members if each.topics in takers]
        yield
        if members:
            part = Share(members, queues, share.held, share.salt)
            yield from _add(found, (yield from _given(strategy, part)), part)
    return found


def _given(strategy: Strategy, share: Share) -> Steps[Given]:
    given = strategy(share)
    if isinstance(given, Generator):
        return (yield from given)
    yield
    return given


def _add(found: dict[QueueName, int], given: Given, share: Share) -> Steps[None]:
    sessions, queues = {each.session for each in share.members}, set(share.queues)
    for at, (queue, session) in enumerate(given.items()):
        if queue not in queues or session not in sessions:
            raise ValueError(f"the strategy gives {queue} to session {session}")
        found[queue] = session
        if not at % STEP:
            yield


def strategy_of(name: str) -> Strategy:
    """The strategy of that name; empty: the usual one.

    Raises:
        StrategyUnknown: there is none.
    """
    return BUILT_IN.get(name or STICKY) or INSTALLED.of(name)


class Installed:
    """What other packages bring along. A look at them reads the names of every package that there
    is, in milliseconds, and whoever joins may name anything: so one is taken once a minute at most,
    and what it doesn't show, or can't be loaded, isn't asked for until the next one. A look that
    fails shows nothing: one package whose names can't be read is enough for that."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._loaded: dict[str, Strategy] = {}
        self._found: dict[str, EntryPoint] = {}  # and neither loaded nor tried since the last look
        self._next_look_s = -inf

    def of(self, name: str) -> Strategy:
        """The strategy of that name.

        Raises:
            StrategyUnknown: there is none that can be had.
        """
        if name not in self._loaded:
            self._look()
            try:
                self._loaded[name] = self._found.pop(name).load()
            except Exception as error:  # whatever somebody else's module does as it is loaded
                raise StrategyUnknown(name) from error
        return self._loaded[name]

    def _look(self) -> None:
        if self._clock() < self._next_look_s:
            return
        self._next_look_s = self._clock() + LOOK_AGAIN_S
        try:
            every = tuple(entry_points(group=ENTRY_POINTS))
        except Exception as error:  # noqa: BLE001  any installed package may be broken in any way
            log.warning("strategies_not_looked_at", reason=repr(error))
            every = ()
        names = Counter(each.name for each in every)  # one that is given twice is nobody's
        self._found = {each.name: each for each in every if names[each.name] == 1}


INSTALLED: Final = Installed()


# --- the strategies ----------------------------------------------------------------------------


def sticky(share: Share) -> Steps[Given]:
    """Even, and as few queues move as that takes."""
    held: dict[int, list[QueueName]] = {each.session: [] for each in share.members}
    for at, queue in enumerate(share.queues):
        if share.held.get(queue) in held:
            held[share.held[queue]].append(queue)
        if not at % STEP:
            yield
    least, more = divmod(len(share.queues), len(share.members))
    # Who has more than others keeps more; after that it goes round.
    rotated = _rotated([each.session for each in share.members], share.salt)
    rotated.sort(key=lambda session: -len(held[session]))
    quota = {session: least + (at < more) for at, session in enumerate(rotated)}
    yield
    kept = ((queue, s) for s, queues in held.items() for queue in queues[: quota[s]])
    found = yield from _gathered(kept)
    free = (queue for queue in share.queues if queue not in found)
    missing = ((s, quota[s] - min(len(held[s]), quota[s])) for s in rotated)
    for at, (queue, session) in enumerate(zip(free, _dealt(missing), strict=False)):
        found[queue] = session
        if not at % STEP:
            yield
    return found


def averagely(share: Share) -> Steps[Given]:
    """Each gets neighbouring queues of a topic."""
    return _gathered(
        each
        for queues, sessions in _by_topic(share)
        for each in zip(queues, _dealt(_evenly(len(queues), sessions)), strict=True)
    )


def by_circle(share: Share) -> Steps[Given]:
    """Queues of a topic are dealt out like cards."""
    return _gathered(
        (queue, sessions[at % len(sessions)])
        for queues, sessions in _by_topic(share)
        for at, queue in enumerate(queues)
    )


def by_configuration(share: Share) -> Steps[Given]:
    """Each gets the queues that it names; of two that name the same one, the first by name. What
    nobody names nobody has."""
    named: dict[QueueName, int] = {}
    for member in share.members:
        for queue in member.choices:
            named.setdefault(queue, member.session)
        if member.choices:
            yield
    return (yield from _gathered((queue, named[queue]) for queue in share.queues if queue in named))


def consistent_hash(share: Share) -> Steps[Given]:
    """The member that comes first on a ring of hashes, from the queue's on: who comes and goes
    moves only queues of its own; not even."""
    arcs: list[list[tuple[int, str, int]]] = [[] for _ in range(ARCS)]
    for at, each in enumerate(share.members):
        for node in range(VIRTUAL_NODES):
            point = _hashed(f"{each.name}-{node}")
            arcs[point * ARCS >> 32].append((point, each.name, each.session))
        if not at * VIRTUAL_NODES % STEP:
            yield
    ring: list[tuple[int, str, int]] = []
    count = 0  # of points since others had their turn
    for arc in arcs:
        ring += sorted(arc)
        count += len(arc)
        if count >= STEP:  # a small ring is no more work for its arcs
            count = 0
            yield
    points = [point for point, *_ in ring]
    yield
    return (
        yield from _gathered(
            (queue, ring[bisect_right(points, _point(queue)) % len(ring)][2])
            for queue in share.queues
        )
    )


BUILT_IN: Final[Mapping[str, Strategy]] = {
    STICKY: sticky,
    "AVG": averagely,
    "AVG_BY_CIRCLE": by_circle,
    "CONFIG": by_configuration,
    "CONSISTENT_HASH": consistent_hash,
}


def _gathered(each: Iterable[tuple[QueueName, int]]) -> Steps[dict[QueueName, int]]:
    found: dict[QueueName, int] = {}
    for at, (queue, session) in enumerate(each):
        found[queue] = session
        if not at % STEP:
            yield
    return found


def _evenly(count: int, sessions: Sequence[int]) -> Iterator[tuple[int, int]]:
    """How many of `count` each gets: those in front one more, where it can't be the same."""
    least, more = divmod(count, len(sessions))
    return ((session, least + (at < more)) for at, session in enumerate(sessions[:count]))


def _dealt(counts: Iterable[tuple[int, int]]) -> Iterator[int]:
    """Each session so many times."""
    return chain.from_iterable(repeat(session, count) for session, count in counts)


def _by_topic(share: Share) -> Iterable[tuple[list[QueueName], list[int]]]:
    """The queues of each topic, and the sessions, from another one on each time."""
    topics: dict[str, list[QueueName]] = {}
    for queue in share.queues:
        topics.setdefault(queue.topic, []).append(queue)
    sessions = [each.session for each in share.members]
    return [
        (queues, _rotated(sessions, share.salt + _hashed(topic)))
        for topic, queues in topics.items()
    ]


def _rotated(sessions: list[int], salt: int) -> list[int]:
    at = salt % len(sessions)
    return sessions[at:] + sessions[:at]


def _point(queue: QueueName) -> int:
    return _hashed(f"{queue.topic}-{queue.queue_id}")


def _hashed(text: str) -> int:
    """Spread well: neighbouring names must not be neighbours on a ring."""
    value = crc32c(text.encode())
    return value * 0x9E3779B1 & 0xFFFFFFFF
