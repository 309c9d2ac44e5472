"""The Audit service of nodes that run: what it answers, what it refuses, what it costs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from xxhash import xxh3_64_intdigest

from broker.assembly import committed_log
from broker.reading import segments
from broker.reading.committed import CommittedLog
from broker.reading.segments import hash_blocks, slices
from broker.replica import Replica
from broker.services import audit
from broker.services.audit import Meter
from dledger.reading.log_start import LogStart
from dledger.wire import audit_pb2 as apb
from dledger.wire import errors_pb2 as epb
from tests.integration.group import SEGMENT_BYTES, WAIT_S, Group, error_of, running_group

BLOCK = 4096


def run_in(directory: Path, story: Callable[[Group], Any], **changes: Any) -> None:
    """`story` with a group of one node, which answers like each of many."""

    async def play() -> None:
        async with running_group(directory, 1, **changes) as group:
            await group.create_topic()
            await group.at_its_level()  # nothing is appended to the log by itself from now on
            for sequence in range(8):
                await group.send(sequence, bytes((65 + sequence,)) * 20_000)
            await story(group)

    asyncio.run(play())


def committed(node: Replica) -> int:
    return committed_log(node.parts).ends().committed_offset


def wanted(edges: list[int], **changes: Any) -> apb.DigestRangesRequest:
    given: dict[str, Any] = {
        "broker_group": "g1",
        "segment_size_bytes": SEGMENT_BYTES,
        "edges": edges,
    }
    return apb.DigestRangesRequest(**(given | changes))


async def digests_of(group: Group, request: apb.DigestRangesRequest) -> list[apb.RangeDigests]:
    call = group.channel("n1").unary_stream(
        "/dledger.v1.Audit/DigestRanges",
        request_serializer=apb.DigestRangesRequest.SerializeToString,
        response_deserializer=apb.RangeDigests.FromString,
    )
    return [answer async for answer in call(request, timeout=WAIT_S)]


async def read(group: Group, request: apb.ReadRangeRequest) -> apb.ReadRangeResponse:
    call = group.channel("n1").unary_unary(
        "/dledger.v1.Audit/ReadRange",
        request_serializer=apb.ReadRangeRequest.SerializeToString,
        response_deserializer=apb.ReadRangeResponse.FromString,
    )
    answer: apb.ReadRangeResponse = await call(request, timeout=WAIT_S)
    return answer


def file_of(node: Replica) -> Path:
    return Path(node.config.data_directory) / "commitlog" / f"{0:020d}"


def test_digests_are_those_of_the_files_bytes(tmp_path: Path) -> None:
    """8 bytes a block, in their order; the last block in part; over slices as over one."""

    async def story(group: Group) -> None:
        node = group.nodes["n1"]
        end = committed(node)
        edges = [*range(0, end, BLOCK), end]
        answers = await digests_of(group, wanted(edges))
        content = file_of(node).read_bytes()
        expected = b"".join(
            xxh3_64_intdigest(content[start:stop]).to_bytes(8, "little")
            for start, stop in pairwise(edges)
        )
        assert b"".join(each.digests for each in answers) == expected
        assert [each.done for each in answers] == [False] * (len(answers) - 1) + [True]
        assert (answers[-1].readable, answers[-1].problem) == (end, 0)

    run_in(tmp_path, story)


def test_nothing_beyond_what_is_committed_is_told(tmp_path: Path) -> None:
    """Digests are refused; bytes end there."""

    async def story(group: Group) -> None:
        end = committed(group.nodes["n1"])
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await digests_of(group, wanted([0, end + 1]))
        assert error_of(caught.value).code == epb.OFFSET_OUT_OF_RANGE
        request = apb.ReadRangeRequest(
            broker_group="g1", segment_size_bytes=SEGMENT_BYTES, offset=end - 10, size=100
        )
        assert len((await read(group, request)).data) == 10
        request.offset = end + 5
        assert (await read(group, request)).data == b""

    run_in(tmp_path, story)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (wanted([0, 10], broker_group="g2"), epb.WRONG_BROKER_GROUP),
        (wanted([0, 10], segment_size_bytes=1 << 30), epb.INVALID_ARGUMENT),
        (wanted([5, 10], base=5), epb.INVALID_ARGUMENT),
        (wanted([10, 10]), epb.INVALID_ARGUMENT),
        (wanted([10, 5]), epb.INVALID_ARGUMENT),
        (wanted([0]), epb.INVALID_ARGUMENT),
        (wanted([]), epb.INVALID_ARGUMENT),
        (wanted([0, SEGMENT_BYTES + 1]), epb.INVALID_ARGUMENT),
        (wanted([0, SEGMENT_BYTES], base=SEGMENT_BYTES), epb.INVALID_ARGUMENT),
        (wanted(list(range(audit.MAX_BLOCKS + 2))), epb.INVALID_ARGUMENT),
    ],
    ids=str,
)
def test_requests_that_make_no_sense_are_refused(
    shared: Group,
    loop: asyncio.AbstractEventLoop,
    request_: apb.DigestRangesRequest,
    code: epb.ErrorCode,
) -> None:
    """Each with the error that says why; none of them reads a byte."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        loop.run_until_complete(digests_of(shared, request_))
    assert error_of(caught.value).code == code


@pytest.mark.parametrize("size", [0, audit.MAX_READ_BYTES + 1])
def test_a_read_is_bounded(shared: Group, loop: asyncio.AbstractEventLoop, size: int) -> None:
    """A mebibyte at once; a node's memory isn't an auditor's."""
    request = apb.ReadRangeRequest(broker_group="g1", segment_size_bytes=SEGMENT_BYTES, size=size)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        loop.run_until_complete(read(shared, request))
    assert error_of(caught.value).code == epb.INVALID_ARGUMENT


def test_a_call_covers_so_many_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More is refused: a call must end in a foreseeable time."""
    monkeypatch.setattr(audit, "MAX_CALL_BYTES", 1000)

    async def story(group: Group) -> None:
        assert (await digests_of(group, wanted([0, 1000])))[-1].done
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await digests_of(group, wanted([0, 1001]))
        assert error_of(caught.value).code == epb.INVALID_ARGUMENT

    run_in(tmp_path, story)


def test_a_third_call_is_told_to_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RESOURCE_EXHAUSTED beyond two at once, sends go on meanwhile, and a place that was left can
    be taken again."""

    async def story(group: Group) -> None:
        go_on = asyncio.Event()
        waiting = asyncio.Semaphore(0)

        async def hold(self: object, own: Meter, size: int) -> None:
            waiting.release()
            await go_on.wait()

        monkeypatch.setattr(audit.Audit, "_wait", hold)
        held = [asyncio.ensure_future(digests_of(group, wanted([0, 10]))) for _ in range(2)]
        for _ in held:
            await waiting.acquire()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await digests_of(group, wanted([0, 10]))
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert error_of(caught.value).retriable
        assert (await group.send(8, b"sent during an audit")).error.code == 0
        go_on.set()
        assert all(answers[-1].done for answers in await asyncio.gather(*held))
        assert (await digests_of(group, wanted([0, 10])))[-1].done

    run_in(tmp_path, story)


def test_a_file_that_ends_early_or_is_gone_is_told(tmp_path: Path) -> None:
    """With the digests before its end, and where that is; the node itself goes on."""

    async def story(group: Group) -> None:
        path = file_of(group.nodes["n1"])
        whole = await digests_of(group, wanted([0, BLOCK, 3 * BLOCK]))
        aside = path.with_name("aside")
        aside.write_bytes(path.read_bytes()[: 2 * BLOCK])
        path.rename(path.with_name("kept"))
        aside.rename(path)
        (answer,) = await digests_of(group, wanted([0, BLOCK, 3 * BLOCK]))
        assert answer.digests == whole[0].digests[:8]
        assert (answer.problem, answer.readable) == (apb.SEGMENT_TRUNCATED, 2 * BLOCK)
        path.unlink()
        (answer,) = await digests_of(group, wanted([0, BLOCK]))
        assert (answer.problem, answer.detail) == (apb.SEGMENT_MISSING, "no such file")
        path.symlink_to(path)
        (answer,) = await digests_of(group, wanted([0, BLOCK]))
        assert answer.problem == apb.SEGMENT_UNREADABLE
        request = apb.ReadRangeRequest(broker_group="g1", segment_size_bytes=SEGMENT_BYTES, size=10)
        assert (await read(group, request)).problem == apb.SEGMENT_UNREADABLE
        path.unlink()
        path.with_name("kept").rename(path)

    run_in(tmp_path, story)


def test_a_segment_before_the_logs_begin_was_deleted_by_retention(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Absent by right: told apart from one that was lost."""

    async def story(group: Group) -> None:
        node = group.nodes["n1"]
        path = file_of(node)
        path.rename(path.with_name("kept"))
        start = LogStart(1, 1, 7, SEGMENT_BYTES - 100)
        monkeypatch.setattr(type(node.log), "start", property(lambda self: start))
        monkeypatch.setattr(CommittedLog, "durable_end", lambda self: SEGMENT_BYTES)
        (answer,) = await digests_of(group, wanted([0, BLOCK]))
        assert answer.problem == apb.SEGMENT_RETAINED
        path.with_name("kept").rename(path)

    run_in(tmp_path, story)


def test_meter_holds_a_reader_to_its_rate() -> None:
    """Ten bytes at two a second take five seconds; what wasn't used isn't saved up."""
    meter = Meter(2)
    assert meter.spend(10, now=100.0) == 5.0
    assert meter.spend(10, now=105.0) == 5.0
    assert meter.spend(2, now=1000.0) == 1.0
    assert Meter(0).spend(1 << 40, now=1.0) == 0.0


def test_a_call_keeps_to_the_slower_of_two_rates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node's own bounds all calls together; a request can only ask for less."""
    waits: list[float] = []

    async def nap(seconds: float) -> None:
        waits.append(seconds)

    async def story(group: Group) -> None:
        monkeypatch.setattr("broker.services.audit.time", SimpleNamespace(monotonic=lambda: 50.0))
        monkeypatch.setattr("broker.services.audit.asyncio", SimpleNamespace(sleep=nap))
        end = 1 << 16
        service = group.nodes["n1"].services.audit
        await service._wait(Meter(1 << 14), end)
        await service._wait(Meter(0), end)

    run_in(tmp_path, story, broker={"audit_bytes_per_s": 1 << 20})
    assert waits == [4.0, 0.125]


def test_slices_cover_the_blocks_once() -> None:
    """In runs that fit a slice; a block larger than a slice is one."""
    large = segments.SLICE_BYTES
    edges = [0, 10, large - 5, large + 10, 3 * large, 3 * large + 1]
    cut = list(slices(edges))
    assert cut == [[0, 10, large - 5], [large - 5, large + 10], [large + 10, 3 * large],
                   [3 * large, 3 * large + 1]]  # fmt: skip


def test_a_block_is_hashed_in_small_pieces(tmp_path: Path) -> None:
    """A block of 64 MiB needs no 64 MiB: the buffer is a chunk's, and the digest the whole's."""
    import tracemalloc

    path = tmp_path / f"{0:020d}"
    content = bytes(range(256)) * (8 << 12)
    path.write_bytes(content)
    tracemalloc.start()
    try:
        hashed = hash_blocks(path, [0, len(content)])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert hashed.digests == xxh3_64_intdigest(content).to_bytes(8, "little")
    assert peak < 2 * segments.CHUNK_BYTES < len(content)
