"""What a peer may say: the range of every field of every message, checked before anything happens.

A peer is a member of the broker group, and its messages are intact (`dledger/checksum.py`). It may
still be broken: run another program, have a bad memory, a log put back from a copy. This owns what
the core believes. `admit` looks at a message and changes nothing; what can't be is refused whole,
before a term is adopted, an entry is appended or anything is saved. It must never refuse what a
genuine peer can say, however late, repeated or reordered it arrives, and however long its sender or
this node was away.

Two kinds of nonsense are told apart. A value **out of range** can't come from a working peer at
all. A **contradiction** could, but not together with what this node knows to be settled: another
term at a committed index, a second leader of a term. One of the two nodes is wrong then, and the
peer's word is not what decides which: the message is refused, an alarm is raised, and this node
goes on (see `dledger/doubt.py` for how it looks into its own log).

What is in range and false is believed: an acknowledgement of what was lost again, a vote given
twice. Raft trusts its members so far; docs/adr/0019-what-a-peer-may-say.md has the table and says
where the line is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn, assert_never

from dledger.core.errors import Contradiction, MessageRefused
from dledger.core.group_epoch import is_lineage
from dledger.core.state import RaftState
from dledger.core.types import (
    DISK_ID_BYTES,
    MAX_INDEX,
    MAX_NAME_CHARACTERS,
    MAX_ROUND,
    MAX_TERM,
    MAX_TIME_MS,
    NO_INDEX,
    NO_TERM,
    AppendRequest,
    AppendResponse,
    EntryKind,
    EntryMeta,
    HeartbeatRequest,
    HeartbeatResponse,
    IncomingMessage,
    Index,
    LogBase,
    PreVoteRequest,
    PreVoteResponse,
    Role,
    SnapshotOffer,
    Term,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)

# Terms that the messages of others may take this node forward, for each tick of its life and one
# more: a million, where a group can't hold more than a few elections in one tick. It is a rate and
# not a distance, because a distance would shut out for good who was taken beyond it; as it is, who
# is refused now is admitted a little later, and walking to `MAX_TERM` takes a thousand years.
TERMS_PER_TICK = 1 << 20


@dataclass(frozen=True, slots=True)
class Wrong:
    """A field that can't be what it is, and what it could be."""

    field: str
    found: object
    expected: str


def admit(state: RaftState, message: IncomingMessage) -> None:
    """Returns if a genuine peer could have said this to this node.

    Raises:
        MessageRefused: it could not; nothing has changed. `Contradiction`: and one of the two
            nodes holds what it must not.
    """
    if message.sender == state.node or not message.sender:
        _refuse(message, "sender", message.sender, f"another node than {state.node}")
    _check_term(state, message)
    match message:
        case AppendResponse():
            _check_append_response(state, message)
        case AppendRequest():
            _check_append_request(state, message)
        case HeartbeatResponse():
            _check_heartbeat_response(state, message)
        case HeartbeatRequest():
            _check_heartbeat_request(state, message)
        case PreVoteRequest() | VoteRequest():
            _check_campaign(message)
        case PreVoteResponse():
            # A granted one echoes the term that this node asked for, and its term never goes back.
            if message.granted and not NO_TERM < message.term <= state.term + 1:
                _refuse(message, "term", message.term, f"at most {state.term + 1} if granted")
        case VoteResponse():
            _check_not_ahead(state, message, is_claimed=message.granted)
        case TimeoutNow():
            _check_not_ahead(state, message, is_claimed=True)
            _check_leads(state, message)
        case SnapshotOffer():
            _check_offer(state, message)
        case _:
            assert_never(message)


def terms_in_reach(state: RaftState) -> int:
    """How many terms further the messages of others may take this node now."""
    return TERMS_PER_TICK * (state.now_tick + 1) - state.terms_adopted


def _check_term(state: RaftState, message: IncomingMessage) -> None:
    # A node that was never in a term can refuse a pre-vote, and say nothing else.
    least = NO_TERM if isinstance(message, PreVoteResponse) else Term(1)
    if least <= message.term <= state.term:
        return
    furthest = min(MAX_TERM, state.term + terms_in_reach(state))
    if not least <= message.term <= furthest:
        _refuse(message, "term", message.term, f"[{least}, {furthest}]")


def _check_not_ahead(
    state: RaftState, message: VoteResponse | AppendResponse | TimeoutNow, *, is_claimed: bool
) -> None:
    """What only the candidate or leader of a term, or one who follows it, can be told presupposes
    that this node was in that term, and its term survives crashes."""
    if is_claimed and message.term > state.term:
        _refuse(message, "term", message.term, f"at most {state.term}, which this node was in")


def _check_campaign(message: PreVoteRequest | VoteRequest) -> None:
    _check_index(message, "last_index", message.last_index)
    # The last entry is of a term before the one that is campaigned for.
    if not NO_TERM <= message.last_term < message.term:
        _refuse(message, "last_term", message.last_term, f"[0, {message.term - 1}]")
    if (message.last_index == NO_INDEX) != (message.last_term == NO_TERM):
        _refuse(message, "last_term", message.last_term, f"fits last_index {message.last_index}")


def _check_append_request(state: RaftState, message: AppendRequest) -> None:
    previous = message.prev_index
    if not NO_INDEX <= previous <= MAX_INDEX - len(message.entries):
        _refuse(message, "prev_index", previous, f"[0, {MAX_INDEX - len(message.entries)}]")
    if not NO_TERM <= message.prev_term <= message.term:
        _refuse(message, "prev_term", message.prev_term, f"[0, {message.term}]")
    if (previous == NO_INDEX) != (message.prev_term == NO_TERM):
        _refuse(message, "prev_term", message.prev_term, f"fits prev_index {previous}")
    _check_index(message, "commit_index", message.commit_index)
    _check_entries(message)
    if message.term >= state.term:
        _check_leads(state, message)
        _check_settled(state, message)


def _check_entries(message: AppendRequest) -> None:
    """They follow the previous entry, in indexes and in terms, up to the leader's own."""
    index, term = message.prev_index, message.prev_term
    for entry in message.entries:
        index = Index(index + 1)
        if entry.index != index:
            _refuse(message, "entries", f"index {entry.index}", f"index {index}")
        if not max(term, 1) <= entry.term <= message.term:
            _refuse(message, "entries", f"term {entry.term}", f"[{max(term, 1)}, {message.term}]")
        if entry.size <= 0:
            _refuse(message, "entries", f"size {entry.size}", "above 0")
        if entry.kind is EntryKind.CONFIGURATION or entry.configuration is not None:
            _check_configuration(message, entry)
        term = entry.term


def _check_configuration(message: AppendRequest, entry: EntryMeta) -> None:
    if (wrong := wrong_configuration(entry)) is not None:
        _refuse(message, "entries", wrong.found, wrong.expected)


def wrong_configuration(entry: EntryMeta) -> Wrong | None:
    """What of an entry can't be a configuration of any group."""
    configuration = entry.configuration
    if configuration is None or entry.kind is not EntryKind.CONFIGURATION:
        return Wrong("configuration", f"kind {entry.kind.name}", "a configuration, and its kind")
    learners, members = configuration.learners, configuration.members()
    named = dict(configuration.disks)
    disks = set(named.values())
    expected = None
    if not configuration.voters or not all(0 < len(n) <= MAX_NAME_CHARACTERS for n in members):
        expected = f"voters, each with a name of up to {MAX_NAME_CHARACTERS} characters"
    elif learners & configuration.voters or configuration.observers - learners:
        expected = "voters, learners and no third"
    elif configuration.preferred is not None and configuration.preferred not in members:
        expected = "a member that is preferred, or nobody"
    elif len(named) != len(configuration.disks) or len(disks) != len(named):
        expected = "a disk of its own for each member"
    elif any(len(disk) != DISK_ID_BYTES for disk in disks) or named.keys() - members:
        expected = f"disks of members, {DISK_ID_BYTES} bytes each"
    elif not is_lineage(configuration.epoch.recoveries):
        # Every Hello of who took it would tell it, and be refused by everybody.
        expected = "recoveries by force as a group can have them"
    return Wrong("configuration", configuration, expected) if expected is not None else None


def wrong_base(base: LogBase, furthest: Term) -> Wrong | None:
    """What of a peer's base can't be where any log of this group begins.

    Args:
        base: what it says of the last entry before its log's first.
        furthest: the term that such an entry can be of.
    """
    if not NO_INDEX < base.index <= MAX_INDEX:
        return Wrong("index", base.index, f"[1, {MAX_INDEX}]")
    if not NO_TERM < base.term <= furthest:
        return Wrong("index_term", base.term, f"[1, {furthest}]")
    place = base.place
    if not NO_INDEX < place.at <= base.index or not NO_TERM < place.term <= base.term:
        return Wrong("configuration", place, f"up to entry {base.index}")
    if not 0 <= base.append_time_ms <= MAX_TIME_MS:
        return Wrong("append_time_ms", base.append_time_ms, f"[0, {MAX_TIME_MS}]")
    if not 0 < base.end_offset <= MAX_INDEX:
        return Wrong("end_offset", base.end_offset, f"[1, {MAX_INDEX}]")
    entry = EntryMeta(place.at, place.term, 1, EntryKind.CONFIGURATION, base.configuration)
    return wrong_configuration(entry)


def _check_settled(state: RaftState, message: AppendRequest) -> None:
    """The leader of this node's term, or a later one, holds everything that this node knows to be
    committed (leader completeness), and what it has itself shown to be in its log before."""
    log = state.log
    settled = log.commit_index
    if message.term == state.term:
        settled = max(settled, state.verified_index)
    if message.prev_index > settled:
        return
    _check_same(state, message, message.prev_index, message.prev_term)
    for entry in message.entries[: settled - message.prev_index]:
        _check_same(state, message, entry.index, entry.term)


def _check_same(
    state: RaftState, message: AppendRequest | SnapshotOffer, index: Index, term: Term
) -> None:
    if index < state.log.base.index:
        return  # of what is gone nobody can tell
    ours = state.log.term_at(index)
    if ours != term:
        raise Contradiction(
            message.sender,
            f"{message.sender} has term {term} at entry {index}, which is settled here with "
            f"term {ours}",
            index,
        )


def _check_append_response(state: RaftState, message: AppendResponse) -> None:
    _check_not_ahead(state, message, is_claimed=message.accepted)
    # What was appended since says nothing: a leader's log doesn't get shorter in its term.
    leads = state.role is Role.LEADER and message.term == state.term
    furthest = state.log.last_index if leads else MAX_INDEX
    if message.accepted:
        if not NO_INDEX <= message.match_index <= furthest:
            _refuse(message, "match_index", message.match_index, f"[0, {furthest}]")
        hints = (message.rejected_prev_index, message.conflict_first_index, message.last_index)
        if any(hints) or message.conflict_term != NO_TERM:
            _refuse(message, "accepted", message.accepted, "no hint of a conflict")
        return
    if message.match_index != NO_INDEX:
        _refuse(message, "match_index", message.match_index, "0 in a refusal")
    if not NO_INDEX <= message.rejected_prev_index <= furthest:
        _refuse(message, "rejected_prev_index", message.rejected_prev_index, f"[0, {furthest}]")
    _check_hint(message)


def _check_hint(message: AppendResponse) -> None:
    """A conflicting term and where it begins, or else where the log ends."""
    _check_index(message, "last_index", message.last_index)
    first = message.conflict_first_index
    if not NO_TERM <= message.conflict_term <= message.term:
        _refuse(message, "conflict_term", message.conflict_term, f"[0, {message.term}]")
    if message.conflict_term != NO_TERM:
        if not NO_INDEX < first <= message.rejected_prev_index:
            expected = f"[1, {message.rejected_prev_index}]"
            _refuse(message, "conflict_first_index", first, expected)
    elif first not in (NO_INDEX, message.last_index + 1):
        _refuse(message, "conflict_first_index", first, f"0 or {message.last_index + 1}")


def _check_heartbeat_request(state: RaftState, message: HeartbeatRequest) -> None:
    _check_index(message, "commit_index", message.commit_index)
    _check_round(message, message.read_context, MAX_ROUND)
    _check_leads(state, message)


def _check_heartbeat_response(state: RaftState, message: HeartbeatResponse) -> None:
    _check_index(message, "last_index", message.last_index)
    # An answer to a round that has not begun would confirm the reads of the rounds to come.
    leads = state.role is Role.LEADER and message.term == state.term
    _check_round(message, message.read_context, state.heartbeat_round if leads else MAX_ROUND)


def _check_offer(state: RaftState, message: SnapshotOffer) -> None:
    base = message.base
    if (wrong := wrong_base(base, message.term)) is not None:
        _refuse(message, wrong.field, wrong.found, wrong.expected)
    if message.term >= state.term:
        _check_leads(state, message)
    if base.index <= state.log.commit_index:
        _check_same(state, message, base.index, base.term)


def _check_leads(
    state: RaftState, message: AppendRequest | HeartbeatRequest | TimeoutNow | SnapshotOffer
) -> None:
    """Who speaks as the leader of this node's term isn't another than the one known."""
    if message.term != state.term:
        return
    leader = state.node if state.role is Role.LEADER else state.term_leader
    if leader is not None and leader != message.sender:
        raise Contradiction(
            message.sender,
            f"{message.sender} speaks as the leader of term {state.term}, which is {leader}",
            state.log.commit_index,
        )


def _check_index(message: IncomingMessage, field: str, index: Index) -> None:
    if not NO_INDEX <= index <= MAX_INDEX:
        _refuse(message, field, index, f"[0, {MAX_INDEX}]")


def _check_round(message: IncomingMessage, number: int, newest: int) -> None:
    if not 0 <= number <= newest:
        _refuse(message, "read_context", number, f"[0, {newest}]")


def _refuse(message: IncomingMessage, field: str, found: object, expected: str) -> NoReturn:
    raise MessageRefused(
        message.sender,
        f"{type(message).__name__} of {message.sender}: {field} is {found}, expected {expected}",
    )
