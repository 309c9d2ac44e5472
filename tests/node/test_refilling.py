"""Rot that a start finds in its log, on real files: got back from peers before it is a member."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from broker.node import ThreadHand
from broker.refilling import Refilling
from broker.replica import Replica
from dledger.checksum import seal
from dledger.core.types import NodeId
from dledger.errors import InvalidMessage
from dledger.wire import raft_pb2 as pb
from store.errors import BeyondRepair, DirectoryInUse, GapFound
from store.gap import GapFilling
from tests.node.members import Members, make_configs, members
from tests.node.test_repairs import RARELY, Wiretap, content, fill, follower, rot
from tests.node.test_replica import on_a_loop


@asynccontextmanager
async def refilling(group: Members, name: NodeId) -> AsyncIterator[Refilling]:
    """A start that has found gaps, and asks."""
    with pytest.raises(GapFound) as found:
        group.open(name)
    made = Refilling(group.configs[name], group.ports(name), found.value)
    try:
        yield made
    finally:
        await made.close()


async def stopped(group: Members) -> tuple[NodeId, bytes, Replica]:
    """A follower that was stopped: its name, its log, and what is left of it."""
    victim = follower(group, await fill(group))
    name = NodeId(victim.config.node_id)
    before = content(victim)
    await group.stop(name)
    return name, before, victim


async def is_whole(group: Members, name: NodeId, before: bytes) -> None:
    """The member starts on what it held, and follows."""
    group.start(name)
    replica = group.replicas[name]
    assert content(replica)[: len(before)] == before
    assert not replica.repairs.is_at_work
    last = (await group.leader()).log.last_index
    await group.until(lambda: replica.machine.applied_index >= last)


@pytest.mark.parametrize("indexes", [(1,), (20,), (20, 21, 22), (15, 30)], ids=str)
@on_a_loop
async def test_what_has_rotted_is_got_back_before_the_member_is_one(
    tmp_path: Path, indexes: tuple[int, ...]
) -> None:
    """Also the entry that says who is a member; and it is told what, and from whom."""
    async with members(tmp_path, 3, RARELY) as group:
        name, before, victim = await stopped(group)
        for index in indexes:
            rot(victim, index)
        with capture_logs() as told:
            async with refilling(group, name) as made:
                assert made.statistics().gaps
                await made.fill()
        assert (victim.config.data_directory / "repair").exists() is False
        repaired = [each for each in told if each["event"] == "log_repaired"]
        assert repaired[0]["first_entry"] == indexes[0]
        assert repaired[-1]["last_entry"] == indexes[-1]
        assert {each["peer"] for each in repaired} <= set(group.replicas)
        await is_whole(group, name, before)


@on_a_loop
async def test_who_has_gaps_only_asks(tmp_path: Path) -> None:
    """No vote, no acknowledgement, nothing of what it holds: it says nothing but which entries it
    wants, whatever it is told; and nobody else opens its directory meanwhile."""
    async with members(tmp_path, 3, RARELY) as group:
        name, before, victim = await stopped(group)
        rot(victim, 20)
        said: set[str | None] = set()
        wiretap = Wiretap(group)
        is_held_back = True

        def listen(sender: NodeId, message: pb.PeerMessage) -> pb.PeerMessage | None:
            kind = message.WhichOneof("body")
            if sender == name:
                said.add(kind)
            return None if kind == "entries_response" and is_held_back else message

        wiretap.change = listen
        async with refilling(group, name) as made:
            filling = asyncio.ensure_future(made.fill())
            leader = NodeId((await group.leader()).config.node_id)
            await group.stop(leader)  # what is left of the group asks it for its vote
            group.start(leader)
            await group.leader()
            with pytest.raises(DirectoryInUse):
                group.open(name)
            assert not filling.done()
            is_held_back = False
            await filling
        assert said == {"entries_request"}
        wiretap.change = lambda _, message: message
        await is_whole(group, name, before)


@on_a_loop
async def test_liar_is_not_believed_and_the_next_one_is_asked(tmp_path: Path) -> None:
    """Entries that are whole and not the ones."""
    async with members(tmp_path, 3, RARELY) as group:
        name, before, victim = await stopped(group)
        rot(victim, 20)
        liar, honest = sorted(set(group.replicas) - {name})
        wrong = group.replicas[liar].log.read(21, 21)
        wiretap = Wiretap(group)

        def lie(sender: NodeId, message: pb.PeerMessage) -> pb.PeerMessage:
            if sender == liar and message.HasField("entries_response"):
                from dledger.checksum import seal

                body = message.entries_response
                body.frames, body.frames_size = wrong, len(wrong)
                message.ClearField("checksum")
                return seal(message)
            return message

        wiretap.change = lie
        with capture_logs() as told:
            async with refilling(group, name) as made:
                await made.fill()
        (refused,) = [each for each in told if each["event"] == "repair_answer_refused"]
        assert refused["peer"] == liar
        (repaired,) = [each for each in told if each["event"] == "log_repaired"]
        assert repaired["peer"] == honest
        wiretap.change = lambda _, message: message
        await is_whole(group, name, before)


@on_a_loop
async def test_what_nobody_has_ends_it_and_is_named(tmp_path: Path) -> None:
    """Every peer has said that it can't give the entry: nothing was written."""
    async with members(tmp_path, 3, RARELY) as group:
        name, _, victim = await stopped(group)
        rot(victim, 20)
        wiretap = Wiretap(group)

        def rotten(_: NodeId, message: pb.PeerMessage) -> pb.PeerMessage:
            if message.HasField("entries_response"):
                from dledger.checksum import seal

                number = message.entries_response.number
                status = pb.ENTRIES_STATUS_ROTTEN
                answer = pb.EntriesResponse(number=number, status=status)
                return seal(pb.PeerMessage(entries_response=answer))
            return message

        wiretap.change = rotten
        spoilt = content_of(victim)
        async with refilling(group, name) as made:
            with pytest.raises(BeyondRepair) as found:
                await made.fill()
        assert "entries 20 to 20" in str(found.value)
        assert "has them rotten, too" in str(found.value)
        assert content_of(victim) == spoilt
        wiretap.change = lambda _, message: message


def content_of(replica: Replica) -> bytes:
    """The segment's bytes, of a log that is closed."""
    file = replica.config.data_directory / "commitlog" / f"{0:020}"
    return file.read_bytes()


@on_a_loop
async def test_who_has_nobody_to_ask_refuses_as_ever(tmp_path: Path) -> None:
    """A group of one; the directory is free again."""
    group = Members(make_configs(tmp_path, 1), RARELY)
    group.start()
    victim = await fill(group)
    name = NodeId(victim.config.node_id)
    await group.stop(name)
    rot(victim, 20)
    for _ in range(2):
        with pytest.raises(GapFound) as found:
            group.open(name)
        with pytest.raises(GapFound, match="entries 20 to 20"):
            Refilling(group.configs[name], group.ports(name), found.value)


@on_a_loop
async def test_what_is_asked_of_who_has_gaps_counts_with_its_checksum_only(tmp_path: Path) -> None:
    """That logs are compared keeps a start from dropping anything: no garbled message says so."""
    async with members(tmp_path, 3, RARELY) as group:
        name, _, victim = await stopped(group)
        rot(victim, 20)
        peer = NodeId((await group.leader()).config.node_id)
        body = pb.DigestRequest(number=1, index=1, entry_term=1, digest=1)
        async with refilling(group, name) as made:
            later = made._later
            before = later._compared_s
            message = seal(pb.PeerMessage(digest_request=body))
            message.checksum ^= 1
            with pytest.raises(InvalidMessage):
                made._on_message(peer, message)
            assert later._compared_s == before
            made._on_message(peer, seal(pb.PeerMessage(digest_request=body)))
            assert later._compared_s > before


@on_a_loop
async def test_who_has_gaps_says_at_once_that_it_has_nothing(tmp_path: Path) -> None:
    """A member in doubt asks its peers one after the other, and would wait for this one each time:
    it gives nobody anything, and nobody has to wait for that. It is asked again, as what it holds
    is there later."""
    async with members(tmp_path, 3, RARELY) as group:
        name, before, victim = await stopped(group)
        rot(victim, 20)
        leader = await group.leader()
        replica = next(each for each in group.replicas.values() if each is not leader)
        asker = NodeId(replica.config.node_id)
        said: list[pb.PeerMessage] = []
        tap = Wiretap(group)
        is_held_back = True

        def listen(sender: NodeId, message: pb.PeerMessage) -> pb.PeerMessage | None:
            if sender == name:
                said.append(message)
            is_given = message.HasField("entries_response") and sender != name
            return None if is_given and is_held_back else message

        tap.change = listen
        async with refilling(group, name) as made:
            filling = asyncio.ensure_future(made.fill())
            await group.until(lambda: said)
            for asked in (
                pb.PeerMessage(entries_request=pb.EntriesRequest(number=7, first_index=2)),
                pb.PeerMessage(digest_request=pb.DigestRequest(number=8, index=2, entry_term=1)),
                pb.PeerMessage(snapshot_request=pb.SnapshotRequest(number=9, index=2)),
                pb.PeerMessage(log_start_request=pb.LogStartRequest(number=10)),
            ):
                with suppress(InvalidMessage):
                    made._on_message(asker, asked)  # without its checksum
                made._on_message(asker, seal(asked))
            answers = [each for each in said if not each.HasField("entries_request")]
            assert answers == [
                seal(pb.PeerMessage(entries_response=none_yet(7))),
                seal(pb.PeerMessage(digest_response=pb.DigestResponse(number=8))),
                seal(pb.PeerMessage(snapshot_response=gone(9))),
            ]
            assert not made._greeting().hello(asker).hello.tells_log_start
            assert made._greeting().hello(asker).hello.gives_entries
            is_held_back = False
            await filling
        await is_whole(group, name, before)


def none_yet(number: int) -> pb.EntriesResponse:
    return pb.EntriesResponse(number=number, status=pb.ENTRIES_STATUS_NOT_YET)


def gone(number: int) -> pb.SnapshotResponse:
    return pb.SnapshotResponse(number=number, status=pb.SNAPSHOT_STATUS_GONE)


@on_a_loop
async def test_the_directory_is_let_go_of_behind_the_last_step_of_the_disk(tmp_path: Path) -> None:
    """A stop doesn't wait for what is asked, but for a thread that writes: whoever locks the
    directory next would be a member on files that this one still changes."""
    async with members(tmp_path, 3, RARELY) as group:
        name, before, victim = await stopped(group)
        rot(victim, 20)
        with pytest.raises(GapFound) as found:
            group.open(name)
        begun, may_go_on = threading.Event(), threading.Event()
        order: list[str] = []
        with closing(ThreadHand()) as hand:
            made = Refilling(
                group.configs[name], replace(group.ports(name), hand=hand), found.value
            )
            write, close = made._files.write, made.holed.directory.close

            def written(filled: GapFilling) -> None:
                begun.set()
                may_go_on.wait()
                write(filled)
                order.append("written")

            def closed() -> None:
                order.append("closed")
                close()

            made._files.write = written  # type: ignore[method-assign]
            made.holed.directory.close = closed  # type: ignore[method-assign]
            filling = asyncio.ensure_future(made.fill())
            await group.until(begun.is_set)
            filling.cancel()
            await asyncio.gather(filling, return_exceptions=True)
            ending = asyncio.ensure_future(made.close())
            for _ in range(100):  # turns of the loop: it would be closed by then
                await asyncio.sleep(0)
            may_go_on.set()
            await ending
        assert order == ["written", "closed"]
        await is_whole(group, name, before)
