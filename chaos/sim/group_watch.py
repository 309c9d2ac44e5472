"""Sessions in the one true time: whom a leader ends must have been silent, or have gone; and whom
it proposes to give queues to must be there to read them.

Looks at the leader after each of its events and changes nothing. The leader's own time is ticks,
and a member's words may still be on their way; so a session that ends too early is told only where
no delay and no drift of clocks excuses it (`MARGIN`, `ARRIVAL_US`).

    a session ends                            which is right if
    that said goodbye, or whose member came   always
    again with another token
    at a leader that began a moment ago       never before its members may be back
    of an orderly group                       the member has said nothing for a session
    of another one, its stream is up          the same
    of another one, its stream is down        the stream was down for a while

    a queue is granted to a session           which is right if
    at the leader that proposed it            a stream of it was there
    of messages that failed                   and its member has said that it works on those
"""

from __future__ import annotations

from chaos.sim.defect import Defect
from chaos.sim.machine import Life
from chaos.sim.members import Crew
from chaos.sim.node import SimNode
from chaos.sim.plan import MEMBER_PACE
from dledger.reading.compound import commands_in
from dledger.reading.entry import parse_header
from dledger.records.reserved import retry_topic
from dledger.wire.commands_pb2 import Command, GrantLeasesCommand

MARGIN = 0.45  # of each time: clocks drift, ticks are counted in whole ones
ARRIVAL_US = 250_000  # within which a word has arrived


class GroupWatch:
    """The crews of one run."""

    def __init__(self, crews: dict[str, Crew]) -> None:
        self._crews = crews
        self._since: dict[str, tuple[int, int]] = {}  # by node: the term it serves in, since when
        self._ending: dict[str, frozenset[int]] = {}  # by node: whose end it has proposed
        self._here: dict[str, frozenset[int]] = {}  # by node: who had a stream after its last event
        self._ends: dict[str, int] = {}  # by node: the last entry by then

    def after_event(self, node: SimNode, now_us: int) -> None:
        """The sessions that this leader ends were to end, and those that it gives queues are there.

        Raises:
            Defect: one wasn't.
        """
        life = node.life
        if life is None or not life.replica.leadership.serving:
            self._since.pop(node.name, None)
            self._ending.pop(node.name, None)
            self._here.pop(node.name, None)
            return
        replica, term = life.replica, life.core.term
        if self._since.get(node.name, (0, 0))[0] != term:
            self._since[node.name] = term, now_us
            self._ends[node.name] = replica.log.last_index
        self._look_at_grants(node, life)
        ending = replica.groups.ending
        for number in sorted(ending - self._ending.get(node.name, frozenset())):
            session = replica.machine.groups.session(number)
            if session is not None:
                self._check(node, number, session.group, now_us)
        self._ending[node.name] = ending

    def _check(self, node: SimNode, session: int, group: str, now_us: int) -> None:
        crew = self._crews.get(group)
        said = None if crew is None else crew.said.get(session)
        if crew is None or said is None or said.has_left:
            return
        pace = MEMBER_PACE
        since_us = self._since[node.name][1]
        if now_us - since_us < MARGIN * pace.return_ms * 1000:
            self._tell(node, session, f"{now_us - since_us} us after its leader began")
        is_here = said.life is node.life and not said.stream.is_mute
        is_up = is_here and not said.stream.is_over
        if is_up or (crew.is_orderly and is_here):
            lately = [
                each
                for each in said.times_us
                if ARRIVAL_US <= now_us - each <= MARGIN * pace.session_ms * 1000
            ]
            if lately:
                self._tell(node, session, f"{now_us - lately[-1]} us after it said something")

    def _look_at_grants(self, node: SimNode, life: Life) -> None:
        """Of the entries that this event has added."""
        replica, first = life.replica, self._ends[node.name] + 1
        here = frozenset(replica.groups.attached)
        was_here = here | self._here.get(node.name, frozenset())
        self._here[node.name], self._ends[node.name] = here, replica.log.last_index
        if first > replica.log.last_index:
            return
        node.disk.is_observed = True
        frames = replica.log.read(first, replica.log.last_index)
        node.disk.is_observed = False
        at = 0
        while at < len(frames):
            header = parse_header(frames, at)
            frame = frames[at : at + header.total_size]
            at += header.total_size
            for each in commands_in(header, frame):
                command = Command.FromString(each)
                if command.HasField("grant_leases"):
                    self._check_grants(node, command.grant_leases, was_here)

    def _check_grants(
        self, node: SimNode, told: GrantLeasesCommand, was_here: frozenset[int]
    ) -> None:
        crew = self._crews.get(told.group)
        for topic in told.topics:
            is_own = topic.topic == retry_topic(told.group)
            for session in {each.session for each in topic.grants} - {0}:
                what = f"{node.name} gives session {session} queues of {topic.topic}"
                if session not in was_here:
                    raise Defect("queues for who is not here", what)
                said = None if crew is None else crew.said.get(session)
                if is_own and said is not None and not said.takes_retries:
                    raise Defect("failed messages for who leaves them", what)

    def _tell(self, node: SimNode, session: int, when: str) -> None:
        raise Defect("session ended early", f"{node.name} ended session {session} {when}")
