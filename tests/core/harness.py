"""A small cluster of real cores on fake disks and a network that the test holds in its hands.

`Node` is a driver in miniature: it follows the order that `Effects` prescribes. Its disk holds
what was persisted and nothing else, so a crash loses exactly the rest. Messages lie in
`Cluster.network` until the test delivers, drops, repeats or reorders them. Nothing happens by
itself: no clock, no thread.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import count

from dledger.core import (
    NO_INDEX,
    AppendRange,
    AppendRequest,
    Configuration,
    EntryKind,
    EntryMeta,
    Event,
    HardState,
    IncomingMessage,
    Index,
    LogSummary,
    NodeId,
    Persist,
    Proposed,
    Raft,
    RaftOptions,
    ReadAborted,
    ReadReady,
    Role,
    SnapshotOffer,
    Term,
    TermRun,
)

A, B, C, D, E = (NodeId(name) for name in "ABCDE")
MAX_ROUNDS = 2000


def entries_of(*terms: int, first: int = 1, size: int = 100) -> list[EntryMeta]:
    """Entries from index `first` on that carry `terms`; sizes tell entries apart."""
    return [
        EntryMeta(Index(first + at), Term(term), size + first + at) for at, term in enumerate(terms)
    ]


def summary_of(entries: Sequence[EntryMeta]) -> LogSummary:
    """What recovery would find in a log of `entries`."""
    runs: list[TermRun] = []
    for entry in entries:
        if not runs or runs[-1].term != entry.term:
            runs.append(TermRun(entry.index, entry.term))
    return LogSummary(
        last_index=Index(len(entries)),
        term_runs=tuple(runs),
        configurations=tuple(
            (entry.index, entry.configuration) for entry in entries if entry.configuration
        ),
    )


class Node:
    """One core with its log, its disk and what it has said."""

    def __init__(
        self,
        name: NodeId,
        configuration: Configuration,
        *,
        seed: int = 0,
        options: RaftOptions | None = None,
        entries: Iterable[EntryMeta] = (),
        term: int = 0,
        vote: NodeId | None = None,
    ) -> None:
        self.node_id = name
        self._configuration = configuration
        self.options = options or RaftOptions()
        self.rng = random.Random(f"{seed}/{name}")
        self.disk = list(entries)
        last_term = self.disk[-1].term if self.disk else 0
        self.disk_hard_state = HardState(Term(max(term, last_term)), vote)
        self.writes_complete = True  # False: the test completes them with `complete_writes`
        self.sent: list[IncomingMessage] = []
        self.events: list[Event] = []
        self.reads: list[ReadReady | ReadAborted] = []
        self.offers: list[SnapshotOffer] = []  # that it wants
        self.boots = 0
        self.log_changes = 0
        self.start()

    def start(self, commit_index: Index = NO_INDEX) -> None:
        """Boot from the disk."""
        self.log = list(self.disk)
        self.outstanding: deque[tuple[Persist, list[EntryMeta]]] = deque()
        self.applied: list[EntryMeta] = []
        self.is_running = True
        self.boots += 1
        self._request: AppendRequest | None = None
        self.core = Raft(
            self.node_id,
            self._configuration,
            view=self,
            rng=self.rng,
            options=self.options,
            log=summary_of(self.disk),
            hard_state=self.disk_hard_state,
            commit_index=commit_index,
        )

    def crash(self, *, writes_that_made_it: int = 0) -> None:
        """Lose everything but the disk; some writes may have reached it without saying so."""
        for _ in range(min(writes_that_made_it, len(self.outstanding))):
            self._write(*self.outstanding.popleft())
        self.outstanding.clear()
        self.is_running = False
        self.sent.clear()

    # --- Inputs -----------------------------------------------------------------------------

    def step(self, message: IncomingMessage) -> list[IncomingMessage]:
        """Give the core a message; returns what it said at once."""
        self._request = message if isinstance(message, AppendRequest) else None
        self.core.step(message)
        self._request_effects()
        self._request = None
        return self.take_sent()

    def tick(self, times: int = 1) -> list[IncomingMessage]:
        """Let time pass."""
        for _ in range(times):
            self.core.tick()
            self._request_effects()
        return self.take_sent()

    def propose(self, size: int = 100, kind: EntryKind = EntryKind.DATA) -> Proposed:
        """Propose and append the frame; the append to peers is made by `pump`."""
        placed = self.core.propose(size, kind)
        self.log.append(EntryMeta(placed.index, placed.term, size, kind))
        self.log_changes += 1
        return placed

    def change(self, wanted: Configuration, size: int = 100) -> Proposed:
        """The same with a configuration."""
        placed = self.core.propose(size, EntryKind.CONFIGURATION, wanted)
        self.log.append(EntryMeta(placed.index, placed.term, size, EntryKind.CONFIGURATION, wanted))
        self.log_changes += 1
        return placed

    def change_what_is_due(self, size: int = 100) -> bool:
        """What a leader proposes by itself, if there is something."""
        wanted = self.core.due_change()
        if wanted is not None:
            self.change(wanted, size)
        return wanted is not None

    def pump(self) -> list[IncomingMessage]:
        """Do what the core wants done; returns the messages."""
        self._request_effects()
        return self.take_sent()

    def complete_writes(self, times: int = 1_000_000) -> list[IncomingMessage]:
        """Finish outstanding writes, oldest first; returns what the core then says."""
        for _ in range(times):
            if not self.outstanding:
                break
            persist, entries = self.outstanding.popleft()
            self._write(persist, entries)
            self.core.on_persisted(persist.sequence)
            self._request_effects()
        return self.take_sent()

    def take_sent(self) -> list[IncomingMessage]:
        """What was said since the last call."""
        sent, self.sent = self.sent, []
        return sent

    def lose_trust(self, ticks: int = 100) -> None:
        """Let time pass for trust in leaders and peers, but not for the election timer."""
        self.core._state.now_tick += ticks

    # --- LogView ----------------------------------------------------------------------------

    def last_that_fits(self, first: int, last: int, max_bytes: int) -> int:
        """As `LogView` wants it."""
        assert first > self.core._state.log.base.index, "that entry is gone"
        total, fits = 0, first
        for index in range(first, last + 1):
            total += self.log[index - 1].size
            if total > max_bytes:
                break
            fits = Index(index)
        return fits

    # --- NodeView ---------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self.node_id

    @property
    def term(self) -> int:
        return self.core.term

    @property
    def vote(self) -> str | None:
        return self.core.vote

    @property
    def leads(self) -> bool:
        return self.core.role is Role.LEADER

    @property
    def voter_sets(self) -> list[frozenset[str]]:
        configuration = self.core.configuration
        sets = (configuration.voters, configuration.voters_outgoing)
        return [frozenset(map(str, each)) for each in sets if each]

    @property
    def last_index(self) -> int:
        return self.core.last_index

    @property
    def commit_index(self) -> int:
        return self.core.commit_index

    @property
    def applied_index(self) -> int:
        return len(self.applied)

    def fingerprint(self) -> tuple[object, ...]:
        """Another one once anything is that invariants are about."""
        core = self.core
        known = core.term, core.vote, core.role, core.commit_index, core.last_index
        return self.boots, self.log_changes, len(self.applied), *known

    def term_at(self, index: int) -> int:
        return self.core.term_at(Index(index))

    def identity_at(self, index: int) -> Hashable:
        return self.log[index - 1]

    def durable_identity_at(self, index: int) -> Hashable | None:
        return self.disk[index - 1] if index <= len(self.disk) else None

    def terms(self) -> list[int]:
        """The terms of the log, first to last."""
        return [entry.term for entry in self.log]

    # --- The driver in miniature ------------------------------------------------------------

    def _request_effects(self) -> None:
        for _ in range(MAX_ROUNDS):
            if not self.core.has_effects():
                self.core.send_more()
            if not self.core.has_effects():
                return
            self._handle_effects()
            if self.writes_complete:
                while self.outstanding:
                    persist, entries = self.outstanding.popleft()
                    self._write(persist, entries)
                    self.core.on_persisted(persist.sequence)
        raise AssertionError("the core never comes to rest")

    def _handle_effects(self) -> None:
        effects = self.core.take_effects()
        if effects.noop is not None:
            size = self.options.noop_size
            self.log.append(EntryMeta(effects.noop.index, effects.noop.term, size, EntryKind.NOOP))
            self.log_changes += 1
        if effects.persist is not None:
            self._start_write(effects.persist)
        assert len(self.log) == self.core.last_index
        for message in effects.messages:
            self.sent.append(
                self._read_range(message) if isinstance(message, AppendRange) else message
            )
        self.applied += self.log[len(self.applied) : effects.commit_index]
        self.reads += effects.reads
        self.offers += [effects.offer] if effects.offer is not None else []
        self.events += effects.events

    def _start_write(self, persist: Persist) -> None:
        if persist.truncate_from is not None:
            del self.log[persist.truncate_from - 1 :]
            self.log_changes += 1
        if persist.append_first is None or persist.append_last is None:
            self.outstanding.append((persist, []))
            return
        if self._request is not None:
            for entry in self._request.entries:
                if len(self.log) < entry.index <= persist.append_last:
                    self.log.append(entry)
                    self.log_changes += 1
        entries = self.log[persist.append_first - 1 : persist.append_last]
        assert entries[0].index == persist.append_first
        assert entries[-1].index == persist.append_last
        self.outstanding.append((persist, entries))

    def _write(self, persist: Persist, entries: list[EntryMeta]) -> None:
        if persist.hard_state is not None:
            self.disk_hard_state = persist.hard_state
        if persist.truncate_from is not None:
            del self.disk[persist.truncate_from - 1 :]
        if entries:
            assert len(self.disk) == entries[0].index - 1
            self.disk += entries

    def _read_range(self, message: AppendRange) -> AppendRequest:
        assert message.first_index == message.prev_index + 1
        return AppendRequest(
            sender=message.sender,
            to=message.to,
            term=message.term,
            prev_index=message.prev_index,
            prev_term=message.prev_term,
            entries=tuple(self.log[message.first_index - 1 : message.last_index]),
            commit_index=message.commit_index,
        )


class Cluster:
    """Nodes and the messages between them."""

    def __init__(
        self,
        *names: NodeId,
        seed: int = 0,
        options: RaftOptions | None = None,
        logs: dict[NodeId, list[EntryMeta]] | None = None,
        terms: dict[NodeId, int] | None = None,
        learners: Iterable[NodeId] = (),
        strangers: Iterable[NodeId] = (),
    ) -> None:
        """`strangers` run, and are no members."""
        members = names or (A, B, C)
        voters = frozenset(members) - frozenset(learners) - frozenset(strangers)
        self.configuration = Configuration(voters, learners=frozenset(learners))
        self.nodes: dict[NodeId, Node] = {
            name: Node(
                name,
                self.configuration,
                seed=seed,
                options=options,
                entries=(logs or {}).get(name, ()),
                term=(terms or {}).get(name, 0),
            )
            for name in members
        }
        self.network: list[IncomingMessage] = []
        self.cut: set[tuple[NodeId, NodeId]] = set()  # (from, to) pairs that lose everything
        self.transcript: list[str] = []
        self._reads = count(1)

    def __getitem__(self, name: NodeId) -> Node:
        return self.nodes[name]

    def isolate(self, name: NodeId) -> None:
        """Cut `name` off, both ways."""
        for other in self.nodes:
            self.cut |= {(name, other), (other, name)}

    def heal(self) -> None:
        """Every link works again."""
        self.cut.clear()

    def collect(self) -> None:
        """Put what nodes have said on the network."""
        for node in self.nodes.values():
            if node.is_running:
                self.network += node.pump()

    def deliver(self, keep: Callable[[IncomingMessage], bool] = lambda message: True) -> None:
        """Deliver everything, in order, until nobody has anything to say."""
        self.collect()
        for _ in range(MAX_ROUNDS):
            if not self.network:
                return
            batch, self.network = self.network, []
            for message in batch:
                if keep(message):
                    self.deliver_one(message)
            self.collect()
        raise AssertionError("the conversation never ends")

    def deliver_one(self, message: IncomingMessage) -> None:
        """Deliver one message, unless its link is cut or its receiver is down."""
        receiver = self.nodes.get(message.to)
        if (message.sender, message.to) in self.cut or receiver is None:
            return
        if receiver.is_running:
            self.transcript.append(describe(message))
            self.network += receiver.step(message)

    def tick(self, times: int = 1, *names: NodeId) -> None:
        """Time passes for `names` (all, if none is given), and messages flow."""
        for _ in range(times):
            for node in self.nodes.values():
                if node.is_running and (not names or node.node_id in names):
                    self.network += node.tick()
            self.deliver()

    def campaign(self, name: NodeId) -> None:
        """Let only `name`'s clock run until it campaigns, and deliver nothing yet."""
        node = self.nodes[name]
        for _ in range(2 * node.options.election_timeout_max_ticks):
            if node.core.role not in (Role.FOLLOWER, Role.LEADER):
                return
            self.network += node.tick()
        raise AssertionError(f"{name} does not campaign")

    def elect(self, name: NodeId) -> Node:
        """Make `name` the leader; everybody's trust in an old one runs out first."""
        silent = max(node.options.election_timeout_min_ticks for node in self.nodes.values())
        for node in self.nodes.values():
            if node.is_running and node.node_id != name and not node.leads:
                node.lose_trust(silent)
        self.campaign(name)
        self.deliver()
        node = self.nodes[name]
        assert node.core.role is Role.LEADER, f"{name} was not elected"
        return node

    def leader(self) -> Node | None:
        """The running leader of the highest term."""
        leaders = [node for node in self.nodes.values() if node.is_running and node.leads]
        return max(leaders, key=lambda node: node.term, default=None)

    def read(self, name: NodeId) -> int:
        """Begin a read at `name`; returns its context."""
        context = next(self._reads)
        self.nodes[name].core.read_index(context)
        return context


def describe(message: IncomingMessage) -> str:
    """One line of a transcript: `A>B AppendRequest t2 prev=3/1 [4..5] commit=3`."""
    line = f"{message.sender}>{message.to} {type(message).__name__} t{message.term}"
    if isinstance(message, AppendRequest):
        last = message.prev_index + len(message.entries)
        return (
            f"{line} prev={message.prev_index}/{message.prev_term} "
            f"[{message.prev_index + 1}..{last}] commit={message.commit_index}"
        )
    for name in ("granted", "accepted", "match_index", "commit_index", "read_context"):
        if hasattr(message, name):
            line += f" {name}={getattr(message, name)}"
    return line
