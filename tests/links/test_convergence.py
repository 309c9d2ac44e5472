"""Whatever happened to two nodes' links: when it is over, both directions work again.

The product's links over the simulator's connections, and Hypothesis to decide what goes wrong.
"""

from __future__ import annotations

from functools import partial
from random import Random

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from chaos.sim.links import SimulatedLinks, Thief
from chaos.sim.loop import ProcessLoop
from chaos.sim.network import FAIR, Network, between
from chaos.sim.timeline import Actor, Timeline
from dledger.core.types import NodeId
from dledger.greeting import Identity
from dledger.links import LinkTimes
from dledger.peers import Ears, LinkPace
from dledger.wire.raft_pb2 import HeartbeatRequest, HeartbeatResponse, PeerMessage
from tests.scale import examples

NAMES = (NodeId("n1"), NodeId("n2"))
TIMES = LinkTimes.of(0.3)
US = 1_000_000
ASK_US = 50_000
# The most patient watchdog, and a second for what comes after.
BACK_WITHIN_US = int((8 * TIMES.silence_s + 1) * US)
DIALED_AT_MOST = TIMES.max_attempts
AT_MOST = DIALED_AT_MOST + TIMES.max_streams + TIMES.max_waiting


class Process:
    """One node's links, and somebody who asks the peer again and again."""

    def __init__(self, world: LinksUnderFaults, name: NodeId, number: int) -> None:
        self.peer = NAMES[1 - NAMES.index(name)]
        self.answered = 0
        self._world = world
        self._asked = 0
        self.loop = ProcessLoop(world.timeline, name, number)
        self.identity = Identity("g", name, 4096)
        pace = LinkPace(TIMES, Random(number))
        ears = Ears(self._hear, lambda _: None)
        self.links = SimulatedLinks(world.network, self.loop, self.identity, ears, pace)
        world.timeline.after(0, self.loop, self._begin)

    def _begin(self) -> None:
        self.links.start()
        self._ask()

    def _ask(self) -> None:
        self._asked += 1
        request = PeerMessage(term=self._asked, heartbeat_request=HeartbeatRequest())
        self.links.send_request(self.peer, request)
        self._world.timeline.after(ASK_US, self.loop, self._ask)

    def _hear(self, peer: NodeId, message: PeerMessage) -> None:
        if message.HasField("heartbeat_request"):
            answer = PeerMessage(term=message.term, heartbeat_response=HeartbeatResponse())
            self.links.send_answer(peer, answer)
        else:
            self.answered += 1


class LinksUnderFaults(RuleBasedStateMachine):
    """Faults in any order; the invariants hold all the time, the promise at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.timeline = Timeline()
        self.network = Network(self.timeline, Random(5), FAIR, NAMES)
        self.thieves = Actor("thieves", 50)
        self.processes = {name: Process(self, name, i + 1) for i, name in enumerate(NAMES)}
        self.boots = len(NAMES)

    def _run(self, seconds: float) -> None:
        self.timeline.run(self.timeline.now + int(seconds * US))

    @rule(seconds=st.floats(0.001, 3.0))
    def time_passes(self, seconds: float) -> None:
        self._run(seconds)

    @rule()
    def nobody_hears_of_anybody(self) -> None:
        self.network.cut.update(between(NAMES[:1], NAMES[1:]))

    @rule(links=st.sampled_from([(NAMES[0], NAMES[1]), (NAMES[1], NAMES[0])]))
    def one_direction_is_silent(self, links: tuple[NodeId, NodeId]) -> None:
        self.network.cut.add(links)

    @rule()
    def the_network_is_back(self) -> None:
        self.network.heal(FAIR)

    @rule()
    def connections_are_reset(self) -> None:
        self.network.reset(*NAMES)

    @rule(here=st.sampled_from(NAMES))
    def one_machine_gives_up(self, here: NodeId) -> None:
        self.network.give_up(here, self.processes[here].peer)

    @rule()
    def connections_are_dead_and_nobody_knows(self) -> None:
        self.network.mute(*NAMES)

    @rule(longest_s=st.floats(0.1, 4.0))
    def connecting_takes_long(self, longest_s: float) -> None:
        self.network.connecting_us = int(longest_s * US)

    @rule(victim=st.sampled_from(NAMES), times=st.integers(1, 8), seed=st.integers(0, 9))
    def somebody_calls_in_the_peers_name(self, victim: NodeId, times: int, seed: int) -> None:
        thief = Thief(self.network, self.timeline, self.thieves, Random(seed))
        for _ in range(times):
            thief.steal(self.processes[self.processes[victim].peer].identity, victim)

    @rule(name=st.sampled_from(NAMES))
    def a_process_is_killed_and_started(self, name: NodeId) -> None:
        self.processes[name].loop.die()
        self.network.on_process_gone(name)
        self.boots += 1
        self.processes[name] = Process(self, name, self.boots)

    @precondition(lambda self: not any(each.loop.paused for each in self.processes.values()))
    @rule(name=st.sampled_from(NAMES), seconds=st.floats(0.1, 8.0))
    def a_process_is_paused(self, name: NodeId, seconds: float) -> None:
        loop = self.processes[name].loop
        loop.paused = True
        self.timeline.after(int(seconds * US), self.thieves, partial(self.timeline.resume, loop))

    @invariant()
    def connections_are_bounded(self) -> None:
        """Whatever happens, nothing is forgotten that has to be ended."""
        for process in self.processes.values():
            assert process.links.dialed_to(process.peer) <= DIALED_AT_MOST
            assert process.links.connections <= AT_MOST

    @invariant()
    def nothing_crashed(self) -> None:
        for process in self.processes.values():
            assert not process.loop.crashes

    def teardown(self) -> None:
        """The faults are over, though connections that are dead stay so: both directions work
        within the bound, and go on working."""
        self.network.heal(FAIR)
        for process in self.processes.values():
            if process.loop.paused:
                self.timeline.resume(process.loop)
        begin = self.timeline.now
        before = {name: each.answered for name, each in self.processes.items()}
        assert self.timeline.run(
            begin + BACK_WITHIN_US,
            lambda: all(each.answered > before[name] for name, each in self.processes.items()),
        )
        self._run(60.0)  # long enough for everything that was abandoned to be found
        before = {name: each.answered for name, each in self.processes.items()}
        self._run(1.0)
        for name, each in self.processes.items():
            assert each.answered - before[name] >= 15
            assert each.links.links()[each.peer].connected
            assert each.links.dialed_to(each.peer) == 1
            assert each.links.connections == 2
        self.nothing_crashed()


# Without shrinking, which takes minutes here: put Phase.shrink back when there is one to look at.
LinksUnderFaults.TestCase.settings = settings(
    max_examples=examples(60),
    stateful_step_count=25,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)
TestLinksUnderFaults = LinksUnderFaults.TestCase
