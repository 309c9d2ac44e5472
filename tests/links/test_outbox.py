"""What waits for a stream is bounded in bytes, whatever it is that is large."""

from __future__ import annotations

import asyncio

import pytest

from dledger.outbox import OUTBOX_BYTES, OUTBOX_MESSAGES, Outbox
from dledger.wire import raft_pb2 as pb

SIZE = 1 << 20


def append() -> pb.PeerMessage:
    return pb.PeerMessage(append_request=pb.AppendRequest(frames=bytes(SIZE), frames_size=SIZE))


def entries() -> pb.PeerMessage:
    return pb.PeerMessage(entries_response=pb.EntriesResponse(frames=bytes(SIZE), frames_size=SIZE))


def piece() -> pb.PeerMessage:
    return pb.PeerMessage(snapshot_response=pb.SnapshotResponse(piece=bytes(SIZE)))


@pytest.mark.parametrize(
    "message", [append(), entries(), piece()], ids=["append", "given", "piece"]
)
def test_outbox_takes_so_many_bytes_and_no_more(message: pb.PeerMessage) -> None:
    """A peer that asks and doesn't read fills nobody's memory; what it has read makes room."""

    async def check() -> None:
        outbox = Outbox()
        taken = sum(outbox.put(message) for _ in range(2 * OUTBOX_BYTES // SIZE))
        assert taken == OUTBOX_BYTES // SIZE
        assert await outbox.get() == message
        assert outbox.put(message)
        assert not outbox.put(message)

    asyncio.run(check())


def test_outbox_takes_so_many_messages_and_no_more() -> None:
    """Those that carry nothing count, too."""
    outbox = Outbox()
    beat = pb.PeerMessage(heartbeat_request=pb.HeartbeatRequest())
    assert sum(outbox.put(beat) for _ in range(OUTBOX_MESSAGES + 5)) == OUTBOX_MESSAGES


def test_one_message_is_taken_however_large() -> None:
    """It would never be sent otherwise."""
    outbox = Outbox()
    large = pb.PeerMessage(append_request=pb.AppendRequest(frames_size=2 * OUTBOX_BYTES))
    assert outbox.put(large)
    assert not outbox.put(large)
