"""Gets back from a peer what has rotted in this member's log, while the member goes on.

Whoever reads the log and stumbles comes here (`takes`): the scrub, pulls, appends to peers,
applying, mending. If what has rotted is committed, the read is refused for now and a repair begins.
Until it is over the member is *in doubt*: it neither votes, campaigns nor acknowledges, its own
disk doesn't count where it leads, and it hands over (`Raft.report_doubt`). It follows, and serves
what it can read. One damage at a time, and after a round that came to nothing the next place:

    found ─▶ bounded ─▶ asking ─▶ judged ─▶ journal ─▶ in place ─▶ read back ─▶ bounded: gone
                 ▲        │          │
                 │        └ no answer, or bytes that aren't the ones: the next peer
                 └ nobody has given them; three times over for the same bytes, as every peer says
                   that it can't: the replica ends

Within a place the sizes of what has rotted aren't known: damage reaches up to what was appended
last, if nothing intact begins between. So it waits, in doubt, until all of that is committed.

What is remembered of a find is its place, which follows from memory: the same find is the same
place, and there are no more of them than places. What is damaged there, and what answers are judged
by, is looked at anew before each round of asking, as the neighbours may have rotted meanwhile, or
have been put right; and after each repair, until the place is sound.

It must never keep a byte that wasn't judged (`store.damage`): a giver is believed in nothing. Nor
may it touch what isn't committed, wait for one peer only, or end the member while a peer that may
have the bytes hasn't said that it doesn't (docs/adr/0039-rot-in-the-log-is-repaired.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Final, Protocol

import structlog

from broker.asking import AGAIN_S, NEGATIVE_ROUNDS, Asking, Given, Verdict, are_final, told
from dledger.checksum import check_outside_terms, seal
from dledger.core.errors import UnknownEntry
from dledger.core.types import MAX_INDEX, MAX_TERM, LogView, NodeId
from dledger.errors import InvalidMessage
from dledger.peers import PeerLink
from dledger.reading.entry import digest_of, parse_header, walk_frames
from dledger.records.errors import InvalidFrame
from dledger.sparing import Sparing
from dledger.wire import raft_pb2 as pb
from store.commitlog import CommitLog
from store.damage import Damage, Extent, Refill
from store.doubt import DoubtNote, Place
from store.errors import BeyondRepair, CorruptionFound, OutOfRange, StorageFull
from store.files import FULL_ERRNOS, PASSING_ERRNOS, SECTOR_BYTES
from store.repair_journal import RepairJournal

GIVEN_BYTES: Final = 64 << 10  # in one answer, but one entry at least: a turn of the loop each
SPACE_S: Final = 1.0  # from finding no space for the journal to trying again
IDLE_LOOK_S: Final = 0.02
WHAT_IS_COMMITTED: Final = "what is committed"
COMMIT_S: Final = 5.0  # for what lies behind the rot to be committed: an election, and more

log = structlog.get_logger(__name__)


class Hand(Protocol):
    """`broker.ports.DiskHand`, as far as it is used here."""

    async def run(self, step: Callable[[], object]) -> object: ...


@dataclass(frozen=True, slots=True)
class RepairStatistics:
    """`damages`: places that are known to be rotten and not sound again yet. Counts since the
    process started: places found, and sound again; bytes written back; answers that weren't the
    right bytes; answers given to others."""

    damages: int
    found: int
    repaired: int
    bytes_repaired: int
    answers_refused: int
    answers_given: int


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What repairs need of the replica that they are a part of.

    Attributes:
        through: the last entry that is committed, and on this disk.
        holds: whether an entry of that index and term is on this disk, committed or not.
        term_at: the term of an entry, as the core knows it.
        links: the connections to the peers.
        request, answer: send a message to a peer, which may get lost.
        doubt: is told when this member begins to be in doubt, and when it ends.
        failed: is told of an error that repairs can't get over.
    """

    through: Callable[[], int]
    holds: Callable[[int, int], bool]
    term_at: Callable[[int], int]
    links: Callable[[], Mapping[NodeId, PeerLink]]
    request: Callable[[NodeId, pb.PeerMessage], None]
    answer: Callable[[NodeId, pb.PeerMessage], None]
    doubt: Callable[..., None]
    failed: Callable[[BaseException], None]


@dataclass(slots=True)
class _Attempt:
    """What came of mending one place so far: what has to be sound with it, the damage that nobody
    gave and in how many rounds running every peer said that it can't, and by when, in seconds of
    the loop's clock, what lies behind has to be committed."""

    front: Extent
    refused: Damage | None = None
    negative: int = 0
    committed_by: float = inf

    def count(self, damage: Damage, verdicts: Mapping[NodeId, Verdict]) -> None:
        """Nobody gave it, in another round.

        Raises:
            BeyondRepair: nobody will.
        """
        negative = self.negative if damage == self.refused else 0
        self.refused, self.negative = damage, negative + 1 if are_final(verdicts) else 0
        if self.negative >= NEGATIVE_ROUNDS:
            entries = f"entries {damage.first_index} to {damage.last_index}"
            raise BeyondRepair(damage.file, f"of {entries}, {told(verdicts)}")


class Repairs:
    """All repairs of one replica, on its event loop, from `start` to `stop`."""

    def __init__(
        self,
        source: CommitLog,
        journal: RepairJournal,
        hand: Hand,
        around: Surroundings,
        note: DoubtNote,
    ) -> None:
        self._log = source
        self._journal = journal
        self._hand = hand
        self._around = around
        self._note = note
        self._noting: asyncio.Task[None] | None = None
        self._noted: list[Place] | None = None  # what the note says; None: nobody knows
        self._stopping = asyncio.Event()
        self._places: list[Extent] = []
        self._attempts: dict[Extent, _Attempt] = {}  # one a place
        self._heeding: list[Callable[[], None]] = []
        self._task: asyncio.Task[None] | None = None
        self._is_started = False
        self._asking = Asking(around.links, around.request)
        self._sparing = Sparing()
        self._found = self._repaired = self._bytes = self._given = 0
        self.writing = asyncio.Lock()  # while bytes are put back; no file goes meanwhile

    @property
    def first_rotten(self) -> int | None:
        """The physical offset at which what is known to be rotten begins; None: nothing is."""
        return min((each.base + each.start for each in self._places), default=None)

    def is_rotten(self, path: Path) -> bool:
        """Whether something in that file of the log is known to be."""
        return any(each.path == path for each in self._places)

    @property
    def is_at_work(self) -> bool:
        """Whether anything is known to be rotten: the member is in doubt."""
        return bool(self._places)

    def statistics(self) -> RepairStatistics:
        """A frozen picture, as of now."""
        return RepairStatistics(
            len(self._places),
            self._found,
            self._repaired,
            self._bytes,
            self._asking.refused,
            self._given,
        )

    def heed(self, call: Callable[[], None]) -> None:
        """It is called whenever rot is found."""
        self._heeding.append(call)

    # --- what is found ----------------------------------------------------------------------

    def takes(self, error: BaseException) -> bool:
        """Whether what a read stumbled over is, or was, being put right: it works later, as does
        what the process is too short of something for. Safe from within whatever reads the log."""
        if not isinstance(error, CorruptionFound):
            return isinstance(error, StorageFull)
        if self.covering(error) is not None:
            return True
        if self._log.damages.is_gone(error.file):
            return True
        try:
            place = self._log.damages.place_of(error.file, error.offset)
            damage = self._damage_in(place)
        except (BeyondRepair, OutOfRange) as reason:
            log.error("log_beyond_repair", reason=str(reason))
            return False
        if damage is None:
            return True  # what was read is there: a disk that said something else once
        if not self._around.links() and not damage.is_filler:
            return False  # nobody to ask; what belongs into a filler follows from the log
        self._add(place, damage, error)
        return True

    def covering(self, error: CorruptionFound) -> Extent | None:
        """The place, known to be rotten, that this error tells of."""
        return next((each for each in self._places if each.holds(error.file, error.offset)), None)

    def _damage_in(self, place: Extent) -> Damage | None:
        """What has to be put right next for the place to be sound; None: it is.

        Raises:
            BeyondRepair, OutOfRange: it can't be.
        """
        if self._log.damages.is_gone(str(place.path)):
            return None
        damage = self._log.damages.locate(str(place.path), place.start)
        if damage is not None and damage.first_index > self._around.through():
            if damage.is_filler:
                return None  # no entry; a pass comes by again once what lies behind is committed
            reason = f"entry {damage.first_index} isn't known to be committed"
            raise BeyondRepair(damage.file, reason)
        return damage

    def _add(self, place: Extent, damage: Damage, error: CorruptionFound) -> None:
        self._found += 1
        self._places.append(place)
        log.error(
            "log_rot_found",
            file=error.file,
            offset=error.offset,
            first_entry=damage.first_index,
            last_entry=damage.last_index,
            expected=str(error.expected),
            found=str(error.found),
        )
        self._around.doubt(is_in_doubt=True)
        for call in self._heeding:
            call()
        self._begin()
        self._note_places()

    def _follow(self, file: str) -> None:
        """If the log's front has gone with that file, in which something was rotten: what of it
        lies in the file that is the first one now is a place of its own. Rot goes on from the end
        of a file to the begin of the next, and from a place that nobody looks at any more.

        Raises:
            BeyondRepair, OutOfRange: it can't be put right.
        """
        if not self._log.damages.is_gone(file):
            return
        place = self._log.damages.first_place()
        left = None if place is None else self._damage_in(place)
        if place is not None and left is not None and place not in self._places:
            if not self._around.links() and not left.is_filler:
                raise BeyondRepair(left.file, "nobody can be asked for it")
            rest = "what is left of rot across two files"
            self._add(place, left, CorruptionFound(str(place.path), place.start, "entries", rest))

    def recall(self) -> None:
        """What a process before has found, and not put right, is in doubt from the first moment on.
        To be called once, when the core runs.

        Raises:
            BeyondRepair: it can't be put right.
            OSError: the note can't be read.
        """
        for name, offset in self._note.read():
            file = str(self._log.path_of(name))
            if not self._log.holds_byte(file, offset):
                self._follow(file)
                continue  # the log has been cut since, or begun anew, or its front has gone
            place = self._log.damages.place_of(file, offset)
            damage = self._damage_in(place)
            if damage is not None and place not in self._places:
                error = CorruptionFound(file, offset, "what was written", "rot, before this start")
                self._add(place, damage, error)
        self._note_places()

    # --- life -------------------------------------------------------------------------------

    def start(self) -> None:
        """Repairs begin."""
        self._is_started = True
        self._begin()

    async def idled(self) -> None:
        """Nothing is known to be rotten any more."""
        while self._places:  # noqa: ASYNC110  it is looked at by a stop only
            await asyncio.sleep(IDLE_LOOK_S)

    async def stop(self) -> None:
        """No repair goes on; what isn't repaired is found again by the next start. What it is to be
        found by is tried once more to be written down, if there was no space for it."""
        self._is_started = False
        self._stopping.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._noting is not None:
            await self._noting

    def _note_places(self) -> None:
        """The places are written down, as soon as the disk's hand comes to it."""
        if self._noting is None or self._noting.done():
            loop = asyncio.get_running_loop()
            self._noting = loop.create_task(self._keep_note(), name="doubt-note")

    async def _keep_note(self) -> None:
        """The note says what is named, or the replica stops, or fails."""
        try:
            while (places := self._named()) != self._noted:
                self._noted = None  # until it is known what became of it
                try:
                    await self._hand.run(partial(self._note.write, places))
                    self._noted = places
                except OSError as error:
                    if error.errno not in PASSING_ERRNOS:
                        raise
                    self._wait("no space for the note of it", str(error))
                    if self._stopping.is_set():
                        return
                    await self._pause(SPACE_S)
        except Exception as error:  # noqa: BLE001  nobody else would hear of it
            self._around.failed(error)

    async def _pause(self, seconds: float) -> None:
        """That time has passed, or there is to be a stop."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    def _named(self) -> list[Place]:
        return [(each.path.name, each.start) for each in self._places]

    def _begin(self) -> None:
        if self._is_started and self._places and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._work(), name="repairs")

    async def _work(self) -> None:
        try:
            while self._places:
                for place in sorted(self._places, key=lambda each: (each.base, each.start)):
                    attempt = self._attempts.setdefault(place, _Attempt(place))
                    if await self._mend(place, attempt):
                        self._on_sound(place)
        except Exception as error:  # noqa: BLE001  nobody else would hear of it
            self._around.failed(error)

    def _on_sound(self, place: Extent) -> None:
        self._places.remove(place)
        del self._attempts[place]
        self._repaired += 1
        self._follow(str(place.path))
        self._note_places()
        if not self._places:  # who is told may read, and find the next one at once
            self._around.doubt(is_in_doubt=False)

    async def _mend(self, place: Extent, attempt: _Attempt) -> bool:
        """The place is sound again; False: a round came to nothing. It has no more than that of the
        time there is: another place may be what somebody has, and what the log can begin behind.

        Raises:
            BeyondRepair, OutOfRange: it can't be.
            OSError: the disk doesn't keep what is written to it.
            CorruptionFound: the same, or what lies behind the rot isn't committed in time.
        """
        while (damage := self._damage_in(attempt.front) or self._damage_in(place)) is not None:
            if damage.is_filler:
                await self._fill(place, damage)
                return True
            if damage.last_index > self._around.through():
                attempt.committed_by = await self._uncommitted(damage, attempt.committed_by)
                return False
            attempt.committed_by = inf
            verdicts = await self._ask_for(damage)
            if self._log.damages.is_gone(damage.file):
                continue  # what isn't may be rotten still
            if not isinstance(verdicts, Given):
                attempt.count(damage, verdicts)
                self._wait("nobody has given the entries yet", told(verdicts))
                await asyncio.sleep(AGAIN_S)
                return False
            try:
                await self._put_back(damage, verdicts)
            except OSError as error:
                # Part of a sector that was lost meanwhile can't be written: what it begins
                # with is put right as well. A disk that refuses the same again has failed.
                attempt.front = _sector_of(damage.extents[0])
                if error.errno != errno.EIO or self._damage_in(attempt.front) in (None, damage):
                    raise
            attempt.refused = None
        return True

    async def _uncommitted(self, damage: Damage, until_s: float) -> float:
        """A moment later; `until_s` is the end of the time that there is for it to be committed,
        infinite before the first such moment, and is returned.

        Raises:
            CorruptionFound: that is over. A start keeps what is intact, and asks for the rest.
        """
        now_s = asyncio.get_running_loop().time()
        if now_s >= until_s:
            last, found = damage.extents[-1], f"entry {damage.last_index}, which isn't known to be"
            raise CorruptionFound(str(last.path), last.end - 1, WHAT_IS_COMMITTED, found)
        self._wait("what lies behind isn't committed yet", f"entry {damage.last_index}")
        await asyncio.sleep(AGAIN_S)
        return min(until_s, now_s + COMMIT_S)

    async def _ask_for(self, damage: Damage) -> Given[Refill] | dict[NodeId, Verdict]:
        """What came of asking every peer; nothing, if the log's front has gone with it meanwhile.

        Raises:
            BeyondRepair, UnknownEntry: there is no such file or entry for another reason.
        """
        last = damage.last_index
        begin = partial(self._refill_of, damage)
        try:
            return await self._asking.ask_all(begin, last, self._around.term_at(last))
        except (BeyondRepair, UnknownEntry):  # an answer is judged by the file, and by terms
            if not self._log.damages.is_gone(damage.file):
                raise
            return {}

    def _refill_of(self, damage: Damage) -> Refill:
        damages = self._log.damages
        return Refill(damage, self._around.term_at, damages.arrives, damages.bytes_at)

    async def _fill(self, place: Extent, damage: Damage) -> None:
        if await self._write(place.path, partial(self._journal.write_filler, place)):
            self._on_written(damage, "")

    async def _put_back(self, damage: Damage, given: Given[Refill]) -> None:
        written = [
            await self._write(extent.path, partial(self._journal.write_back, extent, content))
            for extent, content in given.taken.contents()
        ]
        if any(written):
            self._on_written(damage, given.peer)

    def _on_written(self, damage: Damage, giver: str) -> None:
        self._bytes += damage.size
        log.warning(
            "log_repaired",
            file=damage.file,
            offset=damage.extents[0].start,
            size_bytes=damage.size,
            first_entry=damage.first_index,
            last_entry=damage.last_index,
            peer=giver,
        )

    async def _write(self, path: Path, step: Callable[[], None]) -> bool:
        """Whether `step` is done, as soon as there is space; it isn't where the log's front went
        meanwhile, and `path` with it. That may be what sets space free: it moves between two
        attempts.

        Raises:
            OSError, CorruptionFound: the disk doesn't keep what is written to it.
        """
        while True:
            async with self.writing:
                if self._log.damages.is_gone(str(path)):
                    return False
                try:
                    await self._hand.run(step)
                    return True
                except OSError as error:
                    if error.errno not in FULL_ERRNOS:
                        raise
                    self._wait("no space for the journal", str(error))
            await asyncio.sleep(SPACE_S)

    def _wait(self, why: str, details: str) -> None:
        if (unreported := self._sparing.due(("repair_waits", why))) is not None:
            log.warning("repair_waits", reason=why, details=details, unreported=unreported)

    # --- what peers say ---------------------------------------------------------------------

    def on_message(self, peer: NodeId, message: pb.PeerMessage) -> bool:
        """Whether `message` is about repairs; then it has been heeded.

        Raises:
            InvalidMessage: no working peer sends it.
        """
        match message.WhichOneof("body"):
            case "entries_request":
                check_outside_terms(peer, message)
                self._on_request(peer, message.entries_request)
            case "entries_response":
                check_outside_terms(peer, message)
                self._asking.on_response(peer, message.entries_response)
            case _:
                return False
        return True

    def _on_request(self, peer: NodeId, body: pb.EntriesRequest) -> None:
        is_range = 1 <= body.first_index <= body.last_index <= MAX_INDEX
        if not is_range or not 1 <= body.last_term <= MAX_TERM:
            raise InvalidMessage(f"{peer} asks for {body.first_index} to {body.last_index}")
        status, frames = self._give(body.first_index, body.last_index, body.last_term)
        self._given += status == pb.ENTRIES_STATUS_GIVEN
        answer = pb.EntriesResponse(
            number=body.number, status=status, frames=frames, frames_size=len(frames)
        )
        self._around.answer(peer, seal(pb.PeerMessage(entries_response=answer)))

    def _give(self, first: int, last: int, term: int) -> tuple[pb.EntriesStatus, bytes]:
        """Entries from `first` on, as they lie in the files, each verified; or why not. They are
        those that are meant if `last` is of the same term here (the log matching property), or as
        far as they are committed. A group of which the asker is one of two that are left may have
        nobody to tell this member that they are, while the other one is in doubt."""
        source = self._log
        if not self._around.holds(last, term):
            last = min(last, self._around.through())
        if not source.first_index <= first <= last:
            return pb.ENTRIES_STATUS_NOT_YET, b""
        frames = self._intact(first, last)
        status = pb.ENTRIES_STATUS_GIVEN if frames else pb.ENTRIES_STATUS_ROTTEN
        return status, frames

    def _intact(self, first: int, last: int) -> bytes:
        """Entries from `first` on, as many as are given at once and are intact: up to the first
        that has rotted."""
        source = self._log
        try:
            last = source.last_that_fits(first, last, GIVEN_BYTES)
            frames = source.read(first, last)
        except CorruptionFound as error:
            self._on_own_rot(error)
            frames = b"".join(self._one_by_one(first, last))
        try:
            before: int | None = source.digest_at(first - 1)
        except CorruptionFound as error:
            self._on_own_rot(error)
            before = None
        try:
            _verify(frames, before)
        except InvalidFrame as error:
            # In memory, as it was appended: no file's matter, and nothing to give to anybody.
            log.error("entries_not_given", reason=str(error))
            return b""
        return frames

    def _one_by_one(self, first: int, last: int) -> Iterator[bytes]:
        size = 0
        for index in range(first, last + 1):
            try:
                frame = self._log.read(index, index)
            except CorruptionFound:
                return
            size += len(frame)
            if size > len(frame) and size > GIVEN_BYTES:
                return
            yield frame

    def _on_own_rot(self, error: CorruptionFound) -> None:
        if not self.takes(error):
            self._around.failed(error)


class SteadyView:
    """The log, as the core asks it how much fits into an append. Where the sizes have rotted and
    are being got back it is one entry, which can't be read then."""

    def __init__(self, source: LogView, is_mended: Callable[[Exception], bool]) -> None:
        self._log = source
        self._is_mended = is_mended

    def last_that_fits(self, first: int, last: int, max_bytes: int) -> int:
        """See `LogView`."""
        try:
            return self._log.last_that_fits(first, last, max_bytes)
        except CorruptionFound as error:
            if self._is_mended(error):
                return first
            raise


def _verify(frames: bytes, digest: int | None) -> None:
    """Each frame is intact and carries on the digest, which isn't known where it is None.

    Raises:
        InvalidFrame: one doesn't.
    """
    at = 0
    for header in walk_frames(frames) if frames else ():
        is_known = digest is not None
        if is_known and digest_of(frames, at, header.total_size, digest or 0) != header.digest:
            raise InvalidFrame(at, "digest", "one that follows", f"{header.digest:016x}")
        digest = parse_header(frames, at).digest
        at += header.total_size


def _sector_of(extent: Extent) -> Extent:
    """From where the sector begins that the extent begins in."""
    return replace(extent, start=extent.start - extent.start % SECTOR_BYTES)
