"""What the disks of other members have promised, and how an older copy of one is known by it.

A disk that was put back as it once was has its identity and has forgotten what it told since:
votes, terms, entries. It can't know; who was told can (docs/adr/0030-what-disks-have-promised.md).
This owns what is remembered of a disk, and the comparison with what a start says it began with. It
must never remember what a disk didn't say durably, nor anything that may honestly become less:
whatever stands here is held against a disk for good.

    in a term, until the next one:  the vote; *held*: entries that the leader of that term has
    for good:                       the number of starts, the term; *settled*: entries committed

Entries that were told before they were synced may honestly be gone, after a power cut.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from dledger.core.types import MAX_INDEX, MAX_TERM, NO_INDEX, NO_TERM, DiskId, Index, NodeId, Term
from dledger.naming import is_name
from dledger.wire.raft_pb2 import PeerMessage

NOBODY: Final = NodeId("")  # no vote
MAX_STARTS: Final = 1 << 62  # of a disk, beyond what anybody starts
MAX_STARTS_UNHEARD: Final = 1 << 32  # between two that were heard: one a second, for 136 years


@dataclass(frozen=True, slots=True)
class Start:
    """One start on a disk: which, and what it found there.

    Attributes:
        number: of starts on that disk, this one included; `nonce` is of this start alone.
        term, vote, last_index: what the disk held when it began; they never change afterwards.
        is_synced: whether entries are told as held only when they are synced.
    """

    number: int = 0
    nonce: int = 0
    term: Term = NO_TERM
    vote: NodeId = NOBODY
    last_index: Index = NO_INDEX
    is_synced: bool = True

    @property
    def is_in_range(self) -> bool:
        """Whether any disk, any log and any hard state can have been like that."""
        return (
            self.number <= MAX_STARTS
            and self.term <= MAX_TERM
            and self.last_index <= MAX_INDEX
            and (self.vote == NOBODY or is_name(self.vote))
        )


@dataclass(slots=True)
class Promises:
    """Everything that one disk has told and has to keep. Grows only, but for the vote and the held
    entries of a term that is over.

    Attributes:
        start: the newest that was heard.
        held_index: in the log of the leader of `held_term`, and durable.
        settled_index: committed, and durable.
    """

    disk: DiskId
    start: Start
    term: Term = NO_TERM
    vote: NodeId = NOBODY
    held_term: Term = NO_TERM
    held_index: Index = NO_INDEX
    settled_index: Index = NO_INDEX

    def __post_init__(self) -> None:
        self._note_begun(self.start)

    def can_be_of(self, start: Start) -> bool:
        """Whether `start` can be one of this disk. A number is held against it for good: with a far
        one that somebody else said in its name every honest start would be an older copy's."""
        return start.number <= self.start.number + MAX_STARTS_UNHEARD

    def forgotten_by(self, start: Start) -> str:
        """What `start`, if it is on this disk, doesn't know any more, for people; empty if it knows
        everything, or is the newest one itself."""
        newest = self.start
        if (start.number, start.nonce) == (newest.number, newest.nonce):
            return ""
        if start.number <= newest.number:
            return f"start number {start.number}, after another one of number {newest.number}"
        if start.term < self.term:
            return f"it began in term {start.term}, after it had told of term {self.term}"
        if start.term == self.term and self.vote not in (NOBODY, start.vote):
            return f"in term {start.term} it had voted for {self.vote}, and doesn't know"
        if not newest.is_synced:
            return ""
        kept = self.settled_index
        if start.term == self.held_term:
            kept = max(kept, self.held_index)
        if start.last_index < kept:
            return f"its log began with entry {start.last_index} as its last, after it held {kept}"
        return ""

    def begin(self, start: Start) -> None:
        """A start that knows everything was heard."""
        if start == self.start:
            return
        if not self.start.is_synced:
            self.held_term, self.held_index, self.settled_index = NO_TERM, NO_INDEX, NO_INDEX
        self.start = start
        self._note_begun(start)

    def note(self, speaker: NodeId, to: NodeId, message: PeerMessage) -> None:
        """`speaker`, who is this disk, said `message` to `to`, and it was believed."""
        kind = message.WhichOneof("body")
        term = Term(message.term)
        match kind:
            case "append_response":
                self._note_term(term)
                if message.append_response.accepted:
                    self._note_held(term, Index(message.append_response.match_index))
            case "pre_vote_request":
                self._note_term(Term(term - 1))  # the one that it would campaign in comes after
            case "pre_vote_response" if message.pre_vote_response.granted:
                pass  # echoes the asker's term
            case "vote_request":
                self._note_vote(term, speaker)
            case "vote_response" if message.vote_response.granted:
                self._note_vote(term, to)
            case "keep_alive":
                if term != NO_TERM:
                    self._note_term(term)
                    self._note_held(term, Index(message.keep_alive.held_index))
                    settled = Index(message.keep_alive.settled_index)
                    self.settled_index = max(self.settled_index, settled)
            case _:
                self._note_term(term)

    def copy(self) -> Promises:
        """As they are now."""
        return replace(self)

    def _note_begun(self, start: Start) -> None:
        self._note_term(start.term)
        if start.term == self.term and start.vote:
            self.vote = start.vote

    def _note_term(self, term: Term) -> None:
        if term > self.term:
            self.term, self.vote = term, NOBODY

    def _note_vote(self, term: Term, candidate: NodeId) -> None:
        self._note_term(term)
        if term == self.term:
            self.vote = candidate

    def _note_held(self, term: Term, index: Index) -> None:
        if (term, index) > (self.held_term, self.held_index) and index <= MAX_INDEX:
            self.held_term, self.held_index = term, index


def is_credible(message: PeerMessage) -> bool:
    """Whether a keep-alive says what a log can be."""
    body = message.keep_alive
    return message.term <= MAX_TERM and body.settled_index <= body.held_index <= MAX_INDEX
