"""Members whose logs begin later than with entry 1, on real files: whose log is another one, who
waits with beginning anew, and what is held while somebody needs it."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import AsyncIterator, Callable, Coroutine, MutableMapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import wraps
from pathlib import Path
from random import Random
from typing import Any

import pytest
from structlog.testing import capture_logs

from broker.errors import BrokerError
from broker.ports import Rhythm
from broker.replica import Replica
from broker.scrubbing import ScrubPace
from broker.snapshots import SnapshotPace
from broker.state.topics import TopicRef
from chaos.altering import alter
from dledger.checksum import seal
from dledger.core.types import NodeId
from dledger.errors import ReplicaDiverged
from dledger.level import LOG_START_LEVEL
from dledger.reading.log_start import LogStart
from dledger.wire import commands_pb2 as kpb
from dledger.wire import raft_pb2 as pb
from store.files import Handle, OsFiles
from store.log_start import Install, StartNote
from store.out_of_service import Divergence
from store.snapshot_files import FOLDER, RECEIVED, SnapshotFiles, Unfinished
from store.starting.errors import BaseMissing
from tests.broker.leader import batch
from tests.node.members import Members, make_configs
from tests.node.test_comparing import out_of_service, tolerant

SMALL = 16 << 10
NOBODIES = 40  # producers: an entry of half a KiB
PATIENCE_S = 120.0
BUSY = Rhythm(
    housekeeping_s=0.02,
    snapshots=SnapshotPace(entries=3, share=1, retry_s=0.05),
    log_start_s=0.02,
    scrub=ScrubPace(between_s=3600.0),
)


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """The test, on an event loop of its own; whatever it waits for comes in time or never."""

    @wraps(test)
    def run(*arguments: object, **named: object) -> None:
        asyncio.run(asyncio.wait_for(test(*arguments, **named), PATIENCE_S))

    return run


@asynccontextmanager
async def small_members(directory: Path, count: int = 3) -> AsyncIterator[Members]:
    """A group whose logs have small segments, on the level that lets their fronts go."""
    configs = [
        config.model_copy(
            update={"store": config.store.model_copy(update={"segment_size_bytes": SMALL})}
        )
        for config in make_configs(directory, count)
    ]
    group = Members(configs, BUSY)
    tolerant(group)
    group.start()
    try:
        leader = await group.leader()
        await group.until(lambda: leader.machine.level.current >= LOG_START_LEVEL)
        yield group
    finally:
        await group.stop_all()


def nobody(number: int) -> kpb.Command:
    """Forgets producers that there aren't: a large entry that changes nothing. Of small ones it
    takes hundreds to fill a segment."""
    ids = [(number * NOBODIES + each).to_bytes(8, "big") for each in range(1, NOBODIES + 1)]
    return kpb.Command(forget_producers=kpb.ForgetProducersCommand(producer_ids=ids))


async def grow(group: Members, segments: int, tag: str) -> Replica:
    """The log is so many segments longer, with a topic and with what fills them, on all that are
    there; the leader."""
    leader = await group.leader()
    end, number = leader.log.end_offset + segments * SMALL, 0
    command = kpb.Command(create_topic=kpb.CreateTopicCommand(name=tag, queue_count=1))
    while leader.log.end_offset < end:
        with suppress(BrokerError):
            await leader.appender.submit(command)
        number += 1
        command = nobody(number)
    last = leader.machine.applied_index
    await group.until(lambda: all(e.log.synced_index >= last for e in group.replicas.values()))
    return leader


async def let_go(group: Members, leader: Replica) -> int:
    """All that are there begin later than they did, and alike; with which entry."""
    before = leader.log.first_index
    await leader.propose_log_start(leader.machine.applied_index)

    def begin_alike() -> int:
        # What a start may need goes only when there are snapshots behind it.
        firsts = {each.log.first_index for each in group.replicas.values()}
        return max(firsts) if len(firsts) == 1 and max(firsts) > before else 0

    while True:
        await grow(group, 1, f"more-{leader.log.last_index}")
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                return await group.until(begin_alike)


def follower(group: Members, leader: Replica) -> NodeId:
    return min(set(group.replicas) - {NodeId(leader.config.node_id)})


def of_another_past(directory: Path, *, is_empty: bool) -> LogStart:
    """The log goes on from another entry than the others', and all its sums fit."""
    note, snapshots = StartNote(OsFiles(), directory), SnapshotFiles(directory, OsFiles())
    start = note.read()
    other = replace(start, digest=start.digest ^ 1)
    with snapshots.opened(start.index) as (head, chunks):
        kept = list(chunks)
    unfinished = Unfinished(
        OsFiles(), directory / FOLDER / "other", replace(head, digest=other.digest)
    )
    unfinished.add(kept)
    unfinished.finish()
    (directory / FOLDER / "other").rename(snapshots.path(start.index))
    if is_empty:
        Install(OsFiles(), directory).intend(other)
        return start
    for index in snapshots.indexes():
        if index != start.index:
            snapshots.path(index).unlink()
    note.replace(other)
    altered(directory, 0, other)
    return start


def altered(directory: Path, index: int, start: LogStart) -> None:
    folder = directory / "commitlog"

    def content(name: str) -> bytes | None:
        return (folder / name).read_bytes() if (folder / name).exists() else None

    def put(name: str, at: int, data: bytes) -> None:
        with (folder / name).open("r+b") as file:
            file.seek(at)
            file.write(data)

    alter(content, put, SMALL, index, Random(1), start)
    for path in (directory / FOLDER).iterdir():
        if path.name.isdecimal() and int(path.name) >= index > 0:
            path.unlink()  # of the log that was


async def found_of(group: Members, name: NodeId) -> Divergence:
    return (await out_of_service(group, group.replicas[name])).divergence


@pytest.mark.parametrize("is_empty", [False, True], ids=["with entries", "empty"])
@on_a_loop
async def test_logs_that_differ_before_the_first_entry_are_said_to(
    tmp_path: Path, is_empty: bool
) -> None:
    """What is before isn't taken for the same: the digest there is asked for, too. A member that
    holds nothing but the state as of there finds out as well."""
    async with small_members(tmp_path) as group:
        leader = await grow(group, 3, "first")
        await let_go(group, leader)
        name = follower(group, leader)
        await group.stop(name)
        start = of_another_past(group.configs[name].data_directory, is_empty=is_empty)
        group.start(name)
        found = await found_of(group, name)
        assert (found.agreed_index, found.differing_index) == (0, 0)
        assert found.compared_index == start.index
        assert (found.own_digest, found.peers_digest) == (start.digest ^ 1, start.digest)
        assert f"between entries 0 and {start.index}" in str(found)


@on_a_loop
async def test_first_entry_that_differs_is_found_behind_a_later_start(tmp_path: Path) -> None:
    """As in a log that begins with entry 1."""
    async with small_members(tmp_path) as group:
        leader = await grow(group, 3, "first")
        first = await let_go(group, leader)
        name = follower(group, leader)
        await group.stop(name)
        directory = group.configs[name].data_directory
        altered(directory, first + 5, StartNote(OsFiles(), directory).read())
        group.start(name)
        found = await found_of(group, name)
        assert (found.agreed_index, found.differing_index) == (first + 4, first + 5)


@on_a_loop
async def test_front_stays_while_it_isnt_known_whose_log_is_wrong(tmp_path: Path) -> None:
    """Two differ, and there is no third: what shows where they part goes from neither, though the
    group has let it go."""
    async with small_members(tmp_path, 2) as group:
        leader = await grow(group, 3, "first")
        first = await let_go(group, leader)
        await grow(group, 2, "second")
        name = follower(group, leader)
        await group.stop(name)
        directory = group.configs[name].data_directory
        altered(directory, first + 5, StartNote(OsFiles(), directory).read())
        group.start(name)
        await group.until(lambda: leader.comparison.statistics().suspected)
        # As if the entry that says so had been committed before the two differed.
        leader.machine.log_start.first_index = leader.machine.applied_index
        await asyncio.sleep(1.0)
        assert leader.log.start_before(leader.machine.applied_index) is not None
        assert leader.log_start.due() is None
        assert (leader.log.first_index, leader.failure) == (first, None)


@on_a_loop
async def test_who_comes_back_while_two_differ_keeps_its_log_until_that_is_over(
    tmp_path: Path,
) -> None:
    """The third one's log is older than what the others hold. Beginning anew with the leader's
    state it would agree with the leader ever after, whoever is wrong: so it waits, and says so;
    when nobody asks any more, as the other has been taken away, it goes on."""
    with capture_logs() as told:
        async with small_members(tmp_path) as group:
            leader = await group.leader()
            away, other = sorted(set(group.replicas) - {NodeId(leader.config.node_id)})
            await group.stop(away)
            await grow(group, 3, "first")
            first = await let_go(group, leader)
            await group.stop(other)
            directory = group.configs[other].data_directory
            altered(directory, first + 5, StartNote(OsFiles(), directory).read())
            group.start(other)
            await group.until(lambda: leader.comparison.statistics().suspected)
            group.start(away)
            third = group.replicas[away]
            await group.until(lambda: waits_for_comparing(told))
            await asyncio.sleep(1.0)
            assert third.log.first_index == 1
            assert not third.wants_reopening
            assert third.failure is None
            await group.stop(other)
            await group.until(lambda: third.wants_reopening)
            del group.replicas[away]
            await third.stop(nothing)
            assert not (group.configs[away].data_directory / FOLDER / RECEIVED).exists()
            group.start(away)
            assert group.replicas[away].log.first_index == first


def waits_for_comparing(told: Sequence[MutableMapping[str, Any]]) -> bool:
    """Somebody has said that it doesn't begin anew, and why."""
    waits = [each for each in told if each["event"] == "snapshot_not_installed"]
    return any("logs are compared" in each["reason"] for each in waits)


async def nothing() -> None:
    """There are no doors."""


def another_base(directory: Path, head_of: int, state_of: int) -> bytes:
    """A whole snapshot with the head of one and the state of another."""
    snapshots = SnapshotFiles(directory, OsFiles())
    with snapshots.opened(head_of) as (head, _), snapshots.opened(state_of) as (_, chunks):
        kept = list(chunks)
    path = directory / FOLDER / "other"
    unfinished = Unfinished(OsFiles(), path, head)
    unfinished.add(kept)
    unfinished.finish()
    content = path.read_bytes()
    path.unlink()
    return content


@pytest.mark.parametrize("lie", ["head", "state"])
@on_a_loop
async def test_base_that_isnt_what_was_offered_is_thrown_away(tmp_path: Path, lie: str) -> None:
    """Whole, with all its sums right, and of another entry: by its head, or by the state in it.
    Nothing of this member's is touched; the next one that is right is taken. It lies on the way
    only: a leader mends what is wrong on its own disk, and may do so before it is asked."""
    with capture_logs() as told:
        async with small_members(tmp_path) as group:
            leader = await group.leader()
            away = follower(group, leader)
            await group.stop(away)
            await grow(group, 3, "first")
            first = await let_go(group, leader)
            # A busy machine may have taken none behind the base yet: that would be no lie.
            newest = await group.until(
                lambda: next((n for n in leader.snapshots.kept() if n >= first), None)
            )
            head, state = (newest, newest) if lie == "head" else (first - 1, newest)
            other = another_base(leader.config.data_directory, head, state)
            files = leader.base.files
            true_piece = files.piece

            def lying(index: int, at: int, size: int) -> tuple[int, bytes]:
                return len(other), other[at : at + size]

            files.piece = lying  # type: ignore[method-assign]
            group.start(away)
            third = group.replicas[away]
            await group.until(
                lambda: any(each["event"] == "snapshot_not_installed" for each in told)
            )
            assert (third.log.first_index, third.wants_reopening, third.failure) == (1, False, None)
            files.piece = true_piece  # type: ignore[method-assign]
            await group.until(lambda: third.wants_reopening)
            del group.replicas[away]
            await third.stop(nothing)
            group.start(away)
            assert group.replicas[away].log.first_index == first
    reasons = {each["reason"] for each in told if each["event"] == "snapshot_not_installed"}
    assert any(lie in reason for reason in reasons), reasons


@on_a_loop
async def test_no_log_goes_for_a_base_that_cant_be_read_back(tmp_path: Path) -> None:
    """A disk that keeps something else than what was written keeps the log, too: the base is read
    back before it is begun with, and once more before the first segment goes."""
    with capture_logs() as told:
        async with small_members(tmp_path) as group:
            leader = await group.leader()
            away = follower(group, leader)
            await group.stop(away)
            await grow(group, 3, "first")
            first = await let_go(group, leader)
            group.start(away)
            third, directory = group.replicas[away], group.configs[away].data_directory
            base, publish = third.base.files.path(first - 1), third.base.files.publish

            def keep_another(finished: Unfinished) -> None:
                publish(finished)
                if base.exists():
                    spoil_file(base)

            third.base.files.publish = keep_another  # type: ignore[method-assign]
            await group.until(
                lambda: any(each["event"] == "snapshot_not_installed" for each in told)
            )
            assert (third.log.first_index, third.wants_reopening, third.failure) == (1, False, None)
            third.base.files.publish = publish  # type: ignore[method-assign]
            await group.until(lambda: third.wants_reopening)
            del group.replicas[away]
            await third.stop(nothing)
            spoil_file(base)
            held = {each: each.read_bytes() for each in (directory / "commitlog").iterdir()}
            with pytest.raises(BaseMissing, match="the log of before is left"):
                group.start(away)
            assert {e: e.read_bytes() for e in (directory / "commitlog").iterdir()} == held
            spoil_file(base)
            group.start(away)
            assert group.replicas[away].log.first_index == first
    reasons = {each["reason"] for each in told if each["event"] == "snapshot_not_installed"}
    assert any("isn't what is read" in reason for reason in reasons), reasons


def spoil_file(path: Path) -> None:
    """A bit is another; done twice, nothing is."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@on_a_loop
async def test_base_without_a_configuration_isnt_made(tmp_path: Path) -> None:
    """Nobody who begins with it would know who the members are."""
    async with small_members(tmp_path, 1) as group:
        leader = await grow(group, 3, "first")
        before, true = leader.log.first_index, leader.log.start_before

        def without(index: int) -> LogStart | None:
            start = true(index)
            return start and replace(start, configuration_index=0, configuration=b"")

        leader.log.start_before = without  # type: ignore[method-assign]
        await leader.propose_log_start(leader.machine.applied_index)
        await grow(group, 1, "second")
        await group.until(
            lambda: (
                leader.log.checkpoint.state.consume_queue_index > before + 100
                and without(before + 100)
            )
        )
        assert leader.log_start.due() is None
        await asyncio.sleep(0.5)
        assert leader.log.first_index == before
        leader.log.start_before = true  # type: ignore[method-assign]
        await group.until(lambda: leader.log.first_index > before)


@on_a_loop
async def test_queues_begin_where_the_log_does_after_a_restart(tmp_path: Path) -> None:
    """With their first unit that is left, and not at 0, whatever snapshot the start is made of."""
    async with small_members(tmp_path, 1) as group:
        leader = await group.leader()
        create = kpb.CreateTopicCommand(name="orders", queue_count=1)
        assert await leader.appender.submit(kpb.Command(create_topic=create)) is None
        end = leader.log.end_offset + 3 * SMALL
        while leader.log.end_offset < end:  # the next segment may have to be waited for
            await leader.appender.send(b"", [batch(0, b"x" * 900, topic="orders")])
            await asyncio.sleep(0)
        await let_go(group, leader)
        await group.until(lambda: max(leader.snapshots.kept(), default=0) > leader.log.start.index)
        name = NodeId(leader.config.node_id)
        await group.stop(name)
        begin = leader.reader.bounds(TopicRef("orders"), 0)[0]  # in the end: more may have gone
        assert begin > 0
        group.start(name)
        again = await group.leader()
        assert again.reader.bounds(TopicRef("orders"), 0)[0] == begin
        assert again.snapshots.statistics().index > again.log.start.index


@on_a_loop
async def test_front_waits_for_who_is_being_filled(tmp_path: Path) -> None:
    """Else it would begin anew again and again; when it is filled the front goes on."""
    async with small_members(tmp_path) as group:
        leader = await group.leader()
        away = follower(group, leader)
        await group.stop(away)
        await grow(group, 3, "first")
        first = await let_go(group, leader)
        await grow(group, 2, "second")
        group.start(away)
        third = group.replicas[away]
        offered = leader.driver.core.statistics
        await group.until(lambda: offered().peers[away].state == "snapshot")
        await group.until(lambda: offered().peers[away].recently_active)
        with pytest.raises(BrokerError, match="needed by a member that is being filled"):
            await leader.propose_log_start(leader.machine.applied_index)
        await group.until(lambda: third.wants_reopening)
        del group.replicas[away]
        await third.stop(nothing)
        group.start(away)
        filled = group.replicas[away]
        await group.until(lambda: filled.machine.applied_index >= leader.machine.applied_index)
        assert filled.log.first_index == first
        await group.until(lambda: offered().peers[away].state == "replicate")
        assert await let_go(group, leader) > first


@on_a_loop
async def test_log_that_is_sound_is_so_from_its_note_on(tmp_path: Path) -> None:
    """Before others are believed what is on the disk is read, the start note too: if memory says
    otherwise, it is memory that is wrong."""
    async with small_members(tmp_path, 1) as group:
        leader = await grow(group, 3, "first")
        await let_go(group, leader)
        comparison, start = leader.comparison, leader.log.start
        for index in (start.index, start.index + 3):
            own = comparison._place(index)
            assert own is not None
            assert await comparison._is_sound(own)
        own = comparison._place(start.index)
        assert own is not None
        note = StartNote(OsFiles(), leader.config.data_directory)
        note.replace(replace(start, digest=start.digest ^ 1))
        with pytest.raises(ReplicaDiverged):
            await comparison._is_sound(own)
        note.replace(start)


@on_a_loop
async def test_who_is_asked_for_what_it_has_retired_says_that_it_has_it_not(tmp_path: Path) -> None:
    """Of entries before its log's first it doesn't know the terms any more: no reason to end."""
    async with small_members(tmp_path) as group:
        leader = await grow(group, 3, "a")
        first = await let_go(group, leader)
        assert first > 3
        place = {"first_index": 1, "last_index": 2, "last_term": 1}
        request = pb.EntriesRequest(number=1, **place)
        asker = next(name for name in group.replicas if name != leader.config.node_id)
        leader.on_message(asker, seal(pb.PeerMessage(entries_request=request)))
        assert leader.failure is None
        assert leader.repairs.statistics().answers_given == 0


class FullUntilASnapshotGoes(OsFiles):
    """A disk without space for what a directory says of itself, until a snapshot has gone."""

    has_room = False

    def create(self, path: Path) -> Handle:
        if path.name.startswith("identity.json") and not self.has_room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return super().create(path)

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        self.has_room |= path.parent.name == FOLDER


@pytest.mark.parametrize("files", [OsFiles, FullUntilASnapshotGoes])
@on_a_loop
async def test_who_is_taken_in_again_begins_where_it_is_not_named(
    tmp_path: Path, files: type[OsFiles]
) -> None:
    """It was taken out, and its log is older than that; what it is given in its place is of the
    time between. It starts as one that is being taken in, whatever it was, and gets the rest. A
    full disk has room for that word, as the log that goes is far larger."""
    async with small_members(tmp_path) as group:
        leader = await grow(group, 3, "a")
        await let_go(group, leader)
        name = follower(group, leader)
        directory = group.replicas[name].config.data_directory
        await group.stop(name)
        start = StartNote(OsFiles(), directory).read()
        named = pb.Configuration.FromString(start.configuration)
        named.voters.remove(name)
        named.members.remove(next(each for each in named.members if each.node_id == name))
        between = replace(start, configuration=named.SerializeToString())
        Install(OsFiles(), directory).intend(between)
        (directory / "formation.json").unlink()  # as of who wasn't there when the group was formed
        group.files[name] = files()
        group.start(name)
        last = (await grow(group, 1, "b")).machine.applied_index
        await group.until(lambda: group.replicas[name].machine.applied_index >= last)
        assert group.replicas[name].failure is None
    identity = json.loads((directory / "identity.json").read_text())
    assert identity["state"] == "joining"
