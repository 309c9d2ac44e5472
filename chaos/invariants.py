"""Raft's safety properties, checked from outside after every step.

Pure and without knowledge of how nodes run: tests of the core use it, and so does the simulator.
It sees nodes through `NodeView` and raises `InvariantBroken` at the first step that breaks one,
so that a failing schedule stops where the damage was done and not where it was noticed.

Source: Raft paper figure 3 (the five properties); the others are what the scenario tests of
`tests/core` state one by one.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Protocol


class InvariantBroken(AssertionError):
    """A safety property does not hold any more."""


class NodeView(Protocol):
    """One node, running or crashed, as the checker sees it.

    Identities name an entry's content: equal identities at one index mean the same entry.
    """

    @property
    def name(self) -> str: ...
    @property
    def is_running(self) -> bool: ...
    @property
    def term(self) -> int: ...
    @property
    def vote(self) -> str | None: ...
    @property
    def leads(self) -> bool: ...
    @property
    def voter_sets(self) -> Sequence[frozenset[str]]:
        """A majority of each of these has to agree, as this node has it: two of them while its
        configuration is joint. It was so when the node last did something."""
        ...

    @property
    def last_index(self) -> int: ...
    @property
    def commit_index(self) -> int: ...
    @property
    def applied_index(self) -> int: ...
    def term_at(self, index: int) -> int: ...
    def identity_at(self, index: int) -> Hashable:
        """Of the entry in memory at `index`, in `[1, last_index]`."""
        ...

    def durable_identity_at(self, index: int) -> Hashable | None:
        """Of the entry on this node's disk; None if there is none. Crashed nodes answer too."""
        ...


@dataclass(slots=True)
class _Seen:
    """What a running node showed at the step before."""

    term: int = 0
    vote: str | None = None
    commit_index: int = 0
    applied_index: int = 0


@dataclass(slots=True)
class InvariantChecker:
    """Remembers what was promised and compares every later step with it.

    Args:
        are_identities_running: an identity covers everything before its entry as well, as a
            running digest does, so that one comparison stands for a whole prefix.
    """

    are_identities_running: bool = False
    committed: list[Hashable] = field(default_factory=list)  # [i] is the entry at index i + 1
    leaders: dict[int, str] = field(default_factory=dict)  # by term
    votes: dict[tuple[int, str], str] = field(default_factory=dict)  # (term, voter) -> candidate
    acknowledged: dict[int, Hashable] = field(default_factory=dict)
    _seen: dict[str, _Seen] = field(default_factory=dict)

    def on_vote_sent(self, term: int, voter: str, candidate: str) -> None:
        """A vote left a node: in one term it may go to one candidate only, crashes included."""
        earlier = self.votes.setdefault((term, voter), candidate)
        if earlier != candidate:
            raise InvariantBroken(f"{voter} voted for {earlier} and {candidate} in term {term}")

    def on_acknowledged(self, index: int, identity: Hashable) -> None:
        """A client was told that its entry is safe: it must stay where it is for good."""
        if index > len(self.committed) or self.committed[index - 1] != identity:
            raise InvariantBroken(f"acknowledged entry {index} {identity} is not committed")
        self.acknowledged[index] = identity

    def on_restart(self, name: str) -> None:
        """A node lost its memory; its commit index may be rediscovered from 0."""
        self._seen.pop(name, None)

    def check(self, nodes: Sequence[NodeView], same: Collection[str] = ()) -> None:
        """Check everything that has to hold between two steps.

        Args:
            nodes: all there are.
            same: names of those in which nothing has changed since the last check.

        Raises:
            InvariantBroken: names the property, the nodes and the index.
        """
        running = [node for node in nodes if node.is_running]
        changed = [node for node in running if node.name not in same]
        # Whoever leads decides what is committed, and is asked before those that it has told.
        for node in sorted(changed, key=lambda each: not each.leads):
            self._check_node(node)
            self._check_commits(node, nodes)
        for node in changed:
            self._check_leader(node)
        for one, other in combinations(running, 2):
            if one.name not in same or other.name not in same:
                self._check_log_matching(one, other)

    def check_one(self, node: NodeView, nodes: Sequence[NodeView]) -> None:
        """As `check`, where nothing but `node`, which runs, has changed since the last check.

        Raises:
            InvariantBroken: names the property, the nodes and the index.
        """
        self._check_node(node)
        self._check_commits(node, nodes)
        self._check_leader(node)
        for other in nodes:
            if other is not node and other.is_running:
                self._check_log_matching(node, other)

    def check_nothing_lost(self, nodes: Iterable[NodeView]) -> None:
        """At the end, when all have caught up: every acknowledged entry is on every node."""
        for node in nodes:
            for index, identity in self.acknowledged.items():
                if node.commit_index < index or node.identity_at(index) != identity:
                    raise InvariantBroken(f"{node.name} lost acknowledged entry {index}")

    def _check_node(self, node: NodeView) -> None:
        seen = self._seen.setdefault(node.name, _Seen(node.term, node.vote))
        if node.term < seen.term:
            raise InvariantBroken(f"{node.name}: term went from {seen.term} to {node.term}")
        if node.term == seen.term and seen.vote not in (None, node.vote):
            raise InvariantBroken(f"{node.name}: vote changed within term {node.term}")
        if node.commit_index < seen.commit_index or node.applied_index < seen.applied_index:
            raise InvariantBroken(f"{node.name}: commit or applied index went back")
        if not node.applied_index <= node.commit_index <= node.last_index:
            raise InvariantBroken(f"{node.name}: not applied <= commit <= last")
        seen.term, seen.vote = node.term, node.vote
        seen.applied_index = node.applied_index

    def _check_commits(self, node: NodeView, nodes: Sequence[NodeView]) -> None:
        """State-machine safety, and that what is committed is on a majority of the voters' disks:
        of each set, where they are two."""
        seen = self._seen[node.name]
        for index in range(seen.commit_index + 1, node.commit_index + 1):
            identity = node.identity_at(index)
            if index <= len(self.committed):
                if self.committed[index - 1] != identity:
                    raise InvariantBroken(f"{node.name}: another entry committed at {index}")
                continue
            holders = {n.name for n in nodes if n.durable_identity_at(index) == identity}
            if not any(_agree(sets, holders) for sets in _in_force(node, nodes)):
                raise InvariantBroken(
                    f"{node.name}: entry {index} committed, durable only on {sorted(holders)}"
                )
            self.committed.append(identity)
        seen.commit_index = node.commit_index

    def _check_leader(self, node: NodeView) -> None:
        if not node.leads:
            return
        known = self.leaders.get(node.term)
        if known == node.name:
            return
        if known is not None:
            raise InvariantBroken(f"{known} and {node.name} lead in term {node.term}")
        for index, identity in enumerate(self.committed, start=1):
            if index > node.last_index or node.identity_at(index) != identity:
                raise InvariantBroken(f"leader {node.name} lacks committed entry {index}")
        self.leaders[node.term] = node.name

    def _check_log_matching(self, one: NodeView, other: NodeView) -> None:
        """If two logs hold an entry of one index and term, they agree on everything up to it.

        Below both commit indexes `_check_commits` has compared already.
        """
        agree = False
        floor = min(one.commit_index, other.commit_index)
        last = min(one.last_index, other.last_index)
        if last <= floor:
            return
        if self.are_identities_running and one.identity_at(last) == other.identity_at(last):
            return  # the one comparison stands for all of them, whatever their terms
        for index in range(last, floor, -1):
            agree = agree or one.term_at(index) == other.term_at(index)
            if agree and one.identity_at(index) != other.identity_at(index):
                raise InvariantBroken(f"{one.name} and {other.name} disagree at {index}")
            if agree and self.are_identities_running:
                return


def _in_force(node: NodeView, nodes: Sequence[NodeView]) -> list[Sequence[frozenset[str]]]:
    """By whose majorities `node` may call something committed: a leader by those of its own
    configuration. Who follows was told, by a leader that may be gone in the same step."""
    if node.leads:
        return [node.voter_sets]
    return [each.voter_sets for each in nodes]


def _agree(sets: Sequence[frozenset[str]], names: set[str]) -> bool:
    return bool(sets) and all(2 * len(each & names) > len(each) for each in sets)
