"""Whether a simulated node started, failed and ended as it may: a node may stop for what was done
to its disk, and for nothing else."""

from __future__ import annotations

from pathlib import Path

from google.protobuf.message import Message

from broker.ending import DISK_ERRNOS, ending_of
from broker.repairs import WHAT_IS_COMMITTED
from broker.replica import Replica
from chaos.sim.defect import Defect
from chaos.sim.denials import errors_in
from chaos.sim.disk_failures import is_lost_sector
from chaos.sim.files import SECTOR_BYTES
from chaos.sim.machine import Life, Machine
from chaos.sim.machine_config import DATA
from dledger.errors import HardStateCorrupt
from dledger.outcome import ExitCode
from dledger.reading.entry import digest_of, possible_starts, verify_frame
from dledger.records.errors import InvalidFrame
from dledger.wire import errors_pb2 as epb
from store.doubt import DoubtNote
from store.errors import BeyondRepair, CorruptionFound, StorageFailed, StoreError
from store.files import FULL_ERRNOS
from store.starting.errors import OutOfService
from store.suspicion import SuspicionNote


def check_the_end(node: Machine, life: Life, *, is_clean: bool) -> None:
    """The next start trusts the log exactly if nothing has failed; and then it has nothing to
    derive again, unless the disk was full."""
    failed = life.failed
    # The mark is the last thing that a close writes: if that is what failed, all else is safe.
    is_mark = isinstance(failed, StorageFailed) and failed.operation == "close"
    is_clean_log = is_clean and not life.replica.repairs.is_at_work
    if node.disk.has(DATA / "abort") == is_clean_log and not is_mark:
        ending = "a clean stop" if is_clean else f"a failure ({failed})"
        raise Defect("stop", f"{node.name}: the log is marked wrongly after {ending}")
    replica = life.replica
    noted = replica.log.checkpoint.state.consume_queue_index
    is_held = replica.housekeeping.is_checkpoint_held
    is_behind = noted != replica.driver.settled_index and node.config.store.flush == "sync"
    is_behind &= not replica.mender.is_at_work  # what is noted has to be found wrong again
    if is_clean and not is_held and is_behind:
        raise Defect("stop", f"{node.name}: the checkpoint stays at {noted} at a clean stop")


def check_rot_was_found(node: Machine) -> None:
    """Recovery has read whatever no seal spoke of: a rotten byte in it can't have escaped."""
    if node.life is None:
        return
    log = node.life.replica.log
    try:
        known = [
            (log.position_of(first), log.position_of(last) + log.header_at(last).total_size)
            for first, last in log.passed_over
        ]
    except StoreError:
        return  # where they begin has rotted, which is the scrub's to find
    for (path, at), before in node.rot.items():
        if path.parent.name != "commitlog":
            continue
        if not node.disk.has(path):
            continue  # what was in it was retired
        place = int(path.name) + at
        is_known = any(start <= place < end for start, end in known)
        if not is_known and node.disk.content(path)[at : at + 1] != bytes((before,)):
            raise Defect("rot not found", f"{node.name}: {path.name} at byte {at}")


def check_doubt(node: Machine, replica: Replica) -> None:
    """Whoever has written down that its log is rotten promises nothing until it isn't, in this
    life as in the one before."""
    for name, offset in DoubtNote(node.disk, DATA).read():
        file = DATA / "commitlog" / name
        if replica.repairs.is_at_work or not replica.log.holds_byte(str(file), offset):
            continue
        place = replica.log.damages.place_of(str(file), offset)
        content = node.disk.content(file)
        for (path, at), before in node.rot.items():
            is_there = path == file and place.start <= at < place.end
            if is_there and content[at : at + 1] != bytes((before,)):
                raise Defect("doubt forgotten", f"{node.name}: {name} at byte {at} is rotten")


def check_suspicion(node: Machine, replica: Replica) -> None:
    """Whoever has written down that its log may be another one compares it, in this life as in
    the one before."""
    noted = SuspicionNote(node.disk, DATA).read()
    if noted is None or not 0 < noted.index <= replica.driver.core.durable_index:
        return
    if not replica.comparison.statistics().suspected:
        raise Defect("suspicion forgotten", f"{node.name}: entry {noted.index}")


def judge_ending(node: Machine, error: BaseException) -> None:
    """Who supervises the process learns whether it was the disk."""
    cause = error.cause if isinstance(error, StorageFailed) else error
    is_the_disk = isinstance(cause, OSError) and cause.errno in DISK_ERRNOS | FULL_ERRNOS
    expected = ExitCode.DISK_FAILED if is_the_disk else ExitCode.FAILED
    if (ending := ending_of(error)) is not expected:
        raise Defect("exit code", f"{node.name}: {ending:d} for {error!r}") from error


def could_repair(node: Machine, error: CorruptionFound) -> bool:
    """Whether what the process ended for was committed, for all that it knew: then it had to be
    repaired."""
    path = Path(error.file)
    if path.parent.name != "commitlog" or node.life is None:
        return False
    replica = node.life.replica
    try:
        index = replica.log.index_at(int(path.name) + error.offset)
    except StoreError:
        return False
    core = replica.driver.core
    return index <= min(core.commit_index, core.durable_index, replica.log.synced_index)


def is_excused(node: Machine, error: BaseException) -> bool:
    cause = error.cause if isinstance(error, StorageFailed) else error
    if isinstance(cause, OutOfService):
        return is_rightly_out(node, cause)
    if isinstance(cause, BeyondRepair):
        # Somebody else has lost the same, or said so.
        was_lied_to = node.world.network.lies.have_touched(node.name)
        is_elsewhere = node.world.is_rotten_elsewhere(node)
        # Of a log that is another one nobody has the bytes.
        return node.has_log_rot and (was_lied_to or is_elsewhere or node.altered_from > 0)
    if isinstance(cause, CorruptionFound):
        return node.spoiled and not could_repair(node, cause)
    if isinstance(cause, HardStateCorrupt):
        return node.spoiled
    if isinstance(cause, OSError) and cause.errno in FULL_ERRNOS:
        return False  # a full disk refuses messages; it ends no node (ADR 28)
    return isinstance(cause, OSError) and node.disk.failures.have_caused(cause)


def may_be_internal(node: Machine, error: Exception) -> bool:
    """Whether a service may fail by it, and tell its caller no more: it has met rot, or an error
    that its disk was made to raise."""
    cause = error.cause if isinstance(error, StorageFailed) else error
    if isinstance(cause, OSError):
        return node.disk.failures.have_caused(cause) or is_lost_sector(cause)
    return node.spoiled and isinstance(cause, (CorruptionFound, BeyondRepair))


def check_internal(node: Machine, answer: Message) -> None:
    """It tells INTERNAL of nothing but what was done to its disk: a service turns any error into
    that, also one of its program's.

    Raises:
        Defect: it does, and nothing was.
    """
    if node.spoiled or any(node.disk.failures.of_process()):
        return
    for error in errors_in(answer):
        if error.code == epb.INTERNAL:
            raise Defect("service", f"{node.name}, whose disk is sound: {error.message[:200]}")


def is_for_a_start(error: BaseException) -> bool:
    """Whether the next process puts it right: rot in what nobody could tell to be committed, as no
    leader was there to. A start keeps what is intact, and asks for the rest."""
    return isinstance(error, CorruptionFound) and error.expected == WHAT_IS_COMMITTED


def is_rightly_out(node: Machine, error: OutOfService) -> bool:
    """Whether its log is another one, and parts from the others' where it says."""
    told = error.divergence
    if told.recoveries:
        return node.was_given_up
    if told.differing_index not in (0, node.altered_from):
        return False
    return bool(node.altered_from) and told.agreed_index < node.altered_from


def goes_on_behind(node: Machine) -> bool:
    """Whether nothing but a log has rotted on a disk, and behind all of it lie two entries of which
    the second goes on from the first: what is missing can be proven then."""
    places = [
        int(path.name) + at if path.parent.name == "commitlog" else None for path, at in node.rot
    ]
    if not places or None in places:
        return False
    last = max(each for each in places if each is not None) + SECTOR_BYTES
    before: tuple[int, int] | None = None  # where an intact entry ends, and its digest
    for path in sorted(each for each in node.disk.paths() if each.parent == DATA / "commitlog"):
        content = node.disk.content(path)
        for at in possible_starts(content):
            if int(path.name) + at <= last:
                continue
            try:
                header = verify_frame(content, at, None)
            except InvalidFrame:
                continue
            if header.physical_offset != int(path.name) + at:
                continue
            carried_on = before and digest_of(content, at, header.total_size, before[1])
            if before and (before[0], carried_on) == (header.physical_offset, header.digest):
                return True
            before = header.physical_offset + header.total_size, header.digest
    return False
