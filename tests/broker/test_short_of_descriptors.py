"""A leader that can't open a ConsumeQueue's file for a while, as its process or the machine is
short of what that needs: calls are refused for now, and nothing ends."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from broker.errors import TRAITS, BrokerError, ErrorCode
from broker.state.groups import Settings, Start
from broker.state.topics import TopicRef
from store.consumequeue import ConsumeQueues
from store.dispatch import UNIT
from store.errors import StorageFull
from store.files import Handle, OsFiles
from store.queue_files import QueueFiles
from tests.broker.attended import QUEUES
from tests.broker.test_delay_pump import WAIT_MS, Levels
from tests.broker.test_held_back import Shop, bodies, receive

SCARCE = sorted({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


class Shortage:
    """While it lasts no file of a queue can be opened, and none is open."""

    def __init__(self, patch: pytest.MonkeyPatch, code: int) -> None:
        self.code, self.is_on, self.met = code, False, 0
        handle = QueueFiles.handle

        def opened(files: QueueFiles, path: Path) -> Handle:
            if self.is_on:
                self.met += 1
                raise OSError(self.code, os.strerror(self.code), str(path))
            return handle(files, path)

        patch.setattr(QueueFiles, "handle", opened)


@pytest.fixture(params=SCARCE, ids=errno.errorcode.get)
def shortage(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Shortage:
    return Shortage(monkeypatch, request.param)


def test_messages_are_refused_for_now(shortage: Shortage) -> None:
    """To who looks one up, and who asks for single ones, which nobody is then said to have."""
    shop = Shop()
    shop.send(0, b"one")
    node = shop.room.leader
    shortage.is_on = True
    with pytest.raises(BrokerError) as refused:
        shop.room.world.run(node, node.replica.services.offsets.by_time(TopicRef("t"), 0, 1))
    assert refused.value.code is ErrorCode.NOT_READY
    assert os.strerror(shortage.code) in str(refused.value)
    with pytest.raises(BrokerError) as refused:
        receive(shop)
    assert refused.value.code is ErrorCode.NOT_READY
    assert TRAITS[refused.value.code].is_retriable
    shortage.is_on = False
    assert bodies(receive(shop)) == [b"one"]


def test_what_waits_for_its_time_comes_later(shortage: Shortage) -> None:
    """The pump looks again: the leader leads on."""
    room = Levels()
    node = room.leader
    room.fail(("g", b"one"))
    shortage.is_on = True
    room.pass_ms(WAIT_MS + 1_000)
    assert shortage.met
    assert node.failure is None
    assert room.came().get("g", []) == []
    shortage.is_on = False
    room.pass_ms(5_000)
    assert room.leader is node
    assert room.came() == {"g": [b"one"]}


def test_members_begin_when_their_start_can_be_read(shortage: Shortage) -> None:
    """A group that begins at a time looks into the queues for it."""
    shop = Shop()
    for queue_id in range(QUEUES):
        shop.send(queue_id, b"one")
    room, node = shop.room, shop.room.leader
    shortage.is_on = True
    seat = room.seat()
    since = Settings(topics=("t",), start=Start.TIME, start_time_ms=1)
    member = seat.join(settings=since)
    room.pass_ms(3_000, seat)
    assert shortage.met
    assert not member.held
    assert node.failure is None
    assert seat.failure is None
    shortage.is_on = False
    room.pass_ms(3_000, seat)
    assert len(member.held) == QUEUES


def test_units_are_mended_later(tmp_path: Path, shortage: Shortage) -> None:
    queues = ConsumeQueues(tmp_path, OsFiles())
    units = UNIT.pack(0, 100, 7)
    queues.dispatch("t", 0, 0, units)
    shortage.is_on = True
    with pytest.raises(StorageFull, match=os.strerror(shortage.code)):
        queues.mend("t", 0, 0, units)
    with pytest.raises(StorageFull):
        queues.units("t", 0, 0, 1)
    shortage.is_on = False
    assert queues.mend("t", 0, 0, units) == 0
    assert queues.vouched("t", 0, 0, 1) == (units, 1)
