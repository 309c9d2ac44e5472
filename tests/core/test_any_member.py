"""Members whose logs begin later, whose disks are replaced, and who hear what was said long ago.

The storm of `test_joint`, in which members come and go, with all that a member's log and disk may
go through: it lets its front go at any time, begins anew behind a leader's base some time after
that was offered, boots knowing what was committed, and loses its disk where the others have all
that was acknowledged. Messages of former terms and former members come late, and again. In the end
nothing acknowledged is lost, all have one log, and nothing is left in memory that waits for nobody.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from contextlib import suppress
from dataclasses import replace

from dledger.core import ProposalRefused
from dledger.core.membership import with_disk
from dledger.core.progress import PeerState
from dledger.core.raft import Raft
from dledger.core.types import (
    NO_BASE,
    NO_INDEX,
    Configuration,
    ConfigurationPlace,
    DiskId,
    EntryKind,
    EntryMeta,
    IncomingMessage,
    Index,
    LogBase,
    LogSummary,
    NodeId,
    Role,
    SnapshotOffer,
    Term,
    TermRun,
)
from tests.core.harness import Cluster, Node
from tests.core.test_chaos import OPTIONS
from tests.core.test_joint import ALL, DISK, ChurnStorm
from tests.scale import examples

NOBODY = Configuration(frozenset())
STEPS = 900
CALM_TICKS = 900
KEPT = 400  # messages of long ago


class Worn(Node):
    """A node whose log may begin later, on a disk that has a name."""

    def __init__(
        self, name: NodeId, configuration: Configuration, disk_id: DiskId, **others: object
    ) -> None:
        self.disk_id = disk_id
        self.base = NO_BASE
        self.known_commit = NO_INDEX
        super().__init__(name, configuration, **others)  # type: ignore[arg-type]

    def start(self, commit_index: Index = NO_INDEX) -> None:
        self.log = list(self.disk)
        self.outstanding = deque()
        self.is_running = True
        self.boots += 1
        self._request = None
        known = Index(max(self.base.index, min(commit_index, len(self.disk))))
        self.applied = self.disk[:known]
        self.core = Raft(
            self.node_id,
            self._configuration,
            view=self,
            rng=self.rng,
            options=self.options,
            log=self._summary(),
            hard_state=self.disk_hard_state,
            commit_index=known,
            disk=self.disk_id,
        )

    def _summary(self) -> LogSummary:
        base, kept = self.base, self.disk[self.base.index :]
        runs = [TermRun(base.index, base.term)] if base.index else []
        for each in kept:
            if not runs or runs[-1].term != each.term:
                runs.append(TermRun(each.index, each.term))
        named = tuple((each.index, each.configuration) for each in kept if each.configuration)
        return LogSummary(Index(len(self.disk)), tuple(runs), named, base)

    def let_go(self, rng: random.Random) -> None:
        """The log begins at something settled: noted on its disk, then everywhere."""
        settled = min(self.core.commit_index, self.core.durable_index)
        if settled <= self.base.index:
            return
        at = Index(rng.choice((settled, rng.randint(self.base.index + 1, settled))))
        entry = self.log[at - 1]
        named = [each for each in self.log[:at] if each.configuration is not None]
        if named:
            last = named[-1]
            assert last.configuration is not None
            place = ConfigurationPlace(last.term, last.index)
            position = 100 * at + 1
            self.base = LogBase(at, entry.term, 7, 1_000, position, place, last.configuration)
            self.core.begin_at(self.base)

    def install(self, offer: SnapshotOffer, committed: list[EntryMeta]) -> None:
        """All goes but term and vote; it begins behind the leader's base."""
        self.crash()
        self.disk, self.base = committed[: offer.base.index], offer.base
        self.writes_complete = True
        self.start()

    def term_at(self, index: int) -> int:
        return self.log[index - 1].term if 0 < index <= self.base.index else super().term_at(index)


class WornStorm(ChurnStorm):
    """See this module."""

    def __init__(self, founders: int, seed: int, happened: Counter[str]) -> None:
        super().__init__(founders, seed)
        self.own = own = random.Random(f"worn/{seed}")
        self.happened = happened
        self.options = replace(
            OPTIONS,
            pre_vote=own.random() < 0.8,
            eager_commit=own.random() < 0.3,
            check_quorum=own.random() < 0.8,
            max_append_entries=own.choice((1, 3, 1024)),
            max_inflight_appends=own.choice((1, 3)),
        )
        voters = frozenset(ALL[:founders])
        disks = tuple((each, DISK[each]) for each in ALL[:founders])
        first = Configuration(voters, disks=disks)
        entry = EntryMeta(Index(1), Term(1), 50, EntryKind.CONFIGURATION, first)
        self.cluster = Cluster(*ALL, seed=seed)
        self.worn = {each: self._node(each, DISK[each], first, entry) for each in ALL}
        self.cluster.nodes = dict(self.worn)
        self.past: list[tuple[IncomingMessage, DiskId, DiskId]] = []
        self.offers: list[tuple[NodeId, int, SnapshotOffer]] = []
        self.replaced: dict[NodeId, DiskId] = {}  # of whose disks the group isn't told yet
        self.disks = 0
        self.late, self.going = own.choice((0, 0.1, 0.4)), own.choice((0.01, 0.05, 0.3))
        self.losing, self.changing = own.choice((0, 0.1, 0.3)), own.choice((0.05, 0.3, 1))
        self.doubting, self.hurrying = own.random() < 0.5, own.choice((0, 1, 1))

    def _node(self, name: NodeId, disk: DiskId, first: Configuration, entry: EntryMeta) -> Worn:
        is_founder = name in first.voters
        return Worn(
            name,
            first if is_founder else NOBODY,
            disk,
            seed=self.own.getrandbits(32),
            options=self.options,
            entries=[entry] if is_founder else [],
            term=1 if is_founder else 0,
        )

    def act(self, what: int, rng: random.Random) -> None:
        own = self.own
        if self.past and own.random() < self.late:
            self._say_again(*own.choice(self.past))
        node = self.worn[own.choice(ALL)]
        if node.is_running and own.random() < self.going:
            node.let_go(own)
        if own.random() < 0.2:
            self._install()
        if own.random() < self.losing:
            self._replace_disk()
        if own.random() < 0.3:
            self._name_disks()
        if node.is_running and self.doubting and own.random() < 0.1:
            node.core.report_doubt(is_in_doubt=own.random() < 0.3)
            node.core.report_fitness(is_short=own.random() < 0.1)
        for _ in range(own.choice((0, 0, 4, 12)) * self.hurrying):
            self._deliver(rng)
        self.settle()
        super().act(what, rng)

    def settle(self) -> None:
        super().settle()
        for message in self.cluster.network[-8:]:
            if self.own.random() < 0.3:
                ends = self.worn[message.sender].disk_id, self.worn[message.to].disk_id
                self.past.append((message, *ends))
                if len(self.past) > KEPT:
                    self.past.pop(self.own.randrange(KEPT))
        for node in self.worn.values():
            if node.is_running:
                node.known_commit = Index(min(node.core.commit_index, node.core.durable_index))
                self.offers += [(node.node_id, node.boots, each) for each in node.offers]
            node.offers.clear()
        del self.offers[:-20]

    def _say_again(self, message: IncomingMessage, sender: DiskId, to: DiskId) -> None:
        """A message of long ago, between the disks that are there still."""
        receiver = self.worn[message.to]
        ends = self.worn[message.sender].disk_id, receiver.disk_id
        if receiver.is_running and ends == (sender, to):
            self.happened["late"] += 1
            self.cluster.network += receiver.step(message)
            self.settle()

    def _crash_or_restart(self, node: Node, rng: random.Random) -> None:
        if not node.is_running and self.own.random() < 0.5:
            self.checker.on_restart(node.name)
            node.start(Index(self.own.randint(0, self.worn[node.node_id].known_commit)))
        else:
            super()._crash_or_restart(node, rng)

    def _install(self) -> None:
        """A base that was offered, to the same start of a node that needs it still."""
        if not self.offers:
            return
        name, boots, offer = self.offers.pop(self.own.randrange(len(self.offers)))
        node = self.worn[name]
        if node.is_running and node.boots == boots and node.core.needs(offer):
            self.happened["installed"] += 1
            self._forget(name)
            committed = [each for each in self.checker.committed if isinstance(each, EntryMeta)]
            node.install(offer, committed)

    def _forget(self, name: NodeId) -> None:
        """What it was asked is answered by nobody."""
        self.reads = {key: seen for key, seen in self.reads.items() if key[0] != name}
        self.checker.on_restart(name)

    def _replace_disk(self) -> None:
        """A member's disk is lost where nobody counts on it alone, and no election is under way."""
        leader = self.cluster.leader()
        if self.replaced or leader is None or not leader.core.is_ready_leader:
            return
        present = leader.core.configuration
        names = sorted(present.members() - {leader.node_id})
        if self._is_changing(leader) or len(present.voters) < 3 or not names:
            return
        name = self.own.choice(names)
        if self._counts_on(name, present) or any(
            each.is_running and each.core.role is Role.CANDIDATE for each in self.worn.values()
        ):
            return
        self.happened["disks"] += 1
        self.disks += 1
        disk = DiskId(f"{name}{self.disks:015d}".encode())
        self._forget(name)
        seed = self.own.getrandbits(32)
        self.worn[name] = Worn(name, NOBODY, disk, seed=seed, options=self.options)
        self.cluster.nodes = dict(self.worn)
        self.cluster.network = [
            each for each in self.cluster.network if name not in (each.sender, each.to)
        ]
        self.offers = [each for each in self.offers if each[0] != name]
        self.replaced[name] = disk

    def _counts_on(self, name: NodeId, present: Configuration) -> bool:
        """Whether something acknowledged is on a majority with that disk only."""
        others = [self.worn[each] for each in present.voters if each != name]
        need = len(present.voters) // 2 + 1
        gone = min(each.base.index for each in others)
        return any(
            sum(each.durable_identity_at(index) == entry for each in others) < need
            for index, entry in self.checker.acknowledged.items()
            if index > gone
        )

    def _is_changing(self, leader: Node) -> bool:
        log = leader.core._state.log
        return bool(leader.core.configuration.voters_outgoing) or (
            log.has_uncommitted_configuration()
        )

    def _name_disks(self) -> None:
        """The group is told of the new disk, by whoever leads."""
        for name, disk in list(self.replaced.items()):
            for leader in [each for each in self.worn.values() if each.is_running and each.leads]:
                present = leader.core.configuration
                if name in present.members() and present.disk_of(name) != disk:
                    with suppress(ProposalRefused):
                        leader.change(with_disk(present, name, disk), next(self.sizes))
                elif leader.core.is_ready_leader and not self._is_changing(leader):
                    self.replaced.pop(name, None)

    def _change(self, node: Node, rng: random.Random) -> None:
        """One thing at a time, as operators do."""
        if not self.replaced and self.own.random() < self.changing:
            super()._change(node, rng)

    def voter(self, name: NodeId) -> str:
        """A new disk remembers no vote, and is another voter."""
        return f"{name}/{self.worn[name].disk_id!r}"

    def disk_of(self, node: NodeId) -> DiskId:
        return self.worn[node].disk_id

    # --- the end ------------------------------------------------------------------------------

    def calm_down(self) -> None:
        """Faults stop; the members in force have one log then, and wait for nothing."""
        self.cluster.heal()
        for node in self.worn.values():
            node.writes_complete = True
            if not node.is_running:
                self.checker.on_restart(node.name)
                node.start()
            node.core.report_doubt(is_in_doubt=False)
            node.core.report_fitness(is_short=False)
            self.cluster.network += node.complete_writes()
        for _ in range(CALM_TICKS):
            self.cluster.tick()
            self._name_disks()
            for node in [each for each in self.worn.values() if each.leads]:
                with suppress(ProposalRefused):
                    node.change_what_is_due(next(self.sizes))
            self.settle()
            self._install()
            if self._is_calm() and not self.replaced:
                self.check_no_read_waits()
                self._check_nothing_is_left()
                return
        raise AssertionError(f"the group did not recover: {self._states()}")

    def _check_nothing_is_left(self) -> None:
        self.cluster.tick(60)
        self.settle()
        leader = self.cluster.leader()
        assert leader is not None
        for node in self.worn.values():
            state = node.core._state
            kept = state.held, state.outbox, state.read_results, state.noop
            assert not any(kept), kept
            assert state.transfer is None, "a transfer for ever"
            if node.node_id in leader.core.configuration.members():
                assert state.log.uncommitted_bytes() == 0
        for peer in leader.core._state.peers.values():
            assert peer.state is PeerState.REPLICATE
            assert not peer.inflight_count


HAPPENS = {"late", "installed", "disks", "changes", "reads", "acknowledged"}


def test_members_are_worn_under_fire() -> None:
    """Figure 3's properties hold all the time."""
    happened: Counter[str] = Counter()
    for seed in range(examples(300)):
        storm = WornStorm(1 + seed % 5, seed, happened)
        try:
            storm.run(random.Random(seed), STEPS)
            storm.calm_down()
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
        happened["changes"] += storm.changes
        happened["reads"] += storm.reads_done
        happened["acknowledged"] += len(storm.checker.acknowledged)
    assert set(+happened) >= HAPPENS
