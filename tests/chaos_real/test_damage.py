"""Rot and old copies: what spoils which bytes, and what a node must do about it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from broker.local_group import LocalGroupError, NodeDied
from chaos.errors import NothingStruck
from chaos.real import damage
from chaos.real.arena import Arena
from chaos.real.blow import Blow
from chaos.real.damage import (
    await_repair,
    put_back,
    replace_rotten,
    rot,
    rot_below,
    set_aside,
)
from dledger.reading.entry import EntryKind, blank_filler, build_frame, verify_frame
from dledger.records.errors import InvalidFrame
from dledger.records.record import BATCH_PREAMBLE, RecordTemplate

SEGMENT = "0" * 20
NEXT_SEGMENT = f"{2 << 20:020}"


FILLER = blank_filler(64) + bytes(56)


def entry() -> bytes:
    """One of one record."""
    record = RecordTemplate("chaos", ("127.0.0.1", 1)).encode(0, b"body" * 9, b"", 1)
    body = BATCH_PREAMBLE.pack(bytes(16), 0, 1) + record
    header, _ = build_frame(EntryKind.DATA, 1, 1, 0, 1, 1, body, 0)
    return header + body


def flipped(segment: Path, before: bytes) -> list[int]:
    """Which bytes of it have changed, of as many as there are still."""
    pairs = zip(segment.read_bytes(), before, strict=True)
    return [at for at, (new, old) in enumerate(pairs) if new != old]


class FakeArena:
    """One node, n1, whose start ends as it is told to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rotten: set[str] = set()
        self.meant_to_be_down: set[str] = set()
        self.running = True
        self.log = ""
        self.refuses = ""  # what the node says when it doesn't start
        self.given_an_empty_disk = False
        self.copies: list[Path] = []
        self.unchanged_for = 2  # looks at the copies

    def data_directory(self, _: str) -> Path:
        return self.folder

    def is_running(self, _: str) -> bool:
        return self.running

    def kill(self, _: str) -> None:
        self.running = False

    async def gone(self, _: str) -> None:
        assert not self.running

    async def start(self, node_id: str) -> None:
        if self.refuses:
            self.log += self.refuses
            raise NodeDied(node_id, Path("log"), [self.refuses])
        self.running = True

    async def start_anew(self, _: str) -> None:
        self.given_an_empty_disk = True

    def log_end(self, _: str) -> int:
        return len(self.log)

    def log_since(self, _: str, start: int) -> str:
        return self.log[start:]

    def set_aside(self, _: str, __: str, file: Path) -> None:
        self.copies.append(file)

    def is_unchanged(self, _: str, __: str) -> bool:
        assert self.running, "a node that is dead changes nothing"
        self.unchanged_for -= 1
        return self.unchanged_for >= 0

    def put_back(self, _: str, __: str) -> bool:
        return self.unchanged_for < 0


async def nothing_wrong(_: int) -> str:
    return "a reader had no trouble"


def blow(arena: FakeArena, options: Mapping[str, str]) -> Blow:
    return Blow(
        cast(Arena, arena), cast(Any, None), "label", ("n1",), options, Random(1), nothing_wrong
    )


@pytest.fixture
def arena(tmp_path: Path) -> FakeArena:
    """With a log of one closed segment, of one entry and a record, and one that is written to."""
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / SEGMENT).write_bytes(bytes(entry()) + FILLER)
    (tmp_path / "commitlog" / NEXT_SEGMENT).write_bytes(bytes(entry()) + FILLER)
    return FakeArena(tmp_path)


def first_segment(arena: FakeArena) -> Path:
    return arena.folder / "commitlog" / SEGMENT


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(
    ("where", "first", "last"),
    [("anywhere", 0, len(entry()) - 1), ("place", 108, 123), ("body", 176, 176)],
)
def test_live_rot_flips_one_bit_where_it_is_asked_to(
    arena: FakeArena, where: str, first: int, last: int, seed: int
) -> None:
    """Of an entry, never of what nobody wrote; whichever it is, the entry's CRC shows it."""
    before = first_segment(arena).read_bytes()
    strike = blow(arena, {"where": where, "which": "oldest"})
    strike.chance.seed(seed)
    said = asyncio.run(rot_below(strike))
    (at,) = flipped(first_segment(arena), before)
    assert first <= at <= last
    assert said == f"n1: a bit of {SEGMENT} flipped at {at}; a reader had no trouble"
    with pytest.raises(InvalidFrame):
        verify_frame(first_segment(arena).read_bytes(), 0, None)


def test_live_rot_leaves_a_node_alone_that_has_no_closed_segment(arena: FakeArena) -> None:
    """In the tail it could be taken for a torn write. Segments made ahead are full of zeros."""
    (arena.folder / "commitlog" / NEXT_SEGMENT).write_bytes(bytes(200))
    before = first_segment(arena).read_bytes()

    async def strike_and_heal() -> str:
        strike = blow(arena, {"where": "anywhere", "which": "oldest"})
        with pytest.raises(NothingStruck, match="n1 has no closed segment yet"):
            await rot_below(strike)
        return await await_repair(strike)

    assert not asyncio.run(strike_and_heal())
    assert first_segment(arena).read_bytes() == before
    assert arena.running
    assert not arena.meant_to_be_down


@pytest.mark.parametrize("how", ["flip", "cut"])
def test_node_with_a_rotten_segment_is_replaced(arena: FakeArena, how: str) -> None:
    """It refused, and said why."""
    arena.refuses = "corruption in …"
    before = first_segment(arena).read_bytes()

    async def strike_and_heal() -> str:
        strike = blow(arena, {"how": how})
        await rot(strike)
        return await replace_rotten(strike)

    said = asyncio.run(strike_and_heal())
    assert said == "n1 refused to start and was given an empty disk"
    assert arena.given_an_empty_disk
    assert first_segment(arena).read_bytes() != before


def test_node_that_starts_on_a_rotten_segment_and_keeps_it_is_a_finding(
    arena: FakeArena, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was down when the bit flipped: its start reads it, or its scrub does soon."""
    monkeypatch.setattr(damage, "REPAIRED_S", 0.04)
    monkeypatch.setattr(damage, "LOOK_S", 0.01)

    async def strike_and_heal() -> None:
        each = blow(arena, {"how": "flip"})
        await rot(each)
        await replace_rotten(each)

    with pytest.raises(LocalGroupError, match="n1 runs on a closed segment that has rotted"):
        asyncio.run(strike_and_heal())


@pytest.mark.parametrize("what", ["repaired", "left", "ended"])
def test_node_that_runs_on_a_rotten_segment_gets_it_back(
    arena: FakeArena, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In time, and without ending; else it is a finding."""
    monkeypatch.setattr(damage, "REPAIRED_S", 0.04)
    monkeypatch.setattr(damage, "LOOK_S", 0.01)
    before = first_segment(arena).read_bytes()

    async def strike_and_heal() -> str:
        each = blow(arena, {"where": "anywhere", "which": "oldest"})
        await rot_below(each)
        if what == "repaired":
            asyncio.get_running_loop().call_later(0.015, first_segment(arena).write_bytes, before)
        arena.running = what != "ended"
        return await await_repair(each)

    if what == "repaired":
        assert asyncio.run(strike_and_heal()) == "n1 has got it back"
        assert arena.running
        assert not arena.rotten
    else:
        text = "runs on" if what == "left" else "ended over"
        with pytest.raises(LocalGroupError, match=f"n1 {text} a closed segment that has rotted"):
            asyncio.run(strike_and_heal())


def test_node_that_ends_for_another_reason_is_a_finding(arena: FakeArena) -> None:
    """Only corruption is replaced."""
    arena.refuses = "no memory"

    async def strike_and_heal() -> None:
        each = blow(arena, {"how": "flip"})
        await rot(each)
        await replace_rotten(each)

    with pytest.raises(NodeDied):
        asyncio.run(strike_and_heal())
    assert not arena.given_an_empty_disk


@pytest.mark.parametrize(
    ("file", "path"),
    [
        ("checkpoint", "checkpoint"),
        ("hard-state", "raft/hard_state"),
        ("segment", f"commitlog/{NEXT_SEGMENT}"),
        ("consume-queue", f"consumequeue/chaos@3/2/{SEGMENT}"),
    ],
)
def test_old_copy_is_of_the_file_that_was_asked_for(arena: FakeArena, file: str, path: str) -> None:
    """Of the segments the one being written, of other topics' queues none."""
    others = ("checkpoint", "raft/hard_state", f"consumequeue/t@5/0/{SEGMENT}")
    for name in (*others, f"consumequeue/chaos@3/2/{SEGMENT}", f"commitlog/{2 * (2 << 20):020}"):
        (arena.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (arena.folder / name).write_bytes(bytes(100))
    asyncio.run(set_aside(blow(arena, {"file": file})))
    assert arena.copies == [arena.folder / path]


@pytest.mark.parametrize("file", ["checkpoint", "segment", "hard-state"])
def test_node_that_refuses_an_old_copy_is_replaced(arena: FakeArena, file: str) -> None:
    """As for any corruption."""
    arena.refuses = "the hard state is corrupt"
    if file == "hard-state":
        arena.unchanged_for = -1  # an election is the schedule's affair, and not waited for
    said = asyncio.run(put_back(blow(arena, {"file": file})))
    assert said == "an older copy put back; n1 refused to start and was given an empty disk"
    assert arena.given_an_empty_disk


def test_file_that_never_changes_is_not_waited_for_for_ever(
    arena: FakeArena, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group may stand still. The report says what the blow came to."""
    monkeypatch.setattr("chaos.real.damage.CHANGES_WITHIN_S", 0.2)
    arena.unchanged_for = 1 << 30
    said = asyncio.run(put_back(blow(arena, {"file": "segment"})))
    assert said == "the copy was still the same; n1 started"


def test_derived_file_is_no_reason_to_refuse(arena: FakeArena) -> None:
    """ADR 7: it can be made from the log, whatever it holds."""
    assert asyncio.run(put_back(blow(arena, {"file": "consume-queue"}))).endswith("n1 started")
    arena.refuses = "corruption in consumequeue"
    with pytest.raises(LocalGroupError, match="an old copy of a ConsumeQueue"):
        asyncio.run(put_back(blow(arena, {"file": "consume-queue"})))
    assert not arena.given_an_empty_disk
