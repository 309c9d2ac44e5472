"""Who is to have which queue: a group's strategies, as pure functions.

Each is given the members that want a topic and the queues, both in a fixed order, and who holds
what; it answers with a session for each queue, or none. That all members see one list, the
leader's, is what RocketMQ's lack, which choose for themselves. Names are RocketMQ's, but for
`STICKY`. Others come from the entry points of `ENTRY_POINTS`: the same on all nodes, as any may
lead.

Even ones give at most one more to one than to another, per topic (`STICKY`: over all topics that
the same members want). Who gets more is rotated by `Share.salt`, so that of many groups not always
the same member does.

Source: RocketMQ `AllocateMessageQueueAveragely`, `…AveragelyByCircle`, `…ByConfig`,
`…ConsistentHash`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Final, NamedTuple

from crc32c import crc32c

ENTRY_POINTS: Final = "dledger.strategies"
STICKY: Final = "STICKY"
VIRTUAL_NODES: Final = 10  # of one member on the ring


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


Strategy = Callable[[Share], Mapping[QueueName, int]]


class StrategyUnknown(LookupError):
    """This program has no strategy of that name."""


def share_out(strategy: Strategy, share: Share) -> dict[QueueName, int]:
    """The session of each queue that is to have one; each wants its topic.

    Raises:
        ValueError: the strategy names a session or a queue that isn't there.
    """
    wanting: dict[str, tuple[Member, ...]] = {}
    for topic in dict.fromkeys(queue.topic for queue in share.queues):
        wanting[topic] = tuple(each for each in share.members if topic in each.topics)
    alike: dict[tuple[Member, ...], list[QueueName]] = {}
    for queue in share.queues:
        alike.setdefault(wanting[queue.topic], []).append(queue)
    found: dict[QueueName, int] = {}
    for members, queues in alike.items():
        if members:
            part = Share(members, queues, share.held, share.salt)
            found |= _checked(strategy(part), part)
    return found


def _checked(found: Mapping[QueueName, int], share: Share) -> Mapping[QueueName, int]:
    sessions, queues = {each.session for each in share.members}, set(share.queues)
    for queue, session in found.items():
        if queue not in queues or session not in sessions:
            raise ValueError(f"the strategy gives {queue} to session {session}")
    return found


def strategy_of(name: str) -> Strategy:
    """The strategy of that name; empty: the usual one.

    Raises:
        StrategyUnknown: there is none.
    """
    return BUILT_IN.get(name or STICKY) or _installed(name)


@cache
def _installed(name: str) -> Strategy:
    """What another package brings along. One that can't be had now isn't kept: it may be later."""
    try:
        (found,) = entry_points(group=ENTRY_POINTS, name=name)
        strategy: Strategy = found.load()
    except Exception as error:  # whatever somebody else's module does as it is loaded
        raise StrategyUnknown(name) from error
    return strategy


# --- the strategies ----------------------------------------------------------------------------


def sticky(share: Share) -> dict[QueueName, int]:
    """Even, and as few queues move as that takes."""
    held: dict[int, list[QueueName]] = {each.session: [] for each in share.members}
    for queue in share.queues:
        if share.held.get(queue) in held:
            held[share.held[queue]].append(queue)
    least, more = divmod(len(share.queues), len(share.members))
    # Who has more than others keeps more; after that it goes round.
    rotated = _rotated([each.session for each in share.members], share.salt)
    rotated.sort(key=lambda session: -len(held[session]))
    quota = {session: least + (at < more) for at, session in enumerate(rotated)}
    found = {queue: s for s, queues in held.items() for queue in queues[: quota[s]]}
    free = iter([queue for queue in share.queues if queue not in found])
    for session in rotated:
        for _ in range(quota[session] - min(len(held[session]), quota[session])):
            found[next(free)] = session
    return found


def averagely(share: Share) -> dict[QueueName, int]:
    """Each gets neighbouring queues of a topic."""
    found: dict[QueueName, int] = {}
    for queues, sessions in _by_topic(share):
        least, more = divmod(len(queues), len(sessions))
        at = 0
        for position, session in enumerate(sessions):
            count = least + (position < more)
            found |= dict.fromkeys(queues[at : at + count], session)
            at += count
    return found


def by_circle(share: Share) -> dict[QueueName, int]:
    """Queues of a topic are dealt out like cards."""
    return {
        queue: sessions[at % len(sessions)]
        for queues, sessions in _by_topic(share)
        for at, queue in enumerate(queues)
    }


def by_configuration(share: Share) -> dict[QueueName, int]:
    """Each gets the queues that it names; of two that name the same one, the first by name. What
    nobody names nobody has."""
    found: dict[QueueName, int] = {}
    for queue in share.queues:
        wanting = (each.session for each in share.members if queue in each.choices)
        session = next(wanting, None)
        if session is not None:
            found[queue] = session
    return found


def consistent_hash(share: Share) -> dict[QueueName, int]:
    """The member that comes first on a ring of hashes, from the queue's on: who comes and goes
    moves only queues of its own; not even."""
    ring = sorted(
        (_hashed(f"{each.name}-{node}"), each.name, each.session)
        for each in share.members
        for node in range(VIRTUAL_NODES)
    )
    points = [point for point, *_ in ring]
    return {
        queue: ring[bisect_right(points, _hashed(f"{queue.topic}-{queue.queue_id}")) % len(ring)][2]
        for queue in share.queues
    }


BUILT_IN: Final[Mapping[str, Strategy]] = {
    STICKY: sticky,
    "AVG": averagely,
    "AVG_BY_CIRCLE": by_circle,
    "CONFIG": by_configuration,
    "CONSISTENT_HASH": consistent_hash,
}


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


def _hashed(text: str) -> int:
    """Spread well: neighbouring names must not be neighbours on a ring."""
    value = crc32c(text.encode())
    return value * 0x9E3779B1 & 0xFFFFFFFF
