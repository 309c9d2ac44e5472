"""A start finds rotten what all others have let go of meanwhile: nobody gives it back, and the log
begins behind it, with a peer's state (ADR 53). It keeps what lies behind, where its log goes on
from there, and nothing, where its log has nothing there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from broker import installing, later_start, pulling
from broker.archiving import Released
from broker.later_start import LaterStart
from dledger.checksum import seal
from dledger.codec import configuration_bytes
from dledger.core.types import MAX_INDEX, MAX_TERM, MAX_TIME_MS, Configuration, NodeId
from dledger.reading.log_start import LogStart, decode_start
from dledger.records.layout import file_name
from dledger.wire import raft_pb2 as pb
from store.errors import CorruptionFound
from store.files import OsFiles
from store.snapshot_files import FOLDER, RECEIVED
from store.starting.opening import base_of
from store.suspicion import Suspicion, SuspicionNote
from tests.node.members import Members
from tests.node.test_later_logs import SMALL, follower, grow, let_go, on_a_loop, small_members
from tests.node.test_refilling import refilling
from tests.node.test_repairs import Wiretap

TOP = (1 << 63) - 1
LONG = "-" + 90 * "x"  # of a topic's name: fewer entries fill a segment


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody compares logs here, so nobody has to be given the time to ask."""
    monkeypatch.setattr(later_start, "LISTEN_S", 0.05)


def killed(directory: Path) -> None:
    """The next start reads all of the log, as after a crash without seals."""
    (directory / "abort").touch()
    for seal_file in (directory / "seal").glob("*"):
        seal_file.unlink()


def spoil(directory: Path, place: int) -> None:
    """A byte of the log is another one."""
    path = directory / "commitlog" / f"{place - place % SMALL:020}"
    with path.open("r+b") as file:
        file.seek(place % SMALL)
        byte = file.read(1)[0]
        file.seek(place % SMALL)
        file.write(bytes([byte ^ 0x40]))


async def left_behind(group: Members, where: Callable[[Members, NodeId], list[int]]) -> NodeId:
    """A member that is down, rotten where `where` says, which all others have let go of; and its
    log goes on from where theirs begin."""
    leader = await group.leader()
    name = follower(group, leader)
    victim, before = group.replicas[name], leader.log.first_index

    async def not_yet(segments: Iterable[Path]) -> Released:
        return Released(0, "not yet")

    victim.archiver.release = not_yet  # type: ignore[method-assign]
    leader = await grow(group, 2, f"{where.__name__}{LONG}")
    await leader.propose_log_start(leader.machine.applied_index)
    await grow(group, 1, f"behind-{where.__name__}{LONG}")
    others = [each for each in group.replicas.values() if each is not victim]
    await group.until(lambda: min(each.log.first_index for each in others) > before)
    assert victim.log.first_index == before
    places = where(group, name)
    await group.stop(name)
    directory = group.configs[name].data_directory
    killed(directory)
    for place in places:
        spoil(directory, place)
    return name


def in_front(group: Members, name: NodeId) -> list[int]:
    log = group.replicas[name].log
    return [log.position_of(log.first_index + 9) + 60]


def around_the_start(group: Members, name: NodeId) -> list[int]:
    """The last entry that the others have let go of, and the first that they have."""
    log = group.replicas[name].log
    first = max(each.log.first_index for each in group.replicas.values())
    return [log.position_of(index) + 60 for index in (first - 1, first)]


def in_front_and_behind(group: Members, name: NodeId) -> list[int]:
    log = group.replicas[name].log
    return [log.position_of(index) + 60 for index in (log.first_index + 9, log.last_index - 3)]


async def follows(group: Members, name: NodeId) -> None:
    """The member has the group's state, and every entry that isn't retired."""
    group.start(name)
    replica = group.replicas[name]
    leader = await grow(group, 1, f"after-{replica.log.last_index}{LONG}")
    last = leader.machine.applied_index
    await group.until(lambda: replica.machine.applied_index >= last)
    first = max(replica.log.first_index, leader.log.first_index)
    await group.until(lambda: replica.log.synced_index >= last)
    assert replica.log.read(first, last) == leader.log.read(first, last)
    assert not replica.repairs.is_at_work
    assert replica.failure is None


@on_a_loop
async def test_the_log_begins_behind_and_keeps_what_it_has(tmp_path: Path) -> None:
    """Nothing that it has acknowledged behind the others' start is lost; also where what is missing
    begins before that start and ends behind it; and what has rotted behind it is got back."""
    async with small_members(tmp_path) as group:
        for where in (in_front, around_the_start, in_front_and_behind):
            name = await left_behind(group, where)
            held = sorted((group.configs[name].data_directory / "commitlog").glob("0*"))[-1]
            before = held.read_bytes()
            with capture_logs() as told:
                async with refilling(group, name) as made:
                    await made.fill()
                if where is in_front_and_behind:
                    async with refilling(group, name) as made:
                        await made.fill()
            begun = [each for each in told if each["event"] == "log_begins_behind_rot"]
            assert [each["is_kept_behind"] for each in begun] == [True], where
            if where is in_front:
                assert held.read_bytes() == before
            await follows(group, name)


async def left_far_behind(group: Members) -> NodeId:
    """A member that is down and rotten, and all others begin behind its end."""
    name = follower(group, await group.leader())
    await grow(group, 2, f"first{LONG}")
    last, place = group.replicas[name].log.last_index, in_front(group, name)[0]
    await group.stop(name)
    directory = group.configs[name].data_directory
    killed(directory)
    spoil(directory, place)
    other = NodeId((await group.leader()).config.node_id)
    await group.stop(other)  # the next term is one that the member hasn't heard of
    group.start(other)
    leader = await grow(group, 3, f"without-it{LONG}")
    while await let_go(group, leader) <= last + 1:
        leader = await group.leader()
    return name


@on_a_loop
async def test_the_log_begins_anew_where_all_of_it_is_gone(tmp_path: Path) -> None:
    """None of it was counted for anything that isn't retired."""
    async with small_members(tmp_path) as group:
        name = await left_far_behind(group)
        with capture_logs() as told:
            async with refilling(group, name) as made:
                await made.fill()
        assert [e["is_kept_behind"] for e in told if e["event"] == "log_begins_behind_rot"] == [
            False
        ]
        await follows(group, name)


def without_the_member(named: Configuration, name: NodeId) -> Configuration:
    return replace(named, disks=tuple(each for each in named.disks if each[0] != name))


def without_voters(named: Configuration) -> Configuration:
    return replace(named, voters=frozenset(), learners=named.voters)


def with_two(named: Configuration) -> Configuration:
    """Two members with one disk."""
    disk = named.disks[0][1]
    return replace(named, disks=tuple((each, disk) for each, _ in named.disks))


def with_members(start: LogStart, change: Callable[[Configuration], Configuration]) -> LogStart:
    named = base_of(start).configuration
    assert named is not None
    return replace(start, configuration=configuration_bytes(change(named)))


def as_it_is(named: Configuration, _: NodeId) -> Configuration:
    return named


@on_a_loop
async def test_the_log_of_who_is_no_member_there_stays(tmp_path: Path) -> None:
    """Its own disk isn't named where peers begin, or they are of another life of the group."""
    async with small_members(tmp_path) as group:
        name = await left_far_behind(group)
        tap = Wiretap(group)
        change: Callable[[Configuration, NodeId], Configuration] = without_the_member
        asked: set[str | None] = set()

        def tell(sender: NodeId, message: pb.PeerMessage) -> pb.PeerMessage:
            if sender == name:
                asked.add(message.WhichOneof("body"))
            if not message.HasField("log_start_response"):
                return message
            start = decode_start(message.log_start_response.log_start)
            named = base_of(start).configuration
            assert named is not None
            told = configuration_bytes(change(named, name))
            message.log_start_response.log_start = replace(start, configuration=told).encode()
            message.ClearField("checksum")
            return seal(message)

        tap.change = tell
        for each, known in ((without_the_member, ()), (as_it_is, (b"another recovery",))):
            change = each
            asked.clear()
            async with refilling(group, name) as made:
                made._later._holed = replace(made.holed, recoveries=known)
                filling = asyncio.ensure_future(made.fill())
                await group.until(lambda: "log_start_request" in asked)
                await asyncio.sleep(0.3)
                assert "snapshot_request" not in asked, each
                filling.cancel()
        tap.change = lambda _, message: message


ABSURD_STARTS: tuple[dict[str, int], ...] = (
    {"term": MAX_TERM},  # the next one would be none
    {"term": MAX_TERM + 1},  # no start believes a hard state of it
    {"term": TOP},
    {"index": TOP},
    {"index": MAX_INDEX + 1},
    {"append_time_ms": MAX_TIME_MS + 1},
    {"append_time_ms": TOP},
    {"end_offset": TOP},
    {"configuration_index": 0},
    {"configuration_term": 0},
    {"configuration_term": TOP},
)


@on_a_loop
async def test_where_no_log_can_begin_is_believed_of_nobody(tmp_path: Path) -> None:
    """A field of a peer that lies: nothing is asked for, no term and no note is written; nor is
    anything of its members that are none. Whoever tells the truth is believed after that."""
    async with small_members(tmp_path) as group:
        name = await left_far_behind(group)
        directory = group.configs[name].data_directory
        tap = Wiretap(group)
        lie: Callable[[LogStart], LogStart] = partial(replace)
        asked: set[str | None] = set()
        told = 0

        def tell(sender: NodeId, message: pb.PeerMessage) -> pb.PeerMessage:
            nonlocal told
            if sender == name:
                asked.add(message.WhichOneof("body"))
            if not message.HasField("log_start_response"):
                return message
            start = lie(decode_start(message.log_start_response.log_start))
            message.log_start_response.log_start = start.encode()
            message.ClearField("checksum")
            told += 1
            return seal(message)

        tap.change = tell
        lies: list[Callable[[LogStart], LogStart]] = [
            partial(replace, **absurd) for absurd in ABSURD_STARTS
        ]
        lies += [partial(with_members, change=change) for change in (without_voters, with_two)]
        async with refilling(group, name) as made:
            filling = asyncio.ensure_future(made.fill())
            for lie in lies:  # noqa: B007 - what `tell` says from now on
                before = told
                await group.until(partial(lambda before: told >= before + 2, before))
            filling.cancel()
            assert made.holed.hard_state_store.load() == made.holed.hard_state
        assert "snapshot_request" not in asked
        assert not (directory / "install").exists()
        tap.change = lambda _, message: message
        async with refilling(group, name) as made:
            await made.fill()
        await follows(group, name)


@on_a_loop
async def test_nothing_is_dropped_while_logs_are_compared(tmp_path: Path) -> None:
    """Somebody asks what this one holds; or it was in question itself, before."""
    async with small_members(tmp_path) as group:
        name = await left_far_behind(group)
        directory = group.configs[name].data_directory
        asker = next(iter(group.replicas))
        compared = pb.DigestRequest(number=1, index=3, entry_term=1, digest=7)
        asked: set[str | None] = set()
        tap = Wiretap(group)

        def listen(sender: NodeId, message: pb.PeerMessage) -> pb.PeerMessage:
            if sender == name:
                asked.add(message.WhichOneof("body"))
            return message

        tap.change = listen
        async with refilling(group, name) as made:
            filling = asyncio.ensure_future(made.fill())
            await group.until(lambda: "entries_request" in asked)
            group.wires.carry(asker, name, seal(pb.PeerMessage(digest_request=compared)))
            await asyncio.sleep(0.5)  # it has looked twice by then
            assert "snapshot_request" not in asked
            filling.cancel()
        SuspicionNote(OsFiles(), directory).write(Suspicion(5, is_memory=False))
        async with refilling(group, name) as made:
            filling = asyncio.ensure_future(made.fill())
            await group.until(lambda: "log_start_request" in asked)
            await asyncio.sleep(0.3)
            assert "snapshot_request" not in asked
            assert not (directory / "install").exists()
            filling.cancel()
        SuspicionNote(OsFiles(), directory).write(None)
        async with refilling(group, name) as made:
            await made.fill()
        tap.change = lambda _, message: message
        await follows(group, name)


@on_a_loop
async def test_what_was_pulled_waits_until_logs_are_compared_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody asks while it comes, and again: it is used when that is over, and as the peer says
    once more where its log begins; it isn't pulled again."""
    monkeypatch.setattr(later_start, "ASKED_FOR_S", 0.5)
    async with small_members(tmp_path) as group:
        name = await left_far_behind(group)
        asker = next(iter(group.replicas))
        directory = group.configs[name].data_directory
        compared = seal(
            pb.PeerMessage(
                digest_request=pb.DigestRequest(number=1, index=3, entry_term=1, digest=7)
            )
        )
        pulled: list[int] = []
        said: list[str | None] = []
        tap = Wiretap(group)

        def listen(sender: NodeId, message: pb.PeerMessage) -> pb.PeerMessage:
            if sender == name:
                said.append(message.WhichOneof("body"))
                if message.HasField("snapshot_request"):
                    pulled.append(message.snapshot_request.at)
                    group.wires.ends[name].on_message(asker, compared)
            return message

        tap.change = listen
        async with refilling(group, name) as made:
            filling = asyncio.ensure_future(made.fill())
            await group.until(lambda: pulled)
            for _ in range(4):
                await asyncio.sleep(0.2)
                group.wires.ends[name].on_message(asker, compared)
                assert not (directory / "install").exists()
            await filling
        assert pulled == [0]
        assert said[-1] == "log_start_request"
        tap.change = lambda _, message: message
        await follows(group, name)


@on_a_loop
async def test_state_of_a_log_that_has_begun_elsewhere_meanwhile_is_not_used(
    tmp_path: Path,
) -> None:
    """What was pulled waits, and the peer says once more where its log begins: before, that is
    another log."""
    async with small_members(tmp_path) as group:
        name = await left_far_behind(group)
        starts: list[int] = []
        tap = Wiretap(group)

        def change(sender: NodeId, message: pb.PeerMessage) -> pb.PeerMessage:
            if message.HasField("log_start_response") and len(starts) < 4:
                start = decode_start(message.log_start_response.log_start)
                starts.append(start.index)
                if len(starts) % 2 == 0:
                    older = replace(start, index=start.index - 1)
                    message.log_start_response.log_start = older.encode()
                    return seal(message)
            return message

        tap.change = change
        async with refilling(group, name) as made:
            filling = asyncio.ensure_future(made.fill())
            await group.until(lambda: len(starts) == 4)
            assert not filling.done()
            await filling
        tap.change = lambda _, message: message
        await follows(group, name)


@on_a_loop
async def test_only_a_comparison_that_is_under_way_is_waited_for(tmp_path: Path) -> None:
    """Not one that is settled, which is looked at again for as long as nobody replaces who differs;
    nor a stranger's, who may be anybody."""
    async with small_members(tmp_path) as group:
        name = await left_far_behind(group)
        member = next(iter(group.replicas))
        body = pb.DigestRequest(number=1, index=3, entry_term=1, digest=7)
        settled = pb.DigestRequest(number=1, index=3, entry_term=1, digest=7, only_looks_again=True)
        async with refilling(group, name) as made:
            before = made._later._compared_s
            made._on_message(member, seal(pb.PeerMessage(digest_request=settled)))
            assert made._later._compared_s == before
            made._on_message(NodeId("n9"), seal(pb.PeerMessage(digest_request=body)))
            assert made._later._compared_s == before
            made._on_message(member, seal(pb.PeerMessage(digest_request=body)))
            assert made._later._compared_s > before


@on_a_loop
async def test_who_gives_a_state_keeps_it_until_all_of_it_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group lets more of its log go while a start pulls the state that it begins with, over a
    slow link: who gives it begins there until it is done, and then no more."""
    monkeypatch.setattr(installing, "PIECE_BYTES", 300)
    monkeypatch.setattr(pulling, "QUIET_S", 60.0)
    async with small_members(tmp_path) as group:
        name = await left_far_behind(group)
        others = list(group.replicas.values())
        before = others[0].log.first_index
        tap, is_slow, pulled = Wiretap(group), True, list[int]()

        def hold(_: NodeId, message: pb.PeerMessage) -> pb.PeerMessage | None:
            if message.HasField("snapshot_request"):
                pulled.append(message.snapshot_request.at)
            is_rest = bool(message.snapshot_request.at) and is_slow
            return None if is_rest else message

        tap.change = hold
        async with refilling(group, name) as made:
            filled = asyncio.ensure_future(made.fill())
            await group.until(lambda: pulled)
            giver = await group.until(
                lambda: next((e for e in others if e.installer.giving._given), None)
            )
            leader = await grow(group, 3, f"meanwhile{LONG}")
            await leader.propose_log_start(leader.machine.applied_index)
            await group.until(lambda: any(e.log.first_index > before for e in others))
            assert giver.log.first_index == before
            is_slow = False
            await filled
        assert pulled.count(0) == 1
        await group.until(lambda: giver.log.first_index > before)
        tap.change = lambda _, message: message


class Tight(OsFiles):
    """A disk of which so much is free as `capacity_bytes` say, beside what a directory holds."""

    capacity_bytes = 0

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory

    def used_bytes(self) -> int:
        return sum(each.stat().st_size for each in self.directory.rglob("*") if each.is_file())

    def free_bytes(self, path: Path) -> int:
        return max(0, self.capacity_bytes - self.used_bytes())


def with_room_for(group: Members, name: NodeId, size: int) -> Tight:
    """The member's disk has a reserve, and room for so many bytes beside all that it holds."""
    config = group.configs[name]
    store = config.store.model_copy(update={"reserve_bytes": 1})
    group.configs[name] = config.model_copy(update={"store": store})
    tight = group.files[name] = Tight(config.data_directory)
    tight.capacity_bytes = tight.used_bytes() + size
    return tight


def base_bytes(group: Members) -> int:
    """The size of the state that the others begin with."""
    replica = next(iter(group.replicas.values()))
    return replica.base.files.path(replica.log.start.index).stat().st_size


MARGIN = 200  # for notes of the member's own; a state has some hundreds here


@on_a_loop
async def test_what_broke_off_is_not_in_the_way_of_what_comes_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is room for one state, twice: what was pulled of one in vain takes none of it."""
    monkeypatch.setattr(pulling, "QUIET_S", 0.05)
    monkeypatch.setattr(pulling, "ASK_S", 0.02)
    async with small_members(tmp_path) as group:
        name = await left_behind(group, in_front)
        received = group.configs[name].data_directory / FOLDER / RECEIVED
        size = base_bytes(group)
        monkeypatch.setattr(installing, "PIECE_BYTES", size - MARGIN)
        with_room_for(group, name, 2 * size + MARGIN)
        tap, lost = Wiretap(group), 0

        def lose(_: NodeId, message: pb.PeerMessage) -> pb.PeerMessage | None:
            nonlocal lost
            is_rest = message.HasField("snapshot_response") and (
                len(message.snapshot_response.piece) < size - MARGIN
            )
            lost += is_rest
            return None if is_rest and lost <= 10 else message

        tap.change = lose
        async with refilling(group, name) as made:
            await asyncio.wait_for(made.fill(), 20)
        assert lost > 1
        assert not received.exists()
        tap.change = lambda _, message: message
        group.files[name] = OsFiles()
        await follows(group, name)


@on_a_loop
async def test_other_snapshots_make_room_on_a_full_disk(tmp_path: Path) -> None:
    """Before anything is written, as then it would be foreseen that there is no room for it."""
    async with small_members(tmp_path) as group:
        name = await left_behind(group, in_front)
        size = base_bytes(group)
        other = group.configs[name].data_directory / FOLDER / file_name(3)
        other.write_bytes(bytes(size))
        with_room_for(group, name, 2 * size - MARGIN)
        async with refilling(group, name) as made:
            await asyncio.wait_for(made.fill(), 20)
        assert not other.exists()
        group.files[name] = OsFiles()
        await follows(group, name)


@on_a_loop
async def test_a_crash_at_any_step_leads_to_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state is there and the note isn't: all of it is done again."""
    async with small_members(tmp_path) as group:
        name = await left_behind(group, in_front)

        class Died(Exception):
            pass

        def die(*_: object) -> None:
            raise Died

        for method in ("_publish", "_check_undisputed"):
            with monkeypatch.context() as broken:
                broken.setattr(LaterStart, method, die)
                async with refilling(group, name) as made:
                    with pytest.raises(Died):
                        await made.fill()
        with monkeypatch.context() as broken:
            broken.setattr("store.log_start.StartNote.replace", die)
            async with refilling(group, name) as made:
                with pytest.raises(Died):
                    await made.fill()
        async with refilling(group, name) as made:
            await made.fill()
        await follows(group, name)


@on_a_loop
async def test_alone_it_puts_right_what_nobody_has_to_give(tmp_path: Path) -> None:
    """What belongs into a filler follows from the log: a group of one asks nobody for it, while it
    runs and when it starts."""
    async with small_members(tmp_path, 1) as group:
        replica = await grow(group, 2, "first")
        directory = replica.config.data_directory
        last = replica.log.header_at(replica.log.ends_by(SMALL))
        at = last.physical_offset + last.total_size
        assert at < SMALL
        file = directory / "commitlog" / f"{0:020}"
        before = file.read_bytes()
        spoil(directory, at)
        assert replica.repairs.takes(CorruptionFound(str(file), at, "a filler", "something else"))
        assert replica.repairs.is_at_work
        await group.until(lambda: not replica.repairs.is_at_work)
        assert file.read_bytes() == before
        name = NodeId(replica.config.node_id)
        await group.stop(name)
        killed(directory)
        spoil(directory, at)
        async with refilling(group, name) as made:
            await made.fill()
        assert file.read_bytes() == before
        group.start(name)
        assert group.replicas[name].failure is None
