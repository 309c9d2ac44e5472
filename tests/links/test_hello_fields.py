"""What is kept of a Hello, and that anything else in it is refused before."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.memory import Memory
from dledger.checksum import seal
from dledger.core.types import ConfigurationPlace, HardState, Index, NodeId, Term
from dledger.errors import PeerRefused
from dledger.greeting import KnownDisks, Speaker
from dledger.hard_state import HardStateStore, encode_hard_state
from dledger.promises import MAX_STARTS, MAX_STARTS_UNHEARD, Promises, Start
from dledger.wire.raft_pb2 import PeerMessage
from store.atomic_file import AtomicFile
from store.files import OsFiles
from store.second_copy import SIZE as COPY_BYTES
from tests.links.test_disks import LATER, NEW, OLD, hello
from tests.links.test_peers import N1, N2, Node
from tests.scale import examples

LONGEST = "n" * 64


def said(**fields: object) -> PeerMessage:
    """n2's Hello, in which these are otherwise."""
    message = hello(OLD).hello(N1, LATER)
    for name, value in fields.items():
        setattr(message.hello, name, value)
    return seal(message)


@pytest.mark.parametrize(
    "name",
    ["n" * 65, "n" * 70_000, "../n2", "n 2", "n2\n", "n\0", "é"],
    ids=["long", "longer than any file", "path", "blank", "line", "NUL", "letter"],
)
def test_nobody_is_heard_whom_no_node_is_called_like(name: str) -> None:
    """Who knows more members may be a stranger by name; a vote for it goes to the disk."""
    node = Node()
    with pytest.raises(PeerRefused, match="no node is called so") as caught:
        node.links.on_call(said(node_id=name))
    assert len(str(caught.value)) < 500
    assert node.links.on_call(said(node_id=LONGEST))


@pytest.mark.parametrize("size", [1, 15, 17, 100_000])
def test_a_disk_has_an_id_of_its_length_or_none(size: int) -> None:
    """It is written down with what it promises, among those of all others."""
    node = Node()
    with pytest.raises(PeerRefused, match=f"an id of {size} bytes"):
        node.links.on_call(said(disk_id=bytes(size)))
    assert not node.links.promises()
    node.links.on_call(said(disk_id=b""))


@pytest.mark.parametrize("vote", ["n" * 65, "n\0", "é"])
def test_a_vote_that_nobody_can_have_got_is_not_kept(vote: str) -> None:
    """In JSON a letter takes up to six bytes: the file of 64 disks would be too large to be read
    again."""
    node = Node()
    with pytest.raises(PeerRefused, match="beyond any log"):
        node.links.on_call(said(begun_vote=vote))
    assert not node.links.promises()
    assert node.links.on_call(said(begun_vote=LONGEST))


def test_a_number_of_starts_that_no_disk_has_had_is_held_against_none() -> None:
    """Neither one that no file can hold, nor one far above the last that was heard: every honest
    start after it would be taken for an older copy's."""
    node = Node()
    with pytest.raises(PeerRefused, match="beyond any log"):
        node.links.on_call(said(boot_number=MAX_STARTS + 1))
    assert not node.links.promises()
    node.links.on_call(said(boot_number=7))
    with pytest.raises(PeerRefused, match="number 4294967304, after number 7"):
        node.links.on_call(said(boot_number=8 + MAX_STARTS_UNHEARD))
    assert node.links.promises()[N2].start.number == 7
    node.links.on_call(said(boot_number=8))
    assert node.links.promises()[N2].start.number == 8


def test_a_disk_that_is_named_later_is_held_to_no_number_that_it_cannot_have() -> None:
    """It was heard as another one's before, of which nothing was remembered."""
    known = KnownDisks(ConfigurationPlace(Term(1), Index(1)), {N2: NEW})
    known.recall({N2: Promises(NEW, Start(7, 1))})
    for number, held in ((8 + MAX_STARTS_UNHEARD, 7), (8, 8)):
        known.named(N2, Speaker(NEW, Start(number, 2), known.place))
        assert known.promises[N2].start.number == held


def test_a_refusal_tells_no_more_of_a_hello_than_people_read() -> None:
    """It goes into the log of this node, and to who is refused."""
    for field in ("broker_group", "to_node_id", "node_id"):
        with pytest.raises(PeerRefused) as caught:
            Node().links.on_call(said(**{field: "x" * 100_000}))
        assert len(str(caught.value)) < 500


WORDS = st.one_of(st.text(max_size=300), st.sampled_from([LONGEST, "n2", "x" * 65_520]))
NUMBERS = st.integers(0, (1 << 64) - 1)


@settings(max_examples=examples(200), deadline=None, derandomize=True, database=None)
@given(
    name=WORDS,
    vote=st.one_of(st.sampled_from(["", "n3", LONGEST]), st.text(max_size=255)),
    disk=st.one_of(st.binary(min_size=16, max_size=16), st.binary(max_size=40)),
    numbers=st.lists(st.one_of(st.integers(0, 9), NUMBERS), min_size=6, max_size=6),
)
def test_whatever_is_heard_can_be_kept_and_read_again(
    name: str, vote: str, disk: bytes, numbers: list[int]
) -> None:
    """By the next start: the vote for who was heard, and what its disk has promised."""
    fields = (
        "boot_number",
        "boot_nonce",
        "configuration_term",
        "configuration_index",
        "begun_term",
        "begun_index",
    )
    node = Node()
    told = dict(zip(fields, numbers, strict=True))
    try:
        node.links.on_call(said(node_id=name, begun_vote=vote, disk_id=disk, **told))
        node.links.on_call(said(begun_vote=vote, disk_id=disk, **told))
    except PeerRefused:
        return
    with tempfile.TemporaryDirectory() as folder:
        state = HardState(Term(1), NodeId(name))
        store = HardStateStore(AtomicFile(OsFiles(), Path(folder, "hard_state")))
        store.save(state)
        assert store.load() == state
        assert len(encode_hard_state(state)) + 64 < COPY_BYTES
        promises = node.links.promises()
        memory = Memory(OsFiles(), Path(folder))
        assert not disk or promises[N2].disk == disk
        if (write := memory.step(promises)) is not None:
            write()
        assert Memory(OsFiles(), Path(folder)).read() == promises
