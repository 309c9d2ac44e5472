"""Broadcast groups: every member is given everything, and knows itself how far it is."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from dledger.client import (
    Client,
    Message,
    OffsetsFileUnusable,
    PushConsumer,
    Reject,
    StartFrom,
    TopicNotFound,
)
from dledger.client.broker_group import BrokerGroup
from dledger.client.connection import DESCRIBE_TOPIC, Method
from dledger.client.group_epoch import FIRST_EPOCH, EpochName
from dledger.client.members.attendance import is_final
from dledger.client.members.kept_offsets import KeptOffsets
from dledger.client.members.member import Progress
from dledger.client.members.offsets_format import Origin
from dledger.client.members.process_queue import Bounds, Held, Order, Place, ProcessQueue
from dledger.testing.fake_model import FakeQueue
from dledger.testing.refusals import Refusal, wire_error
from dledger.wire import broker_pb2 as bpb
from dledger.wire import errors_pb2 as epb
from dledger.wire import groups_pb2 as gpb
from tests.client.loops import async_test
from tests.client.members.test_push import PUSH, fill, running, stocked, until


def service_of(
    client: Client, file: Path, seen: list[tuple[int, int]], **changes: Any
) -> PushConsumer:
    """A broadcast member that notes what it handles."""
    options = replace(PUSH, broadcast=True, offsets_file=file, **changes)
    service = client.push_consumer("g", options)

    @service.on("t")
    async def handle(message: Message) -> None:
        seen.append((message.queue_id, message.queue_offset))

    return service


def test_every_member_is_given_everything_once(tmp_path: Path) -> None:
    """Over restarts, too; nothing is committed."""

    @async_test
    async def check() -> None:
        async with stocked(2, 10) as (group, client):
            one: list[tuple[int, int]] = []
            other: list[tuple[int, int]] = []
            async with (
                running(service_of(client, tmp_path / "one", one)),
                running(service_of(client, tmp_path / "other", other)),
            ):
                await until(lambda: len(one) == len(other) == 20)
            await fill(client, 2, 5)
            async with running(service_of(client, tmp_path / "one", one)):
                await until(lambda: len(one) == 30)
            assert len(set(one)) == 30
            assert group.members.commits == []

    check()


def test_slow_first_start_begins_where_it_was_told(tmp_path: Path) -> None:
    """A session that ends before brokers have said where the queues end makes nothing newer: it
    begins at the end, but in queues that were made since."""

    @async_test
    async def check() -> None:
        async with stocked(2, 10) as (group, client):
            seen: list[tuple[int, int]] = []
            asked, go_on = asyncio.Event(), asyncio.Event()

            async def hold(method: str, _node: object, _request: object) -> None:
                if method == "GetQueueOffsets":
                    asked.set()
                    await go_on.wait()

            group.before.append(hold)
            service = service_of(client, tmp_path / "offsets", seen, start=StartFrom.LAST)
            async with running(service):
                await until(asked.is_set)
                group.members.end_sessions("g")
                group.model.topics["t"].append(FakeQueue())
                await until(lambda: service.statistics().queues == 3)
                async with client.producer() as producer:
                    await producer.send("t", b"new", queue_id=2)
                go_on.set()
                await until(service_is_located(service))
                await fill(client, 2, 1)
                await until(lambda: len(seen) >= 3)
                assert set(seen) == {(0, 10), (1, 10), (2, 0)}

    check()


def test_topic_that_is_deleted_while_its_queues_are_located_ends_nobody(tmp_path: Path) -> None:
    """The member goes on with its other topics, as it does where it is told of that a moment
    later; also where it hears only later that the queues are gone."""

    @async_test
    async def check() -> None:
        async with stocked(2, 1) as (group, client):
            await client.create_topic("u", queues=1)
            async with client.producer() as producer:
                await producer.send("u", b"x")
            refused, told = asyncio.Event(), asyncio.Event()

            async def delete(method: str, _node: object, request: Any) -> None:
                if method == "GetQueueOffsets" and request.topic == "t":
                    if refused.is_set():
                        told.set()
                        group.model.delete("t")
                    refused.set()
                    raise Refusal(wire_error(epb.TOPIC_NOT_FOUND, "it is gone"))

            group.before.append(delete)
            seen: list[bytes] = []
            service = service_of(client, tmp_path / "offsets", [])

            @service.on("u")
            async def handle(message: Message) -> None:
                seen.append(message.body)

            async with running(service):
                await until(lambda: seen == [b"x"])
                assert told.is_set()
                assert service.statistics().queues == 1

    check()


def test_member_that_does_not_know_where_to_begin_ends_at_once(tmp_path: Path) -> None:
    """Of queues of which nothing was ever handed out nothing is waited for."""

    @async_test
    async def check() -> None:
        async with stocked(2, 10) as (group, client):
            asked = asyncio.Event()

            async def hold(method: str, _node: object, _request: object) -> None:
                if method == "GetQueueOffsets":
                    asked.set()
                    await asyncio.Event().wait()

            group.before.append(hold)
            service = service_of(client, tmp_path / "offsets", [], drain_s=60)
            async with asyncio.timeout(10), running(service):
                await until(asked.is_set)
            assert not group.members.has_sessions("g")

    check()


class Ended:
    """Brokers of whose queues each holds ten messages."""

    def __init__(self, created_ms: int = 5, epoch: EpochName = FIRST_EPOCH) -> None:
        self.created_ms = created_ms
        self.epoch = epoch

    async def call(
        self, method: Method[Any, Any], *_: object
    ) -> bpb.GetQueueOffsetsResponse | bpb.DescribeTopicResponse:
        if method is DESCRIBE_TOPIC:
            topic = bpb.Topic(created_time_ms=self.created_ms)
            return bpb.DescribeTopicResponse(topic=topic)
        return bpb.GetQueueOffsetsResponse(min_offset=0, max_offset=10)


def test_queues_of_a_new_topic_that_are_told_later_are_no_newer(tmp_path: Path) -> None:
    """Much is told in parts: the first one's places are in the file before the second is located,
    also where a process dies between the two. Once all had their places what comes is newer, for
    the next process too."""
    brokers: Any = Ended()

    async def one_process(*begins_at: tuple[int, int], dies: bool) -> None:
        kept = KeptOffsets(tmp_path / "kept", "g", brokers, StartFrom.LAST)
        for queue_id, offset in begins_at:
            queue = ProcessQueue(
                Place("t", 1, queue_id), 0, None, order=Order.KEYS, bounds=Bounds()
            )
            await kept.locate([queue], made_since=())
            assert queue.finished.frontier == offset
        if not dies:
            await kept.on_all_located()
        kept.close()

    asyncio.run(one_process((0, 10), (1, 10), dies=True))
    asyncio.run(one_process((1, 10), (2, 10), dies=False))
    asyncio.run(one_process((2, 10), (3, 0), dies=False))


def test_where_a_queue_begins_is_in_the_file_once_it_is_located(tmp_path: Path) -> None:
    """Also where more is to be told, and the process dies before."""
    brokers: Any = Ended()

    async def check() -> None:
        kept = KeptOffsets(tmp_path / "kept", "g", brokers, StartFrom.LAST)
        queue = ProcessQueue(Place("t", 1, 0), 0, None, order=Order.KEYS, bounds=Bounds())
        await kept.locate([queue], made_since=())
        kept.close()
        content = json.loads((tmp_path / "kept").read_text())
        assert content["topics"]["t"]["queues"] == {"0": [10, []]}

    asyncio.run(check())


def test_what_comes_late_of_a_topic_that_was_made_anew_is_not_kept(tmp_path: Path) -> None:
    """Neither where its queues begin nor what was finished: a file has one topic of a name, and
    that would be the former, with the other one's places."""
    go_on = asyncio.Event()

    class Slow(Ended):
        async def call(self, *how: Any) -> Any:
            await go_on.wait()
            return await super().call(*how)

    async def check() -> None:
        slow, brokers = Slow(), Ended()
        kept = KeptOffsets(tmp_path / "kept", "g", slow, StartFrom.LAST)  # type: ignore[arg-type]
        former, anew = (
            ProcessQueue(Place("t", number, 0), 0, None, order=Order.KEYS, bounds=Bounds())
            for number in (1, 2)
        )
        locating = asyncio.create_task(kept.locate([former], made_since=()))
        await asyncio.sleep(0)
        kept._broker_group = brokers  # type: ignore[assignment]
        await kept.locate([anew], made_since=[anew.place])
        go_on.set()
        await locating
        await kept.keep([Progress(former, 7, [], release=False)])
        kept.close()
        content = json.loads((tmp_path / "kept").read_text())["topics"]["t"]
        assert (content["incarnation"], content["queues"]) == (2, {"0": [0, []]})

    asyncio.run(check())


def test_who_joins_anew_while_its_offsets_are_written_goes_on_behind_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow disk: what was finished isn't handled again, and the file never goes back."""
    brokers: Any = Ended()
    writing, go_on = threading.Event(), threading.Event()
    replace_file = KeptOffsets._replace

    def slowly(kept: KeptOffsets, content: str) -> None:
        writing.set()
        assert go_on.wait(20)
        replace_file(kept, content)

    def made() -> ProcessQueue:
        return ProcessQueue(Place("t", 1, 0), 0, None, order=Order.KEYS, bounds=Bounds())

    async def check() -> None:
        kept = KeptOffsets(tmp_path / "kept", "g", brokers, StartFrom.FIRST)
        before, anew = made(), made()
        await kept.locate([before], made_since=())
        monkeypatch.setattr(KeptOffsets, "_replace", slowly)
        keeping = asyncio.create_task(kept.keep([Progress(before, 7, [(8, 9)], release=False)]))
        await asyncio.to_thread(writing.wait, 20)
        locating = asyncio.create_task(kept.locate([anew], made_since=()))
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(keeping, locating)
        kept.close()
        assert anew.finished.name() == (7, [(8, 9)])
        content = json.loads((tmp_path / "kept").read_text())
        assert content["topics"]["t"]["queues"] == {"0": [7, [1, 1]]}

    asyncio.run(check())


def test_member_that_was_told_everything_says_so_in_its_file(tmp_path: Path) -> None:
    """What it is told in parts, and what the last part has nothing of, included."""

    @async_test
    async def check() -> None:
        async with stocked(3, 1) as (_group, client):
            file = tmp_path / "offsets"
            service = service_of(client, file, [], start=StartFrom.LAST)
            async with running(service):
                await until(file.exists)
                await until(lambda: '"whole": false' not in file.read_text())
                membership: Any = service._membership
                keeper = membership.keeper
                await until(lambda: not keeper._in_part)
                keeper._in_part.add(("of an earlier process", 1))
                membership.member.is_whole = False  # its session is over, and it holds nothing
                await membership._locate([], ())
                assert keeper._in_part
                membership.on_assignment(gpb.Assignment(whole=True))
                await until(lambda: not keeper._in_part)

    check()


def service_is_located(service: PushConsumer) -> Callable[[], bool]:
    membership: Any = service._membership
    return lambda: all(queue.is_located for queue in membership.member.queues.values())


def test_start_is_kept_before_anything_is_handed_out(tmp_path: Path) -> None:
    """Who begins at the end and dies before it has finished anything skips nothing."""

    @async_test
    async def check() -> None:
        async with stocked(1, 10) as (_, client):
            file = tmp_path / "offsets"
            stuck = client.push_consumer(
                "g", replace(PUSH, broadcast=True, offsets_file=file, start=StartFrom.LAST)
            )
            begun = asyncio.Event()

            @stuck.on("t")
            async def handle(message: Message) -> None:
                begun.set()
                await asyncio.Event().wait()

            run = asyncio.create_task(stuck.run())
            await until(file.exists)
            await fill(client, 1, 1)
            await begun.wait()
            run.cancel()
            await asyncio.wait([run])
            seen: list[tuple[int, int]] = []
            async with running(service_of(client, file, seen, start=StartFrom.LAST)):
                await until(lambda: seen)
            assert seen == [(0, 10)]

    check()


def test_file_is_there_before_the_first_message(tmp_path: Path) -> None:
    """Not only when the first commit is due."""

    @async_test
    async def check() -> None:
        async with stocked(1, 3) as (_, client):
            file = tmp_path / "offsets"
            existed: list[bool] = []
            service = client.push_consumer(
                "g", replace(PUSH, broadcast=True, offsets_file=file, commit_every_s=60.0)
            )

            @service.on("t")
            async def handle(message: Message) -> None:
                existed.append(file.exists())

            async with running(service):
                await until(lambda: len(existed) == 3)
            assert existed == [True] * 3

    check()


def test_queues_that_were_made_since_begin_at_their_first_message(tmp_path: Path) -> None:
    """Whatever the start says: it is of topics that are older."""

    @async_test
    async def check() -> None:
        async with stocked(1, 3) as (group, client):
            seen: list[tuple[int, int]] = []
            file = tmp_path / "offsets"
            async with running(service_of(client, file, seen, start=StartFrom.LAST)):
                await until(file.exists)
                group.model.delete("t")
                group.model.create("t", 2)
                await fill(client, 2, 2)
                await until(lambda: len(seen) == 4)
            assert sorted(seen) == [(0, 0), (0, 1), (1, 0), (1, 1)]
            kept = json.loads(file.read_text())["topics"]["t"]
            made, at = group.model.incarnations["t"], group.model.created_ms["t"]
            queues = {"0": [2, []], "1": [2, []]}
            assert kept == {"incarnation": made, "created_ms": at, "queues": queues}

    check()


def test_failed_message_keeps_its_place_over_a_restart(tmp_path: Path) -> None:
    """Those behind it are finished, and stay so."""

    @async_test
    async def check() -> None:
        async with stocked(1, 6) as (_, client):
            file = tmp_path / "offsets"
            options = replace(
                PUSH, broadcast=True, offsets_file=file, retry_delays_s=(60.0,), drain_s=0.0
            )
            service = client.push_consumer("g", options)

            @service.on("t")
            async def handle(message: Message) -> None:
                if message.queue_offset == 2:
                    raise ValueError("not today")

            async with running(service):
                await until(lambda: service.statistics().handled == 5)
            seen: list[tuple[int, int]] = []
            async with running(service_of(client, file, seen)):
                await until(lambda: seen)
            assert seen == [(0, 2)]

    check()


@pytest.mark.parametrize("in_order", [False, True])
def test_rejected_message_is_finished_and_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, in_order: bool
) -> None:
    """There are no dead letters here: tried for ever it would stop its queue. What fails otherwise
    is tried again."""

    @async_test
    async def check() -> None:
        async with stocked(1, 6) as (_, client):
            file = tmp_path / "offsets"
            options = replace(PUSH, broadcast=True, offsets_file=file, in_order=in_order)
            service = client.push_consumer("g", options)
            begun: Counter[int] = Counter()

            @service.on("t")
            async def handle(message: Message) -> None:
                begun[message.queue_offset] += 1
                if message.queue_offset == 2:
                    raise Reject
                if message.queue_offset == 3 and begun[3] == 1:
                    raise ValueError("not yet")

            async with running(service):
                await until(lambda: service.statistics().handled == 5)
            assert begun == {0: 1, 1: 1, 2: 1, 3: 2, 4: 1, 5: 1}
            seen: list[tuple[int, int]] = []
            async with running(service_of(client, file, seen, in_order=in_order)):
                await fill(client, 1, 1)
                await until(lambda: seen)
            assert seen == [(0, 6)]

    with caplog.at_level(logging.ERROR, "dledger.client"):
        check()
    (told,) = (each.getMessage() for each in caplog.records)
    assert "t/0 offset 2 was rejected, and counts as finished" in told


def test_file_that_cannot_be_used_is_refused_by_name(tmp_path: Path) -> None:
    """It is another member's, broken, another group's, or nowhere; nobody begins anew for that."""

    @async_test
    async def check() -> None:
        async with stocked(1, 1) as (_, client):
            seen: list[tuple[int, int]] = []
            file = tmp_path / "offsets"
            async with running(service_of(client, file, seen)):
                await until(lambda: seen)
                with pytest.raises(OffsetsFileUnusable, match="another member"):
                    await service_of(client, file, seen).run()
            queues = '{"t": {"incarnation": 1, "queues": {"0": %s}}}'
            place = f'{{"format": 1, "group": "g", "topics": {queues}}}'
            far = f"[1, [{1 << 61}, {1 << 62}]]"
            offsets = ("[-1, []]", "[Infinity, []]", "[1, [-1, 1]]", f"[{(1 << 62) + 1}, []]", far)
            places = [place % each for each in offsets]
            wrong = ("{", "[]", '{"format": 1, "group": "h", "topics": {}}', "\0", "[" * 100_000)
            for content in (*wrong, *places):
                file.write_text(content)
                with pytest.raises(OffsetsFileUnusable, match="delete it only if"):
                    await service_of(client, file, seen).run()
                assert file.read_text() == content
            with pytest.raises(OffsetsFileUnusable):
                await service_of(client, tmp_path / "absent" / "offsets", seen).run()
            assert len(seen) == 1

    check()


def queue_of(incarnation: int = 1, queue_id: int = 0) -> ProcessQueue:
    place = Place("t", incarnation, queue_id)
    return ProcessQueue(place, 0, None, order=Order.KEYS, bounds=Bounds())


async def located(
    file: Path, brokers: Any, incarnation: int = 1, start: StartFrom = StartFrom.LAST
) -> int:
    """Where a process begins that is told of a queue."""
    kept = KeptOffsets(file, "g", brokers, start)
    try:
        queue = queue_of(incarnation)
        await kept.locate([queue], made_since=())
        return queue.finished.frontier
    finally:
        kept.close()


@pytest.mark.parametrize(
    ("incarnation", "brokers", "whose"),
    [
        (7, Ended(created_ms=6), "another broker group"),
        (6, Ended(created_ms=5), "another broker group"),
        (7, Ended(epoch=EpochName(1, b"1" * 16)), "epoch"),
    ],
)
def test_offsets_of_another_group_or_epoch_are_refused(
    tmp_path: Path, incarnation: int, brokers: Any, whose: str
) -> None:
    """Incarnations are indexes of a log, and come again in one that is made anew: who went on at
    those offsets would pass over messages, and nobody would know. The file stays as it is."""
    file = tmp_path / "offsets"
    assert asyncio.run(located(file, Ended(), 7)) == 10
    content = file.read_text()
    with pytest.raises(OffsetsFileUnusable, match=whose):
        asyncio.run(located(file, brokers, incarnation))
    assert file.read_text() == content
    assert asyncio.run(located(file, Ended(), 7, StartFrom.FIRST)) == 10


def test_offsets_of_an_epoch_are_read_in_it(tmp_path: Path) -> None:
    """Whoever tells less of the recoveries before the last one tells of the same epoch."""
    of, told = EpochName(2, b"2" * 16, (b"1" * 16,)), EpochName(2, b"2" * 16)
    assert asyncio.run(located(tmp_path / "kept", Ended(epoch=of))) == 10
    assert asyncio.run(located(tmp_path / "kept", Ended(epoch=told), start=StartFrom.FIRST)) == 10


def test_file_of_a_release_before_is_read_and_says_more_from_then_on(tmp_path: Path) -> None:
    """It has neither a checksum nor when its topics were made: what is met first counts."""
    file = tmp_path / "offsets"
    topics = {"t": {"incarnation": 1, "queues": {"0": [4, [1, 2]]}}}
    file.write_text(json.dumps({"format": 1, "group": "g", "topics": topics}))
    assert asyncio.run(located(file, Ended())) == 4
    assert json.loads(file.read_text())["topics"]["t"]["created_ms"] == 5
    with pytest.raises(OffsetsFileUnusable):
        asyncio.run(located(file, Ended(created_ms=6)))


def test_file_in_which_a_bit_has_flipped_is_refused(tmp_path: Path) -> None:
    """Wherever it is: one in a digit of an offset would pass over messages."""
    file = tmp_path / "offsets"
    asyncio.run(located(file, Ended(), 7))
    content = file.read_bytes()
    for at in range(len(content)):
        for bit in range(8):
            rotten = bytearray(content)
            rotten[at] ^= 1 << bit
            file.write_bytes(rotten)
            with suppress(OffsetsFileUnusable):
                kept = KeptOffsets(file, "g", cast("BrokerGroup", Ended()), StartFrom.LAST)
                assert kept._kept == {Place("t", 7, 0): (10, [])}
                assert kept._origins == {("t", 7): Origin(5)}
                kept.close()


def test_topic_that_is_gone_is_asked_for_again(tmp_path: Path) -> None:
    """Its queues are about to be taken away, and no member ends by it; then nothing is asked."""

    class Gone(Ended):
        async def call(self, method: Method[Any, Any], *_: object) -> Any:
            raise TopicNotFound("t")

    brokers: Any = Gone()

    async def check() -> None:
        kept = KeptOffsets(tmp_path / "kept", "g", brokers, StartFrom.LAST)
        queue = queue_of()
        with pytest.raises(TopicNotFound) as told:
            await kept.locate([queue], made_since=())
        assert not is_final(told.value)
        queue.state = Held.GONE
        await kept.locate([queue], made_since=())
        kept.close()

    asyncio.run(check())


def test_file_behind_a_link_stays_behind_it(tmp_path: Path) -> None:
    """What is renamed to a link's name would take the link's place, and a second member that names
    the file itself would be let in."""
    (tmp_path / "disk").mkdir()
    file, link = tmp_path / "disk" / "offsets", tmp_path / "link"
    link.symlink_to(file)
    brokers: Any = Ended()
    kept = KeptOffsets(link, "g", brokers, StartFrom.LAST)
    with pytest.raises(OffsetsFileUnusable, match="another member"):
        KeptOffsets(file, "g", brokers, StartFrom.LAST)
    kept.close()
    assert asyncio.run(located(link, brokers)) == 10
    assert link.is_symlink()
    assert asyncio.run(located(file, brokers, start=StartFrom.FIRST)) == 10
    assert sorted(each.name for each in tmp_path.iterdir()) == ["disk", "link"]


def test_closed_file_is_free_while_a_forked_process_is_there(tmp_path: Path) -> None:
    """It has inherited the lock. Where it closes what it has inherited, that frees nothing."""
    brokers: Any = Ended()
    kept = KeptOffsets(tmp_path / "kept", "g", brokers, StartFrom.LAST)
    if not (child := os.fork()):
        kept.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    with pytest.raises(OffsetsFileUnusable, match="another member"):
        KeptOffsets(tmp_path / "kept", "g", brokers, StartFrom.LAST)
    inherited = os.dup(kept._lock.fileno())
    try:
        kept.close()
        KeptOffsets(tmp_path / "kept", "g", brokers, StartFrom.LAST).close()
    finally:
        os.close(inherited)


def test_file_is_waited_for_where_every_task_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a loop's end does: a task around the thread would be over before the thread is."""
    brokers: Any = Ended()
    writing, go_on = threading.Event(), threading.Event()
    replace_file = KeptOffsets._replace

    def slowly(kept: KeptOffsets, content: str) -> None:
        writing.set()
        assert go_on.wait(20)
        replace_file(kept, content)

    async def check() -> None:
        kept = KeptOffsets(tmp_path / "kept", "g", brokers, StartFrom.FIRST)
        queue = ProcessQueue(Place("t", 1, 0), 0, None, order=Order.KEYS, bounds=Bounds())
        monkeypatch.setattr(KeptOffsets, "_replace", slowly)
        keeping = asyncio.create_task(kept.keep([Progress(queue, 7, [], release=False)]))
        await asyncio.to_thread(writing.wait, 20)
        for each in asyncio.all_tasks() - {asyncio.current_task()}:
            each.cancel()
        await asyncio.wait([keeping], timeout=0.05)
        assert not keeping.done()
        go_on.set()
        await asyncio.wait([keeping])
        assert keeping.cancelled()
        kept.close()
        assert (tmp_path / "kept").exists()

    asyncio.run(check())


def test_member_that_is_cancelled_while_it_writes_its_file_waits_for_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread can't be called back: what it writes later would be in the file of the next member,
    who may have written half of it."""
    written, go_on = threading.Event(), threading.Event()
    replace_file = KeptOffsets._replace

    def slowly(kept: KeptOffsets, content: str) -> None:
        written.set()
        assert go_on.wait(20)
        replace_file(kept, content)

    @async_test
    async def check() -> None:
        async with stocked(1, 10) as (_, client):
            monkeypatch.setattr(KeptOffsets, "_replace", slowly)
            task = asyncio.create_task(service_of(client, tmp_path / "file", []).run())
            await asyncio.to_thread(written.wait, 20)
            task.cancel()
            await asyncio.sleep(0.05)
            with pytest.raises(OffsetsFileUnusable, match="another member's"):
                await service_of(client, tmp_path / "file", []).run()
            assert not task.done()
            go_on.set()
            await asyncio.wait([task])
            assert task.cancelled()
            assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "file.lock"]
            seen: list[tuple[int, int]] = []
            async with running(service_of(client, tmp_path / "file", seen)):
                await until(lambda: len(seen) == 10)

    check()
