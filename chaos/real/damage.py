"""The nemeses of files: bits that flip, files cut short, old copies put back.

What must hold is in docs/chaos.md. A node whose start finds rot in its log gets the bytes back
before it is a member, and one that runs gets them meanwhile; where nothing proves what they were it
must not start, and is given an empty disk while all others run, as docs/operations.md says.
Derived files are no reason to refuse (ADR 7): a node whose ConsumeQueue is an old copy starts, and
derives it again.

An old file of term and vote is known by its second copy, or by a newer term in the log. Where there
is neither, the node may vote twice in a term, and no check of its own could know: a schedule that
puts `hard-state` back must see to a new term first, as `disk` does.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Final

from broker.local_group import LocalGroupError, NodeDied
from chaos.errors import NothingStruck
from chaos.real.arena import SEGMENT_BYTES
from chaos.real.blow import Blow
from chaos.real.processes import kill
from chaos.real.workload import TOPIC
from dledger.core.types import EntryKind
from dledger.reading.entry import (
    COMPOUND_VERSION,
    ENTRY_MAGIC,
    FILLER_MAGIC,
    HEADER_SIZE,
    OLD_VERSION,
    OPENING_SIZE,
    verify_frame,
)
from dledger.records.errors import InvalidFrame
from dledger.records.layout import ENTRY, FILE_GLOB, FIRST_RECORD_AT, FIRST_RECORD_AT_1, RECORD

HOW: Final = ("flip", "cut")
FILES: Final = ("checkpoint", "segment", "consume-queue", "hard-state")
WHERE: Final = ("anywhere", "body", "place")
WHICH: Final = ("oldest", "newer")  # of closed segments; where old ones go, others may lack those
SPOILED: Final = {  # of a record: where it says that it lies, or the first byte of its body
    "place": range(RECORD.at("queue_offset"), RECORD.end("physical_offset")),
    "body": range(RECORD.at("body"), RECORD.at("body") + 1),
}
DERIVED: Final = "consume-queue"
REPAIRED_S: Final = 60.0  # a pass of the scrub over a short log, and the pause before it
LOOK_S: Final = 0.2
CHANGES_WITHIN_S: Final = 10.0  # clients that were cut off come back within their timeout of 3 s
_HEAD: Final = ENTRY.struct("total_size", "magic", "kind", "version")


# --- rot --------------------------------------------------------------------------------------


async def rot(blow: Blow) -> str:
    """Flips a bit in, or shortens, the oldest segment of each victim, which is down meanwhile."""
    await kill(blow)
    done: list[str] = []
    for victim in blow.victims:
        if _is_closed(blow, victim):  # otherwise it may be a tail that tore
            blow.arena.rotten.add(victim)
        done.append(_spoil(_oldest(blow, victim), blow))
    return "; ".join(done)


async def rot_below(blow: Blow) -> str:
    """Flips a bit in a closed segment of nodes that run, and reads it back as a consumer: the
    bytes that were written, or an error. What was read is in the history."""
    done: list[str] = []
    end = 0
    for victim in blow.victims:
        if not _is_closed(blow, victim):
            return _nothing_yet(done, f"{victim} has no closed segment yet")
        blow.arena.rotten.add(victim)
        segment = blow.chance.choice(_meant(blow, victim))
        places = _places(segment, str(blow.options["where"]))
        done.append(f"{victim}: {_flip(segment, places, blow.chance)}")
        end = max(end, int(segment.name) + SEGMENT_BYTES)
    return f"{'; '.join(done)}; {await blow.witness(end)}"


def _nothing_yet(done: list[str], why: str) -> str:
    """What to say where one of the victims can't be hit.

    Raises:
        NothingStruck: nor was one before it.
    """
    if not done:
        raise NothingStruck(why)
    return "; ".join((*done, why))


async def await_repair(blow: Blow) -> str:
    """What has rotted below nodes that run is got back from their peers, while they run.

    Raises:
        LocalGroupError: it isn't, in time.
    """
    done = [await _got_back(blow, victim) for victim in blow.victims if victim in blow.arena.rotten]
    return "; ".join(done)


async def _got_back(blow: Blow, victim: str) -> str:
    """Whichever closed segment it was, it is sound again.

    Raises:
        LocalGroupError: it isn't, in time.
    """
    for _ in range(round(REPAIRED_S / LOOK_S)):
        if not blow.arena.is_running(victim) or all(map(_is_sound, _closed(blow, victim))):
            break
        await asyncio.sleep(LOOK_S)
    if not blow.arena.is_running(victim):
        raise LocalGroupError(f"{victim} ended over a closed segment that has rotted")
    if not all(map(_is_sound, _closed(blow, victim))):
        raise LocalGroupError(f"{victim} runs on a closed segment that has rotted")
    blow.arena.rotten.discard(victim)
    return f"{victim} has got it back"


async def replace_rotten(blow: Blow) -> str:
    """Nodes with a rotten closed segment get the bytes back; those that refuse to start, as one is
    too short, get an empty disk.

    Raises:
        LocalGroupError: one starts and doesn't, or doesn't start for another reason.
    """
    done: list[str] = []
    for victim in blow.victims:
        is_rotten = victim in blow.arena.rotten
        blow.arena.rotten.discard(victim)
        if blow.arena.is_running(victim):
            if not is_rotten:
                continue  # nothing was done to it
            blow.arena.kill(victim)
            await blow.arena.gone(victim)
        refused = await _refuses(blow, victim)
        if is_rotten and not refused:
            done.append(await _got_back(blow, victim))
            continue
        done.append(await _outcome(blow, victim, refused=refused))
    return "; ".join(done)


# --- old copies -------------------------------------------------------------------------------


async def set_aside(blow: Blow) -> str:
    """A copy of a file is taken from each victim, which goes on running and changing it."""
    done: list[str] = []
    for victim in blow.victims:
        original = _chosen(blow.arena.data_directory(victim), str(blow.options["file"]), blow)
        if original is None:
            return _nothing_yet(done, f"{victim} has no {blow.options['file']} yet")
        blow.arena.set_aside(victim, blow.label, original)
        done.append(f"{victim}: {original.name} copied")
    return "; ".join(done)


async def put_back(blow: Blow) -> str:
    """The old copy is in the place of the file, which has been given the time to change. The node
    refuses to start and is given an empty disk, or it starts and has what it needs from the log and
    its peers.

    Raises:
        LocalGroupError: a derived file keeps a node from starting, or something else does.
    """
    await _changes(blow)
    await kill(blow)
    done: list[str] = []
    for victim in blow.victims:
        changed = blow.arena.put_back(victim, blow.label)
        refused = await _refuses(blow, victim)
        if refused and blow.options["file"] == DERIVED:
            raise LocalGroupError(f"{victim} doesn't start with an old copy of a ConsumeQueue")
        what = "an older copy put back" if changed else "the copy was still the same"
        done.append(f"{what}; {await _outcome(blow, victim, refused=refused)}")
    return "; ".join(done)


async def _changes(blow: Blow) -> None:
    """The load writes on, but after a fault before this one it may have to begin again first.
    Term and vote change with the next election only: whoever puts them back sees to one."""
    if blow.options["file"] == "hard-state":
        return
    deadline = time.monotonic() + CHANGES_WITHIN_S
    for victim in blow.victims:
        while blow.arena.is_unchanged(victim, blow.label):
            if time.monotonic() > deadline:
                return
            await asyncio.sleep(0.1)


# --- files ------------------------------------------------------------------------------------


async def _refuses(blow: Blow, victim: str) -> bool:
    """Starts the node; whether it ended at once because of corruption that it found."""
    log_end = blow.arena.log_end(victim)
    try:
        await blow.arena.start(victim)
    except NodeDied:
        if "orrupt" not in blow.arena.log_since(victim, log_end):
            raise
        return True
    return False


async def _outcome(blow: Blow, victim: str, *, refused: bool) -> str:
    if not refused:
        return f"{victim} started"
    await blow.arena.start_anew(victim)
    return f"{victim} refused to start and was given an empty disk"


def _segments(blow: Blow, victim: str) -> list[Path]:
    return sorted((blow.arena.data_directory(victim) / "commitlog").glob(FILE_GLOB))


def _oldest(blow: Blow, victim: str) -> Path:
    """Long committed, long not read."""
    return _segments(blow, victim)[0]


def _meant(blow: Blow, victim: str) -> list[Path]:
    """Closed segments, by the strike's option: the oldest one, or the newer half of them, which
    nobody lets go soon."""
    if blow.options["which"] == WHICH[0]:
        return [_oldest(blow, victim)]
    closed = _closed(blow, victim)
    return closed[len(closed) // 2 :]


def _closed(blow: Blow, victim: str) -> list[Path]:
    """All segments but the one that is written to."""
    return [each for each in _segments(blow, victim) if _is_used(each)][:-1]


def _is_closed(blow: Blow, victim: str) -> bool:
    """Whether the victim's log goes on behind its oldest segment."""
    return any(map(_is_used, _segments(blow, victim)[1:]))


def _is_sound(segment: Path) -> bool:
    """Whether a segment's entries are what was written: CRCs, and digests from the first one on,
    whose own can be checked in a log's very first segment only. One that was let go is sound."""
    try:
        content = segment.read_bytes()
    except FileNotFoundError:
        return True
    at, digest = 0, None if int(segment.name) else 0
    while at + HEADER_SIZE < len(content):
        _, magic, _, _ = _HEAD.unpack_from(content, at)
        if magic == FILLER_MAGIC:
            break
        try:
            header = verify_frame(content, at, digest)
        except InvalidFrame:
            return False
        at, digest = at + header.total_size, header.digest
    return True


def _is_used(segment: Path) -> bool:
    """Whether an entry begins it. Segments are made ahead, full of zeros; old ones may go."""
    try:
        with segment.open("rb") as file:
            return any(file.read(OPENING_SIZE))
    except FileNotFoundError:
        return False


def _spoil(segment: Path, blow: Blow) -> str:
    if blow.options["how"] == "cut":
        with segment.open("r+b") as file:
            file.truncate(segment.stat().st_size // 2)
        return f"{segment.name} cut in half"
    return _flip(segment, _places(segment, WHERE[0]), blow.chance)


def _flip(segment: Path, places: Sequence[range], chance: Random) -> str:
    at = chance.choice(chance.choice(places))
    with segment.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0] ^ 1 << chance.randrange(8)
        file.seek(at)
        file.write(bytes((byte,)))
    return f"a bit of {segment.name} flipped at {at}"


def _places(segment: Path, where: str) -> list[range]:
    """Bytes of the segment's entries: all of them, or those of the first record of each batch in
    which it says where it is, or its body. (A filler is checked, too, but nobody reads it.)"""
    content = segment.read_bytes()
    found: list[range] = []
    at = 0
    while at + HEADER_SIZE < len(content):
        size, magic, kind, version = _HEAD.unpack_from(content, at)
        if magic != ENTRY_MAGIC:
            break
        record = at + (FIRST_RECORD_AT_1 if version == OLD_VERSION else FIRST_RECORD_AT)
        if where == "anywhere":
            found.append(range(at, at + size))
        elif kind == EntryKind.DATA and version != COMPOUND_VERSION:
            spoiled = SPOILED[where]
            found.append(range(record + spoiled.start, record + spoiled.stop))
        at += size
    return found


def _chosen(data: Path, name: str, blow: Blow) -> Path | None:
    """The file that is meant; of several ConsumeQueues any, of the segments the one being
    written, which will have changed most."""
    match name:
        case "checkpoint":
            found: Iterator[Path] = iter([data / "checkpoint"])
        case "hard-state":
            found = iter([data / "raft" / "hard_state"])
        case "segment":
            used = filter(_is_used, (data / "commitlog").glob(FILE_GLOB))
            found = iter(sorted(used)[-1:])
        case _:
            found = (data / "consumequeue").glob(f"{TOPIC}@*/*/{FILE_GLOB}")
    present = sorted(path for path in found if path.exists())
    return blow.chance.choice(present) if present else None
