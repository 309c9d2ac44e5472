"""A log that is sound and another one than the group's, on real files: who finds out, who takes
himself out of service, and who must not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from structlog.testing import capture_logs

from broker import comparing
from broker.aside import Aside
from broker.ports import Rhythm
from broker.replica import Replica
from broker.scrubbing import ScrubPace
from chaos.altering import alter
from dledger.checksum import seal
from dledger.core.types import Configuration, Index, LogBase, NodeId, SnapshotOffer
from dledger.errors import InvalidMessage, ReplicaDiverged
from dledger.wire import raft_pb2 as pb
from store.files import OsFiles
from store.out_of_service import FILE_NAME, Divergence, mark, mark_of
from store.starting.errors import OutOfService
from store.suspicion import NAME, Suspicion, SuspicionNote
from tests.node.members import (
    SEGMENT_BYTES,
    Members,
    make_configs,
    members,
    nothing_to_shut,
)
from tests.node.test_repairs import SEALING, Wiretap, fill, follower, rot
from tests.node.test_replica import on_a_loop

N1 = NodeId("n1")
ALTERED = 12
RARELY = Rhythm(housekeeping_s=0.02, scrub=ScrubPace(between_s=3600.0))


def altered(directory: Path, index: int = ALTERED) -> None:
    """From that entry on the log is another one, and all of its checksums fit."""
    folder = directory / "commitlog"

    def content(name: str) -> bytes | None:
        return (folder / name).read_bytes() if (folder / name).exists() else None

    def put(name: str, at: int, data: bytes) -> None:
        with (folder / name).open("r+b") as file:
            file.seek(at)
            file.write(data)

    alter(content, put, SEGMENT_BYTES, index, Random(1))


def tolerant(group: Members) -> None:
    """Who refuses what it is sent has its reasons here."""
    deliver = group.wires._deliver

    def delivered(sender: NodeId, to: NodeId, wire: bytes) -> None:
        try:
            deliver(sender, to, wire)
        except (AssertionError, InvalidMessage):
            group.wires.ends[to].on_broken(sender)

    group.wires._deliver = delivered  # type: ignore[method-assign]


async def restarted_on_another_log(group: Members, name: NodeId) -> Replica:
    await group.stop(name)
    altered(group.configs[name].data_directory)
    group.start(name)
    return group.replicas[name]


async def out_of_service(group: Members, replica: Replica) -> OutOfService:
    """What the replica ends with, as soon as it has."""
    await group.until(lambda: replica.failure is not None)
    assert isinstance(replica.failure, OutOfService)
    del group.replicas[NodeId(replica.config.node_id)]
    assert not await replica.stop(nothing_to_shut)
    return replica.failure


def files_of(directory: Path) -> dict[Path, bytes]:
    found = (path for path in sorted(directory.rglob("*")) if path.is_file())
    return {path: path.read_bytes() for path in found if path.name != "LOCK"}


@on_a_loop
async def test_member_with_another_log_takes_itself_out_and_stays_out(tmp_path: Path) -> None:
    """It says at which entry it parts from the others; the next start refuses, and leaves all."""
    with capture_logs() as told:
        async with members(tmp_path, 3, RARELY) as group:
            tolerant(group)
            leader = await fill(group)
            victim = await restarted_on_another_log(
                group, NodeId(follower(group, leader).config.node_id)
            )
            error = await out_of_service(group, victim)
            found = error.divergence
            name = NodeId(victim.config.node_id)
            others = {"n1", "n2", "n3"} - {name}
            assert set(found.peers) == others
            assert dict(found.members) == dict(victim.config.peers)
            assert (found.agreed_index, found.differing_index) == (ALTERED - 1, ALTERED)
            assert found.own_term == found.peers_term == leader.driver.core.term_at(Index(ALTERED))
            directory = victim.config.data_directory
            kept = files_of(directory)
            assert mark_of(OsFiles(), directory) == found
            for _ in range(2):
                with pytest.raises(OutOfService) as refused:
                    group.open(name)
                assert refused.value.divergence == found
            assert files_of(directory) == kept
            assert (await group.leader()).failure is None
    events = [each["event"] for each in told]
    assert events.index("replica_diverged") < events.index("node_out_of_service")


@on_a_loop
async def test_leader_with_another_log_finds_out_from_those_that_refuse_it(tmp_path: Path) -> None:
    """Nobody tells a leader of its own digest: who is asked compares as well."""
    async with members(tmp_path, 3, RARELY) as group:
        tolerant(group)
        leader = await fill(group)
        name = NodeId(follower(group, leader).config.node_id)
        tap, led = Wiretap(group), [False]

        def change(sender: NodeId, message: pb.PeerMessage) -> pb.PeerMessage | None:
            """Nobody else is ever elected, so nobody else contradicts it by leading."""
            led[0] |= sender == name and message.HasField("heartbeat_request")
            campaigns = ("pre_vote_request", "vote_request", "heartbeat_request", "append_request")
            is_lost = sender != name and message.WhichOneof("body") in campaigns
            return None if is_lost else message

        victim = await restarted_on_another_log(group, name)
        tap.change = change
        await group.until(lambda: led[0])
        assert (await out_of_service(group, victim)).divergence.differing_index == ALTERED
        assert all(each.failure is None for each in group.replicas.values())


@on_a_loop
async def test_of_two_nobody_is_taken_out(tmp_path: Path) -> None:
    """One says so, the other says otherwise. It is told, and nothing is committed."""
    with capture_logs() as told:
        async with members(tmp_path, 2, RARELY) as group:
            tolerant(group)
            leader = await fill(group)
            name = NodeId(follower(group, leader).config.node_id)
            victim = await restarted_on_another_log(group, name)
            await group.until(lambda: victim.comparison.statistics().suspected)
            await asyncio.sleep(2.0)
            assert victim.comparison.statistics().suspected
            assert all(each.failure is None for each in group.replicas.values())
    assert "replicas_differ_undecided" in [each["event"] for each in told]
    assert mark_of(OsFiles(), group.configs[name].data_directory) is None


@on_a_loop
async def test_third_that_is_away_decides_when_it_is_back(tmp_path: Path) -> None:
    async with members(tmp_path, 3, RARELY) as group:
        tolerant(group)
        leader = await fill(group)
        away, name = sorted(set(group.configs) - {NodeId(leader.config.node_id)})
        await group.stop(away)
        victim = await restarted_on_another_log(group, name)
        await group.until(lambda: victim.comparison.statistics().suspected)
        await asyncio.sleep(1.0)
        assert victim.failure is None
        group.start(away)
        await out_of_service(group, victim)
        assert (await group.leader()).failure is None


@pytest.mark.parametrize("liar_answers", [True, False])
@on_a_loop
async def test_digest_that_one_peer_garbles_takes_nobody_out(
    tmp_path: Path, liar_answers: bool
) -> None:
    """Whether it lies in heartbeats only or in answers too: the third one holds the same, and the
    liar is named."""
    async with members(tmp_path, 3, RARELY) as group:
        tolerant(group)
        leader = await fill(group)
        liar = NodeId(leader.config.node_id)
        tap, lies = Wiretap(group), [0]

        def change(sender: NodeId, message: pb.PeerMessage) -> pb.PeerMessage:
            if sender == liar and message.heartbeat_request.digest_index:
                message.heartbeat_request.digest ^= 1
                lies[0] += 1
            if sender == liar and message.HasField("digest_response") and liar_answers:
                message.digest_response.digest ^= 1
            return seal(message)

        tap.change = change
        others = [each for each in group.replicas.values() if each is not leader]
        await group.until(lambda: all(each.comparison.statistics().inquiries for each in others))
        await asyncio.sleep(2.0)
        assert lies[0]
        assert all(each.failure is None for each in group.replicas.values())
        if liar_answers:
            await group.until(lambda: others[0].comparison.statistics().differing)
        tap.change = lambda _, message: message
        await group.until(lambda: not any(e.comparison.statistics().suspected for e in others))


@on_a_loop
async def test_what_has_rotted_is_repaired_and_nobody_leaves(tmp_path: Path) -> None:
    """A member that is outvoted reads its own files first. What it finds there is rot, which its
    peers put right."""
    async with members(tmp_path, 3, RARELY) as group:
        tolerant(group)
        leader = await fill(group)
        victim = follower(group, leader)
        true_digest = victim.log.digest_at
        victim.driver._doubt.on_tick = lambda: None  # type: ignore[method-assign]
        rot(victim, 5)

        def other_digest(index: int) -> int:
            return true_digest(index) ^ (index > ALTERED)

        victim.log.digest_at = other_digest  # type: ignore[method-assign]
        victim.comparison.suspect(30)
        await group.until(lambda: victim.repairs.statistics().repaired)
        victim.log.digest_at = true_digest  # type: ignore[method-assign]
        await asyncio.sleep(1.0)
        assert victim.failure is None
        assert not victim.comparison.is_silent


@on_a_loop
async def test_who_knows_that_its_log_differs_answers_nobody(tmp_path: Path) -> None:
    """Not even with entries that another one has lost: they may be others."""
    async with members(tmp_path, 3, RARELY) as group:
        tolerant(group)
        leader = await fill(group)
        victim = follower(group, leader)
        name, asker = NodeId(victim.config.node_id), NodeId(leader.config.node_id)
        tap, said = Wiretap(group), list[str | None]()

        def change(sender: NodeId, message: pb.PeerMessage) -> pb.PeerMessage:
            if sender == name:
                said.append(message.WhichOneof("body"))
            return message

        tap.change = change
        place = {"first_index": 3, "last_index": 3, "last_term": leader.driver.core.term}
        asked = seal(pb.PeerMessage(entries_request=pb.EntriesRequest(number=1, **place)))
        compared = pb.DigestRequest(number=1, index=3, entry_term=1, digest=7)
        group.wires.carry(asker, name, asked)
        await group.until(lambda: "entries_response" in said)
        victim.comparison._is_silent = True
        victim.driver.fall_silent("the test says so")
        said.clear()
        group.wires.carry(asker, name, asked)
        group.wires.carry(asker, name, seal(pb.PeerMessage(digest_request=compared)))
        await asyncio.sleep(0.3)
        assert said == []


@on_a_loop
async def test_what_a_stranger_says_of_a_log_puts_nothing_in_question(tmp_path: Path) -> None:
    """It is answered; the log's front, and who needs this one's state, don't wait for it."""
    async with members(tmp_path, 3, RARELY) as group:
        tolerant(group)
        leader = await fill(group)
        compared = pb.DigestRequest(number=1, index=3, entry_term=leader.driver.core.term, digest=7)
        told = leader.comparison.statistics().digests_told
        asked = seal(pb.PeerMessage(digest_request=compared))
        leader.comparison.on_message(NodeId("n9"), asked)
        assert leader.comparison.statistics().digests_told == told + 1
        assert not leader.comparison.is_under_way
        leader.comparison.on_message(NodeId("n2"), asked)
        assert leader.comparison.is_under_way


@on_a_loop
async def test_who_leads_is_heard_by_a_log_that_does_not_know_it_yet(tmp_path: Path) -> None:
    """And so is who offers the state that this member needs, whoever leads at the moment: machines
    were exchanged while it was away, and it must not take the state of one of two that differ."""
    async with members(tmp_path, 3, RARELY) as group:
        tolerant(group)
        leader = await fill(group)
        behind, other = (each for each in group.replicas.values() if each is not leader)
        alone = Configuration(frozenset({NodeId(behind.config.node_id)}))
        comparison, core = behind.comparison, leader.driver.core
        comparison._around = replace(comparison._around, configuration=lambda: alone)
        digest = leader.log.digest_at(3)
        compared = pb.DigestRequest(number=1, index=3, entry_term=core.term, digest=digest)
        asked = seal(pb.PeerMessage(digest_request=compared))
        name, offers = NodeId(behind.config.node_id), NodeId(other.config.node_id)

        def is_heard(peer: NodeId) -> bool:
            comparison._asked_s = -comparing.ASKED_FOR_S
            comparison.on_message(peer, asked)
            return comparison.is_under_way

        assert is_heard(NodeId(leader.config.node_id))
        assert not is_heard(offers)
        behind.installer.offered(SnapshotOffer(offers, name, core.term, LogBase()))
        assert is_heard(offers)


@on_a_loop
async def test_unreadable_mark_is_a_mark(tmp_path: Path) -> None:
    async with members(tmp_path, 1, RARELY) as group:
        await fill(group)
        await group.stop(N1)
        (group.configs[N1].data_directory / FILE_NAME).write_bytes(b"\0")
        with pytest.raises(OutOfService, match="doesn't say where"):
            group.open(N1)


@on_a_loop
async def test_what_is_undecided_is_compared_by_the_next_process_too(tmp_path: Path) -> None:
    """Of two members that differ one is restarted, and nobody contradicts it meanwhile: it asks
    all the same, until a third decides."""
    async with members(tmp_path, 3, RARELY) as group:
        tolerant(group)
        leader = await fill(group)
        away, name = sorted(set(group.configs) - {NodeId(leader.config.node_id)})
        await group.stop(away)
        victim = await restarted_on_another_log(group, name)
        note = SuspicionNote(OsFiles(), victim.config.data_directory)
        await group.until(lambda: note.read() is not None)
        await group.stop(name)
        tap = Wiretap(group)

        def only_digests(_: NodeId, message: pb.PeerMessage) -> pb.PeerMessage | None:
            kind = message.WhichOneof("body") or ""
            return message if kind.startswith("digest") else None

        tap.change = only_digests
        group.start(name)
        victim = group.replicas[name]
        assert victim.comparison.statistics().suspected == ALTERED or note.read() is not None
        await group.until(lambda: victim.comparison.statistics().inquiries)
        assert victim.failure is None
        group.start(away)
        await out_of_service(group, victim)
        tap.change = lambda _, message: message


@on_a_loop
async def test_what_was_settled_is_forgotten(tmp_path: Path) -> None:
    """A note of a suspicion that a majority doesn't share is gone; one that says nothing, too."""
    async with members(tmp_path, 3, RARELY) as group:
        leader = await fill(group)
        name = NodeId(follower(group, leader).config.node_id)
        note = SuspicionNote(OsFiles(), group.configs[name].data_directory)
        for write in (
            lambda: note.write(Suspicion(12, is_memory=False)),
            lambda: note.write(Suspicion(1 << 40, is_memory=True)),
            lambda: (group.configs[name].data_directory / NAME).write_bytes(b"{}"),
        ):
            await group.stop(name)
            write()
            assert note.read() is not None
            group.start(name)
            await group.until(lambda: note.read() is None)
            assert group.replicas[name].failure is None


@on_a_loop
async def test_memory_that_was_wrong_vouches_for_nothing_afterwards(tmp_path: Path) -> None:
    """The process that follows reads all of the log, also what its seals speak of."""
    rhythm = replace(SEALING, scrub=ScrubPace(between_s=3600.0))
    async with members(tmp_path, 3, rhythm) as group:
        leader = await fill(group)
        victim = follower(group, leader)
        name, path = NodeId(victim.config.node_id), victim.config.data_directory
        await group.until(lambda: list((path / "seal").glob("0*")))
        await group.stop(name)
        passing = group.open(name)
        assert passing.log.passed_over
        passing.start()
        passing.fail(ReplicaDiverged(20, 1, 2))
        assert not await passing.stop(nothing_to_shut)
        assert SuspicionNote(OsFiles(), path).read() == Suspicion(20, is_memory=True)
        group.start(name)
        again = group.replicas[name]
        assert again.log.passed_over == ()
        assert again.log.recovery.verified_bytes >= again.log.recovery.end_offset
        await group.until(lambda: SuspicionNote(OsFiles(), path).read() is None)
        assert again.comparison.statistics().inquiries
        assert again.failure is None


@on_a_loop
async def test_who_is_outvoted_is_marked_before_anything_else_is_found_out(tmp_path: Path) -> None:
    """A process that is killed while it looks for where the logs part doesn't come back."""
    async with members(tmp_path, 3, RARELY) as group:
        tolerant(group)
        leader = await fill(group)
        name = NodeId(follower(group, leader).config.node_id)
        victim = await restarted_on_another_log(group, name)
        directory, tap = victim.config.data_directory, Wiretap(group)

        def silent_peers(_: NodeId, message: pb.PeerMessage) -> pb.PeerMessage | None:
            is_halving = victim.comparison.is_silent
            return None if is_halving and message.HasField("digest_response") else message

        tap.change = silent_peers
        await group.until(lambda: mark_of(OsFiles(), directory) is not None)
        assert victim.failure is None
        found = mark_of(OsFiles(), directory)
        assert found is not None
        assert (found.agreed_index, found.differing_index) == (0, 0)
        assert found.own_digest != found.peers_digest
        assert found.committed_offset
        tap.change = lambda _, message: message
        await out_of_service(group, victim)
        told = mark_of(OsFiles(), directory)
        assert told is not None
        assert told.compared_index


@on_a_loop
async def test_a_look_at_what_is_settled_is_no_comparison_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody replaces the member that was found to differ, and it is looked for again and again:
    the others answer, and hold back nothing for that. It may have its log back, and is to wait."""
    monkeypatch.setattr(comparing, "LOOK_AGAIN_ROUNDS", 0)
    async with members(tmp_path, 3, RARELY) as group:
        leader = await fill(group)
        others = [each for each in group.replicas.values() if each is not leader]
        other, differing = others
        name = NodeId(differing.config.node_id)
        asks = leader.comparison
        asks._differing = {name: leader.driver.core.configuration.disk_of(name)}
        asks._differs_at = leader.log.synced_index
        told = [each.comparison.statistics().digests_told for each in others]
        await asks._look_again()
        assert [e.comparison.statistics().digests_told for e in others] == [t + 1 for t in told]
        assert not other.comparison.is_under_way
        assert differing.comparison.is_under_way
        assert not asks._differing
        asks.suspect(asks._differs_at)
        await group.until(lambda: other.comparison.is_under_way)


SPOILT: dict[str, Callable[[pb.DigestRequest], Any]] = {
    "no index": lambda body: setattr(body, "index", 0),
    "an index of no log": lambda body: setattr(body, "index", 1 << 63),
    "no term": lambda body: setattr(body, "entry_term", 0),
    "a term of no group": lambda body: setattr(body, "entry_term", 1 << 62),
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
@on_a_loop
async def test_nonsense_is_refused(
    tmp_path: Path, spoil: Callable[[pb.DigestRequest], Any]
) -> None:
    """Requests out of range, of a term, and without the checksum of their fields."""
    async with members(tmp_path, 1, RARELY) as group:
        leader = await fill(group)
        body = pb.DigestRequest(number=1, index=3, entry_term=1, digest=7)
        for message in (
            pb.PeerMessage(digest_request=body),
            seal(pb.PeerMessage(term=1, digest_request=body)),
        ):
            with pytest.raises(InvalidMessage):
                leader.comparison.on_message(NodeId("n2"), message)
        spoil(body)
        with pytest.raises(InvalidMessage):
            leader.comparison.on_message(NodeId("n2"), seal(pb.PeerMessage(digest_request=body)))


def test_member_that_is_out_names_the_members_of_its_log(tmp_path: Path) -> None:
    """Its configuration file may know of a group that was; where the mark is of a release before
    there is nothing else."""
    config = make_configs(tmp_path, 3)[0]
    aside = Aside(config, OsFiles(), tuple)
    members_now = (("n1", "a:1"), ("n7", "b:2"))
    config.data_directory.mkdir(parents=True)
    told = Divergence(compared_index=3, peers=("n7",), members=members_now)
    mark(OsFiles(), config.data_directory, told)
    assert mark_of(OsFiles(), config.data_directory) == told
    named = aside._status(told, bytes(16)).peers
    assert [(each.node_id, each.address) for each in named] == [("n7", "b:2")]
    named = aside._status(replace(told, members=()), bytes(16)).peers
    assert {each.node_id for each in named} == {"n2", "n3"}
