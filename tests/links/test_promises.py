"""What a disk has promised, and how an older copy of it is known by that (ADR 30)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from broker.memory import Memory
from dledger.checksum import seal
from dledger.core.types import DiskId, Holding, Index, NodeId, Term
from dledger.errors import OlderCopy
from dledger.greeting import Identity
from dledger.promises import NOBODY, Promises, Start
from dledger.wire.raft_pb2 import (
    AppendResponse,
    KeepAlive,
    PeerMessage,
    PreVoteRequest,
    PreVoteResponse,
    VoteRequest,
    VoteResponse,
)
from store.files import OsFiles
from tests.links.test_disks import FIRST, LATER, NEW, OLD
from tests.links.test_peers import N1, N2, Node

N3 = NodeId("n3")
BEGUN = Start(3, 1, Term(5), NOBODY, Index(40))


def known(start: Start = BEGUN) -> Promises:
    return Promises(OLD, start)


def next_start(**found: object) -> Start:
    """The start after `BEGUN`, with a number that looks right, and what else it found."""
    return replace(BEGUN, number=4, nonce=2, **found)  # type: ignore[arg-type]


def acknowledged(term: int, match: int) -> PeerMessage:
    return PeerMessage(term=term, append_response=AppendResponse(accepted=True, match_index=match))


def alive(term: int, held: int, settled: int) -> PeerMessage:
    return PeerMessage(term=term, keep_alive=KeepAlive(held_index=held, settled_index=settled))


@pytest.mark.parametrize(
    ("told", "forgotten"),
    [
        (acknowledged(5, 90), next_start()),
        (alive(5, 90, 90), next_start(term=Term(6), last_index=Index(89))),
        (PeerMessage(term=7, vote_request=VoteRequest()), next_start(term=Term(6))),
        (PeerMessage(term=7, vote_request=VoteRequest()), next_start(term=Term(7))),
        (
            PeerMessage(term=7, vote_response=VoteResponse(granted=True)),
            next_start(term=Term(7), vote=N3),
        ),
        (PeerMessage(term=7, vote_response=VoteResponse()), next_start(term=Term(6))),
        (PeerMessage(term=8, pre_vote_request=PreVoteRequest()), next_start(term=Term(6))),
    ],
    ids=["acknowledged", "settled", "term", "own vote", "vote", "refused vote", "campaign"],
)
def test_a_start_that_has_forgotten_a_promise_is_known(told: PeerMessage, forgotten: Start) -> None:
    """Though it counts on from where the copy was taken: within the present start."""
    disk = known()
    assert not disk.forgotten_by(forgotten)
    disk.note(N2, N1, told)
    assert disk.forgotten_by(forgotten)


@pytest.mark.parametrize(
    ("told", "later"),
    [
        # Entries held in a term may be cut by a leader of the next.
        (alive(5, 90, 40), next_start(term=Term(6), last_index=Index(41))),
        # The term that somebody would campaign in, or echoes, isn't its own yet.
        (PeerMessage(term=6, pre_vote_request=PreVoteRequest()), next_start()),
        (PeerMessage(term=9, pre_vote_response=PreVoteResponse(granted=True)), next_start()),
        (
            PeerMessage(term=7, vote_response=VoteResponse(granted=True)),
            next_start(term=Term(7), vote=N1),
        ),
        (PeerMessage(keep_alive=KeepAlive()), next_start()),
    ],
    ids=["truncated", "pre-vote", "echo", "keeps its vote", "says nothing"],
)
def test_a_start_that_honestly_knows_less_or_other_things_is_heard(
    told: PeerMessage, later: Start
) -> None:
    disk = known()
    disk.note(N2, N1, told)
    assert not disk.forgotten_by(later)


def test_what_was_told_unsynced_may_be_gone_and_the_term_may_not() -> None:
    """`flush = "async"`, and a power cut."""
    disk = known(replace(BEGUN, is_synced=False))
    disk.note(N2, N1, alive(5, 90, 90))
    shorter = next_start(is_synced=False, last_index=Index(3))
    assert not disk.forgotten_by(shorter)
    assert disk.forgotten_by(replace(shorter, term=Term(4)))
    disk.begin(shorter)
    # What a life that synced nothing had told is not held against the ones that follow either.
    assert not disk.forgotten_by(replace(shorter, number=5, is_synced=True))


def test_promises_outlive_the_starts_in_which_they_were_made() -> None:
    disk = known()
    disk.note(N2, N1, acknowledged(5, 90))
    disk.begin(next_start(last_index=Index(95)))
    assert disk.forgotten_by(replace(next_start(), number=5, nonce=9))
    assert not disk.forgotten_by(replace(next_start(last_index=Index(95)), number=5, nonce=9))


def identity(start: Start, disk: DiskId = OLD) -> Identity:
    return Identity("g", N2, 4096, disk, start)


def test_what_a_peer_says_is_remembered_and_its_past_refused() -> None:
    """On a stream that it dialed; from then on it isn't heard in either direction."""
    node = Node()
    node.links.know(FIRST, {N2: OLD}, is_known=True)
    generation, _ = node.links.on_call(identity(BEGUN).hello(N1, FIRST))
    node.links.on_message(generation, seal(alive(5, 77, 70)))
    held = node.links.promises()[N2]
    assert (held.held_index, held.settled_index) == (77, 70)
    with pytest.raises(OlderCopy, match=r"after it held 77.*group replace n2"):
        node.links.on_call(identity(next_start()).hello(N1, FIRST))
    # Whoever calls in its name may be a stranger: it is not called a copy for that.
    assert not node.links.pictures()[N2].is_older_copy


def test_an_answer_to_a_keep_alive_says_what_this_disk_holds() -> None:
    node = Node()
    node.links.speak_for(lambda: Holding(Term(9), Index(8), Index(7)))
    generation, _ = node.links.on_call(identity(BEGUN).hello(N1, FIRST))
    node.links.on_message(generation, seal(alive(0, 0, 0)))
    answer = node.sockets.sent[-1][1]
    assert (answer.term, answer.keep_alive.held_index, answer.keep_alive.settled_index) == (9, 8, 7)


def test_a_keep_alive_that_no_log_can_be_like_is_nothing_to_remember() -> None:
    node = Node()
    node.links.know(FIRST, {N2: OLD}, is_known=True)
    generation, _ = node.links.on_call(identity(BEGUN).hello(N1, FIRST))
    ill = seal(alive(5, 70, 71))
    node.links.on_message(generation, ill)
    assert node.heard == [(N2, ill)]  # the driver refuses it
    assert node.links.promises()[N2].held_index == 0


def test_memory_outlives_a_restart_and_a_file_that_rots_is_only_forgotten(tmp_path: Path) -> None:
    disk = known(replace(BEGUN, is_synced=False))
    disk.note(N2, N1, alive(6, 90, 80))
    disk.note(N2, N1, PeerMessage(term=7, vote_response=VoteResponse(granted=True)))
    memory = Memory(OsFiles(), tmp_path)
    step = memory.step({N2: disk})
    assert step is not None
    step()
    assert memory.step({N2: disk}) is None
    assert Memory(OsFiles(), tmp_path).read() == {N2: disk}
    file = tmp_path / "promises.json"
    file.write_bytes(file.read_bytes().replace(b"90", b"91"))
    assert Memory(OsFiles(), tmp_path).read() == {}


def test_who_says_that_it_is_another_disk_makes_nobody_forget() -> None:
    """It is heard where it knows of a newer configuration, which anybody may say."""
    node = Node()
    node.links.know(FIRST, {N2: OLD}, is_known=True)
    generation, _ = node.links.on_call(identity(BEGUN).hello(N1, FIRST))
    node.links.on_message(generation, seal(alive(5, 77, 70)))
    node.links.on_call(identity(Start(1), NEW).hello(N1, LATER))
    assert node.links.promises()[N2].held_index == 77
    with pytest.raises(OlderCopy):
        node.links.on_call(identity(next_start()).hello(N1, FIRST))
    node.links.know(LATER, {N2: NEW}, is_known=True)
    node.links.on_call(identity(Start(1), NEW).hello(N1, LATER))
    assert node.links.promises()[N2].disk == NEW


@pytest.mark.parametrize("starts", [(1,), (1, 2), (2, 1)])
def test_who_is_named_while_it_is_heard_is_held_to_what_it_says_from_then_on(
    starts: tuple[int, ...],
) -> None:
    """A node that lags reads of the new disk in the log that this disk sends it: nobody says Hello
    again, and what was remembered of the disk before used to stand in the way for good. Of two
    calls that are up, the later start's counts."""
    node = Node()
    node.links.know(FIRST, {N2: OLD}, is_known=True)
    generation, _ = node.links.on_call(identity(BEGUN).hello(N1, FIRST))
    node.links.on_message(generation, seal(alive(5, 77, 70)))
    for number in starts:
        latest, _ = node.links.on_call(identity(Start(number), NEW).hello(N1, LATER))
    node.links.know(LATER, {N2: NEW}, is_known=True)
    node.links.on_message(latest, seal(alive(6, 90, 80)))
    held = node.links.promises()[N2]
    assert (held.disk, held.start.number) == (NEW, max(starts))
    assert (held.held_index, held.settled_index) == (90, 80)


@pytest.mark.parametrize(
    "said",
    [acknowledged(1 << 63, 99), acknowledged(5, 1 << 63)],
    ids=["a term", "a match"],
)
def test_what_a_node_that_stops_didn_t_look_at_is_not_remembered(said: PeerMessage) -> None:
    """Its links hand messages on until the end, and its driver refuses none any more."""
    node = Node()
    node.links.know(FIRST, {N2: OLD}, is_known=True)
    node.links.start()
    ((_, generation),) = node.sockets.dialed
    node.links.on_message(generation, identity(BEGUN).hello(N1, FIRST))
    before = node.links.promises()[N2]
    node.links.on_message(generation, seal(said))
    garbled = seal(acknowledged(5, 60))
    garbled.append_response.match_index = 124
    node.links.on_message(generation, garbled)
    assert node.links.promises()[N2] == before


def test_what_was_told_unsynced_is_no_promise_of_a_start_that_syncs() -> None:
    """The last words of a start with `flush = "async"` may be read after the next one's Hello, and
    be about entries that a power cut took between the two."""
    node = Node()
    node.links.know(FIRST, {N2: OLD}, is_known=True)
    earlier, _ = node.links.on_call(identity(replace(BEGUN, is_synced=False)).hello(N1, FIRST))
    node.links.on_call(identity(next_start()).hello(N1, FIRST))
    before = node.links.promises()[N2]
    node.links.on_message(earlier, seal(alive(5, 90, 90)))
    assert node.links.promises()[N2] == before, "an unsynced word was remembered"
    node.links.on_call(identity(replace(next_start(), number=5)).hello(N1, FIRST))
    assert node.links.promises()[N2].start.number == 5, "the healthy start was not heard"


def test_members_come_and_go_for_years_and_what_the_others_promise_is_read_again(
    tmp_path: Path,
) -> None:
    """Each under a name of its own, as where an orchestrator makes them up. The file of all is read
    up to a bound: beyond it a start had forgotten everything."""
    node, memory = Node(), Memory(OsFiles(), tmp_path)
    names = [NodeId(f"{number:064}") for number in range(300)]
    for number, name in enumerate(names):
        members = {N2: "", name: ""}
        disks = {N2: OLD, name: DiskId(f"{number:016}".encode())}
        node.links.know(LATER, disks, is_known=True, members=members)
        for each in members:
            node.links.on_call(Identity("g", each, 4096, disks[each], BEGUN).hello(N1, LATER))
    promises = node.links.promises()
    assert {N2, names[-1]} <= promises.keys()
    write = memory.step(promises)
    assert write is not None
    write()
    assert Memory(OsFiles(), tmp_path).read() == promises
