"""What is offered is pulled from who offers it, as far as there is room, and read back before the
log goes that was; and who doesn't answer keeps nobody from asking another."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from crc32c import crc32c
from structlog.testing import capture_logs

from broker import installing, pulling
from broker.installing import Around, Installer
from broker.pulling import MAX_BYTES, PIECE_BYTES, NotGiven, Pulling
from broker.state.machine import USUAL
from broker.state.registration import ProducerBounds
from broker.state.replicated import ReplicatedState
from chaos.sim.disk import SimulatedDisk
from dledger.checksum import seal
from dledger.core.types import (
    ConfigurationPlace,
    Index,
    LogBase,
    NodeId,
    SnapshotOffer,
    Term,
)
from dledger.level import FIRST_LEVEL
from dledger.wire import raft_pb2 as pb
from store.snapshot_files import FOLDER, RECEIVED, SnapshotFiles, SnapshotHead

T = TypeVar("T")
DATA = Path("/data")
N1, N2, N3 = NodeId("n1"), NodeId("n2"), NodeId("n3")
MANY = 20  # questions, after which somebody isn't going to answer


def made_disk() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.mkdir(DATA)
    return disk


def base_at(index: int) -> LogBase:
    return LogBase(
        index=Index(index),
        term=Term(1),
        digest=5,
        append_time_ms=1,
        end_offset=900,
        place=ConfigurationPlace(Term(1), Index(1)),
        configuration=None,
    )


def offer_of(sender: NodeId, index: int = 7) -> SnapshotOffer:
    return SnapshotOffer(sender, N3, Term(2), base_at(index))


def piece(number: int, size: int, content: bytes) -> pb.SnapshotResponse:
    return pb.SnapshotResponse(
        number=number,
        status=pb.SNAPSHOT_STATUS_GIVEN,
        size_bytes=size,
        piece=content,
        piece_crc=crc32c(content),
    )


@dataclass
class Bench:
    """A member that needs a state; its peers answer as `answer` says, if at all."""

    disk: SimulatedDisk = field(default_factory=made_disk)
    reserve_bytes: int = 0
    log_bytes: int = 0
    asked: list[tuple[NodeId, pb.SnapshotRequest]] = field(default_factory=list)
    answer: Callable[[NodeId, pb.SnapshotRequest], pb.SnapshotResponse | None] = lambda *_: None
    before_step: Callable[[], None] = lambda: None
    over: Callable[[], bool] = lambda: False
    is_compared: bool = False
    given: list[pb.PeerMessage] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.files = SnapshotFiles(DATA, self.disk, self.reserve_bytes)
        self.done = asyncio.Event()
        log = SimpleNamespace(
            statistics=lambda: SimpleNamespace(log_bytes=self.log_bytes),
            start=SimpleNamespace(index=0, end_offset=0),
        )
        base: Any = SimpleNamespace(
            files=self.files, log=log, disk_id=bytes(16), options=USUAL, known_level=FIRST_LEVEL
        )
        around = Around(
            ask=self._ask,
            give=lambda _, message: self.given.append(message),
            needs=lambda _: True,
            peers=lambda: [N1, N2, N3],
            is_compared=lambda: self.is_compared,
            fall_silent=lambda: None,
            reopen=lambda: None,
            failed=self._failed,
        )
        nobody: Any = None
        self.failure: BaseException | None = None
        self.installer = Installer(base, nobody, nobody, self, around)

    async def run(self, step: Callable[[], T]) -> T:
        await asyncio.sleep(0)
        self.before_step()
        return step()

    def _ask(self, peer: NodeId, message: pb.PeerMessage) -> None:
        request = message.snapshot_request
        self.asked.append((peer, request))
        answer = self.answer(peer, request)
        if answer is not None:
            said = seal(pb.PeerMessage(snapshot_response=answer))
            asyncio.get_running_loop().call_soon(self.installer.on_message, peer, said)
        if self.over() or len(self.asked) >= MANY:
            self.done.set()

    def _failed(self, error: BaseException) -> None:
        self.failure = error
        self.done.set()

    def asked_of(self, peer: NodeId) -> int:
        return sum(each == peer for each, _ in self.asked)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who doesn't answer is waited for for a moment only."""
    monkeypatch.setattr(pulling, "ASK_S", 0.001)
    monkeypatch.setattr(pulling, "QUIET_S", 0.004)
    monkeypatch.setattr(installing, "LISTEN_S", 0.0)
    monkeypatch.setattr(installing, "AGAIN_S", 0.001)


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_who_offers_no_more_is_asked_no_more(steps: int) -> None:
    """Leadership has moved and the old leader is gone; the new one offers, and its first offer
    comes while a piece of the old one's is being written: nothing was asked just then that could
    have been given up."""

    async def work() -> Bench:
        bench = Bench()
        count = 0

        def answer(peer: NodeId, request: pb.SnapshotRequest) -> pb.SnapshotResponse | None:
            # Not for so many questions: on a busy machine an answer comes too late for its own.
            is_there = peer == N1 and count < steps
            return piece(request.number, 10 * PIECE_BYTES, b"x") if is_there else None

        def another_leads() -> None:
            nonlocal count
            count += 1
            if count >= steps:
                bench.installer.offered(offer_of(N2))

        bench.answer, bench.before_step = answer, another_leads
        bench.over = lambda: bench.asked_of(N2) > 0
        bench.installer.offered(offer_of(N1))
        await bench.done.wait()
        await bench.installer.stop()
        return bench

    bench = asyncio.run(work())
    assert bench.asked_of(N2), f"n1 was asked {bench.asked_of(N1)} times"
    assert bench.failure is None


def test_a_peer_that_doesnt_answer_keeps_nobody_from_asking_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a base that has rotted here: whoever hangs costs some questions, and not half a minute;
    who gives piece after piece is heard to the end."""
    monkeypatch.setattr(pulling, "ASK_S", 0.2)  # the same: each piece is asked for once
    monkeypatch.setattr(pulling, "QUIET_S", 0.5)

    async def work() -> Bench:
        bench = Bench()
        bench.answer = lambda peer, request: (
            None
            if peer == N1
            else piece(request.number, 12, b"x")
            if peer == N2
            else pb.SnapshotResponse(number=request.number, status=pb.SNAPSHOT_STATUS_GONE)
        )
        assert await bench.installer.fetched(base_at(7)) is None  # what n2 gives is no state
        return bench

    bench = asyncio.run(work())
    assert 1 <= bench.asked_of(N1) <= 5
    assert bench.asked_of(N2) == 12
    assert bench.installer._pulling.taken_bytes == 12
    assert bench.asked_of(N3) == 1


def base_of_level(index: int, level: int) -> bytes:
    """The file of a state as of that entry."""
    disk, base = made_disk(), base_at(index)
    state = ReplicatedState(10, 10, ProducerBounds())
    state.applied_index, state.level.current = index, level
    files = SnapshotFiles(DATA, disk)
    head = SnapshotHead(bytes(16), index, base.term, base.digest, base.end_offset)
    unfinished = files.begin(head)
    unfinished.add(list(state.snapshot()))
    unfinished.finish()
    files.publish(unfinished)
    return disk.content(files.path(index))


def test_a_state_of_a_later_level_is_pulled_once_and_told() -> None:
    """It is the same an hour later, and from another one; only a newer program can begin with it.
    Another state may be of a level that is known: it is looked at, too."""
    given = {index: base_of_level(index, FIRST_LEVEL + 1) for index in (7, 9)}

    async def work() -> list[MutableMapping[str, Any]]:
        bench = Bench()
        installer = bench.installer
        bench.answer = lambda _, request: piece(
            request.number, len(given[request.index]), given[request.index][request.at :]
        )

        with capture_logs() as captured:
            assert installer.apply_stopped == ""
            for sender, index in ((N1, 7), (N2, 7), (N1, 9)):
                installer.offered(offer_of(sender, index))
                while f"behind entry {index}" not in installer.apply_stopped:
                    installer.offered(offer_of(sender, index))
                    await asyncio.sleep(0)
                for _ in range(MANY):
                    await asyncio.sleep(2 * installing.AGAIN_S)
        assert "uses level 2, and this program knows level 1" in installer.apply_stopped
        assert [(peer, request.index) for peer, request in bench.asked] == [(N1, 7), (N1, 9)]
        assert bench.failure is None
        installer._offered_s -= installing.SILENT_S
        assert installer.apply_stopped == "", "nobody offers it any more: it may not need it"
        await installer.stop()
        return [each for each in captured if each["log_level"] in ("warning", "critical")]

    told = asyncio.run(work())
    assert [(each["event"], each["index"]) for each in told] == [
        ("apply_stopped", 7),
        ("apply_stopped", 9),
    ]
    assert {(each["level"], each["known_level"]) for each in told} == {(2, 1)}


@pytest.mark.parametrize(
    ("bytes_a_second", "is_answering", "seconds"),
    [
        (640 << 10, True, 1_700),  # 64 KiB a round trip of 100 ms: all of the largest state
        (64 << 10, True, 1_700),
        (1 << 10, True, 30),
        (0, False, 3),
    ],
)
def test_who_gives_a_state_is_heard_while_it_goes_on(
    bytes_a_second: int, seconds: int, monkeypatch: pytest.MonkeyPatch, *, is_answering: bool
) -> None:
    """Of a large state, or a peer that is far away, half a minute was never enough; who gives next
    to nothing, or nothing, keeps nobody from asking another one."""
    now_s = 0.0
    monkeypatch.setattr(pulling, "QUIET_S", 3.0)
    clock = SimpleNamespace(time=lambda: now_s)
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: clock)
    nobody: Any = None
    pull = Pulling(lambda *_: None, nobody, nobody)
    is_heard = pull.patience(installing.FETCH_S)
    while is_heard() and now_s < 1_700:
        now_s += 1.0
        pull.taken_bytes += bytes_a_second
        pull.answers += is_answering
    assert now_s == seconds


ROOM = 1 << 20


@pytest.mark.parametrize(
    ("size", "reserve", "log_bytes", "is_taken"),
    [
        (ROOM // 2, 0, 0, True),
        (ROOM // 4, ROOM // 2, 0, True),
        (3 * ROOM // 8, ROOM // 2, 0, True),  # half of what is kept for the log
        (3 * ROOM // 8 + 1, ROOM // 2, 0, False),
        (ROOM // 2, ROOM // 2, ROOM // 2, True),  # and all of it, where the log gives that back
        (ROOM // 2 + 1, ROOM // 2, ROOM, False),
        (MAX_BYTES, ROOM // 2, 0, False),
        (MAX_BYTES, 2 * ROOM, 1 << 40, False),
    ],
)
def test_a_peers_word_takes_no_more_of_the_disk_than_it_can_spare(
    size: int, reserve: int, log_bytes: int, *, is_taken: bool
) -> None:
    """It is refused before its first byte is written, in words that say how much there is."""

    async def work() -> tuple[Bench, OSError | NotGiven | None]:
        bench = Bench(reserve_bytes=reserve)
        bench.disk.capacity_bytes = ROOM
        pull = Pulling(bench._ask, bench.files, bench)
        bench.installer._pulling = pull
        bench.answer = lambda _, request: (
            piece(request.number, size, b"x")
            if request.at == 0
            else pb.SnapshotResponse(number=request.number, status=pb.SNAPSHOT_STATUS_GONE)
        )
        try:
            await pull.pull(N1, 7, lambda: True, log_bytes)
        except (OSError, NotGiven) as error:
            return bench, error
        return bench, None

    bench, error = asyncio.run(work())
    assert bench.disk.has(DATA / FOLDER / RECEIVED) == is_taken
    assert isinstance(error, NotGiven) == is_taken  # "gone there", with the second piece
    if isinstance(error, OSError):
        assert error.errno == errno.ENOSPC
        assert f"of the {ROOM} bytes that are free" in str(error)
        assert error.filename == str(DATA / FOLDER)


def test_a_state_that_is_too_large_is_refused_by_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its giver works: whoever looks for the reason is told what is too much."""
    monkeypatch.setattr(pulling, "ASK_S", 5.0)  # a turn of a busy loop takes longer than a moment

    async def work() -> None:
        bench = Bench()
        pull = bench.installer._pulling
        bench.answer = lambda _, request: piece(request.number, MAX_BYTES + 1, b"x")
        with pytest.raises(NotGiven, match="a state of 1,073,741,825 bytes"):
            await pull.pull(N1, 7, lambda: len(bench.asked) < 3, 0)
        assert len(bench.asked) == 1

    asyncio.run(work())


def test_more_than_was_announced_isnt_taken() -> None:
    """What was judged to have room is what comes."""

    async def work() -> None:
        bench = Bench()
        pull = bench.installer._pulling
        bench.answer = lambda _, request: piece(
            request.number, 3, b"xx" if request.at == 0 else b"yy"
        )
        with pytest.raises(NotGiven, match="more than it has"):
            await pull.pull(N1, 7, lambda: True, 0)
        assert bench.disk.content(DATA / FOLDER / RECEIVED) == b"xx"

    asyncio.run(work())


def test_what_was_pulled_waits_until_logs_are_compared_no_more() -> None:
    """It may have taken long, and comparing takes seconds; it waits while it is offered only."""

    async def scenario() -> None:
        for is_offered in (True, False):
            bench, offer, intended = Bench(is_compared=True), offer_of(N1), list[object]()
            install: Any = SimpleNamespace(intend=intended.append)
            installer = bench.installer
            installer._install, installer._offer = install, offer
            installer._offered_s = asyncio.get_running_loop().time()
            beginning = asyncio.ensure_future(installer._begin_anew(offer))
            await asyncio.sleep(5 * installing.LOOK_S)
            assert not beginning.done()
            if is_offered:
                bench.is_compared = False
                await beginning
                assert len(intended) == 1
            else:
                installer._offered_s -= installing.SILENT_S
                with pytest.raises(NotGiven):
                    await beginning
                assert not intended

    asyncio.run(scenario())


def test_nobody_is_told_where_a_log_begins_that_may_be_the_wrong_one() -> None:
    """Who asks has a log with gaps: it would begin with this one's state, agree with this one from
    then on, and with it be a majority against whoever has the true log."""

    async def scenario() -> None:
        bench = Bench()
        asked = seal(pb.PeerMessage(log_start_request=pb.LogStartRequest(number=1)))
        bench.is_compared = True
        assert bench.installer.on_message(N1, asked)
        assert not bench.given
        bench.is_compared = False
        assert bench.installer.on_message(N1, asked)
        assert [each.log_start_response.number for each in bench.given] == [1]

    asyncio.run(scenario())


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOENT, errno.EMFILE], ids=errno.errorcode.get)
def test_a_state_that_cant_be_read_is_looked_at_by_who_has_it(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """And not only called gone, to the peer that asks, while nobody here hears of it; what a
    process is short of for a moment says nothing of a file."""
    bench = Bench()
    monkeypatch.setattr(bench.installer._base.log.start, "index", 7)

    def piece(*_: object) -> tuple[int, bytes]:
        raise OSError(code, "no")

    monkeypatch.setattr(bench.files, "piece", piece)
    lost: list[bool] = []
    bench.installer.when_lost(lambda: lost.append(True))
    request = pb.SnapshotRequest(number=1, index=7, at=0)
    with capture_logs() as said:
        bench.installer.on_message(N2, seal(pb.PeerMessage(snapshot_request=request)))
    assert [each["event"] for each in said] == ["base_not_given"]
    is_passing = code == errno.EMFILE
    assert lost == [True] * (not is_passing)
    statuses = [each.snapshot_response.status for each in bench.given]
    assert statuses == [pb.SNAPSHOT_STATUS_GONE] * (not is_passing)
