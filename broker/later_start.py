"""What a start does whose missing entries all others have let go of: its log begins behind them.

Nobody can give back what has rotted here then, nor needs it. A peer whose log begins behind it says
where, and gives the state as of there, as to a member that runs (docs/adr/0053, docs/adr/0043):

    told where ─▶ judged ─┬ this log goes on from there ─▶ state ─▶ read back ─▶ note
                          ├ it ends before, or parts before ─▶ state ─▶ term ─▶ intent
                          └ that is within a gap ─▶ what lies behind it is asked for, judged,
                                                    written ─▶ the first of these

It must never drop an entry that may have been counted for a commit: of a log that goes on from
there nothing behind goes; one that doesn't hold the entry there, which the group has committed, was
counted for nothing behind it. Nor while logs are compared: this one may be what is left of the true
one (docs/adr/0044).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import structlog
from google.protobuf.message import DecodeError

from broker.asking import Asking, Given
from broker.pulling import Hand, NotGiven, Pulling, checked, head_of
from broker.snapshots import REFUSALS, refusal_of
from broker.state.machine import MachineOptions
from dledger.codec import check_configuration_size
from dledger.core.admission import TERMS_PER_TICK, wrong_base
from dledger.core.group_epoch import Standing, standing_of
from dledger.core.types import MAX_TERM, HardState, LogBase, NodeId, Term
from dledger.peers import PeerLink
from dledger.reading.log_start import LogStart
from store.files import FULL_ERRNOS, FileSystem
from store.gap import Gap, Holes
from store.gap_files import GapFiles
from store.gap_start import Fit, fit_of
from store.log_start import Install, StartNote
from store.snapshot_files import SnapshotFiles, SnapshotHead
from store.starting.opening import Holed, base_of
from store.suspicion import SuspicionNote

# From the first look on: who compares logs has asked here by then. Twice what one who was refused a
# stream waits until it dials again (`LinkTimes.refused_s`).
LISTEN_S: Final = 4.0
ASKED_FOR_S: Final = 5.0  # since a peer asked last, until no comparison is taken to go on
PULL_S: Final = 30.0  # for a MiB of a state, from one peer
SETTLED_S: Final = 60.0  # for what was pulled to wait until no logs are compared
LOOK_S: Final = 0.2  # from one look at that to the next

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Place:
    """Where that is, and what a state there has to be.

    Attributes:
        path: of the data directory.
        own: the member's node id.
        options, known_level: of the machines that the state is tried in.
    """

    files: FileSystem
    path: Path
    own: NodeId
    segment_size: int
    options: MachineOptions
    known_level: int


class LaterStart:
    """One start's. Its steps on the disk are the hand's.

    Args:
        links: the connections to the peers.
        pulling, asking: this start's questions.
    """

    def __init__(
        self,
        place: Place,
        holed: Holed,
        holes: Holes,
        gap_files: GapFiles,
        hand: Hand,
        links: Callable[[], Mapping[NodeId, PeerLink]],
        pulling: Pulling,
        asking: Asking,
    ) -> None:
        self._place = place
        self._holed = holed
        self._holes = holes
        self._gap_files = gap_files
        self._hand = hand
        self._links = links
        self._pulling = pulling
        self._asking = asking
        self._snapshots = SnapshotFiles(place.path, place.files)
        self._looked_s: float | None = None
        self._compared_s = -ASKED_FOR_S

    def compared(self) -> None:
        """A peer asks what this log holds: logs are being compared."""
        self._compared_s = asyncio.get_running_loop().time()

    async def begun(self, left: Sequence[Gap]) -> str:
        """Why the next start doesn't begin behind what is missing; empty: it does.

        Args:
            left: the gaps that are left, of which nobody gives the first.

        Raises:
            OSError: the disk failed.
        """
        reasons = []
        for peer, link in sorted(self._links().items()):
            if not (link.connected and link.tells_log_start):
                continue
            try:
                await self._begin(peer, left)
            except (NotGiven, *REFUSALS) as error:
                if isinstance(error, OSError) and error.errno not in FULL_ERRNOS:
                    raise
                reasons.append(f"{peer}: {error}")
            else:
                return ""
        return ", ".join(reasons) or "nobody says where its log begins"

    async def _begin(self, peer: NodeId, left: Sequence[Gap]) -> None:
        """The next start begins where the peer's log does.

        Raises:
            NotGiven, REFUSALS: it doesn't; the text says why.
        """
        start = await self._pulling.log_start_of(peer, self._patience_with(peer, 1.0))
        if not start.index:
            raise NotGiven("its log begins with entry 1")
        base = _decoded(start)
        if (wrong := wrong_base(base, self._furthest())) is not None:
            raise NotGiven(
                f"it begins where none can: {wrong.field} is {wrong.found}, "
                f"expected {wrong.expected}"
            )
        judge = partial(
            fit_of, self._holes, left, start, self._place.segment_size, self._gap_files.frame_at
        )
        fit = await self._hand.run(judge)
        if isinstance(fit, Gap):
            await self._shorten(fit)
            fit = await self._hand.run(judge)
        if fit is Fit.BEHIND:
            self._check_named(base)
        elif fit is not Fit.CONTINUED:
            raise NotGiven(f"its log begins with entry {start.first_index}, {_told(fit)}")
        await self._hand.run(self._check_undisputed)
        try:
            await self._pull(peer, start.index)
            await self._settled(peer, start)
            await self._hand.run(partial(self._write, start, is_continued=fit is Fit.CONTINUED))
        finally:  # else it would be in the way of what is pulled next
            await self._hand.run(self._snapshots.drop_received)
        log.warning(
            "log_begins_behind_rot",
            peer=peer,
            index=start.index,
            is_kept_behind=fit is Fit.CONTINUED,
        )

    async def _pull(self, peer: NodeId, index: int) -> None:
        """The peer's state is received. Of a full disk it takes the place of all snapshots but the
        one that the log begins with until now: a start can do without them.

        Raises:
            NotGiven, OSError: it isn't, as `Pulling.pull` says.
        """
        gives_back = await self._hand.run(self._log_bytes)
        try:
            await self._pulling.pull(peer, index, self._patience_with(peer, PULL_S), gives_back)
        except OSError as error:
            if error.errno not in FULL_ERRNOS:
                raise
            await self._hand.run(self._keep_base_only)
            await self._pulling.pull(peer, index, self._patience_with(peer, PULL_S), gives_back)

    def _keep_base_only(self) -> None:
        """Of the snapshots there is only the one that the log begins with until now, as far as the
        disk lets go of the others, and nothing that was received. Blocks."""
        now = StartNote(self._place.files, self._place.path).read().index
        self._snapshots.drop_received()
        self._snapshots.remove_all_but({now})

    def _log_bytes(self) -> int:
        """How much of the disk the log has, as it is. Blocks."""
        place = self._place
        return len(place.files.listdir(place.path / "commitlog")) * place.segment_size

    def _furthest(self) -> Term:
        """The term that the group can be in by now; for who runs see `dledger.core.admission`."""
        looked_s = self._looked_s
        since_s = 0.0 if looked_s is None else asyncio.get_running_loop().time() - looked_s
        reach = TERMS_PER_TICK * (1 + int(since_s))
        return Term(min(MAX_TERM, self._holed.hard_state.term + reach))

    async def _shorten(self, rest: Gap) -> None:
        """What a gap lacks behind that entry is there, judged by where it arrives: that shows the
        entry to be this log's, too.

        Raises:
            NotGiven: nobody has given it.
        """
        begun = await self._hand.run(partial(self._gap_files.begin, rest))
        given = await self._asking.ask_all(begun.anew, rest.behind.index, rest.behind.term)
        if not isinstance(given, Given):
            raise NotGiven(f"its log begins within what is missing, and nobody gives {rest}")
        await self._hand.run(partial(self._gap_files.write, given.taken))

    def _check_named(self, base: LogBase) -> None:
        """This disk is a member there, in the group as it is known here: nobody else's log may take
        the place of its own."""
        configuration = base.configuration
        if configuration is None:
            raise NotGiven("it doesn't say who is a member there")
        own_disk = self._holed.directory.disk.disk_id
        if configuration.disk_of(self._place.own) != own_disk:
            raise NotGiven(f"this disk is no member yet where it begins, at entry {base.index}")
        standing = standing_of(configuration.epoch.recoveries, self._holed.recoveries)
        if standing not in (Standing.SAME, Standing.NEWER):
            raise NotGiven(f"the epoch that it begins in is {standing.value}")

    def _check_undisputed(self) -> None:
        """Nobody's log is in question; see `broker.installing`. Blocks."""
        if SuspicionNote(self._place.files, self._place.path).read() is not None:
            raise NotGiven("this log may be another one than the group's")

    def is_disputed(self) -> bool:
        """Whether somebody's log is in question, or could be, as nobody could ask yet."""
        now_s = asyncio.get_running_loop().time()
        if self._looked_s is None:
            self._looked_s = now_s
        return now_s < max(self._looked_s + LISTEN_S, self._compared_s + ASKED_FOR_S)

    async def _settled(self, peer: NodeId, start: LogStart) -> None:
        """No logs are compared, as far as is known here, and at the peer, who says where its log
        begins only then: it may have heard of a comparison that nobody could tell this one of.
        What was pulled waits for that, as it may have taken long, and comparing takes seconds.

        Raises:
            NotGiven: logs are compared still, the peer has gone, or its log is another one by now.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + SETTLED_S

        def is_there() -> bool:
            link = self._links().get(peer)
            return link is not None and link.connected and loop.time() < until_s

        is_settled = False
        while not is_settled:
            while self.is_disputed():
                if not is_there():
                    raise NotGiven("logs are compared")
                await asyncio.sleep(LOOK_S)
            now = await self._pulling.log_start_of(peer, is_there)
            if now.index < start.index or (now.index == start.index and now != start):
                raise NotGiven("its log begins elsewhere by now")
            is_settled = not self.is_disputed()

    def _write(self, start: LogStart, *, is_continued: bool) -> None:
        """What was received is this disk's own, and its log begins with it at the next start.
        Blocks; a crash on the way leaves a snapshot, or a term, that harms nothing.

        Raises:
            REFUSALS: it isn't, or doesn't.
        """
        place, snapshots = self._place, self._snapshots
        chunks = checked(snapshots, start, place.options, place.known_level)
        head = head_of(self._holed.directory.disk.disk_id, start)
        self._publish(head, chunks)
        if (refusal := refusal_of(snapshots, head, place.options, place.known_level)) is not None:
            raise NotGiven(f"what was written isn't what is read: {refusal}")
        if is_continued:
            StartNote(place.files, place.path).replace(start)
            return
        if start.term > self._holed.hard_state.term:  # no log is ahead of its term
            self._holed.hard_state_store.save(HardState(Term(start.term)))
        Install(place.files, place.path).intend(start)

    def _publish(self, head: SnapshotHead, chunks: Sequence[bytes]) -> None:
        """The state has its name.

        Raises:
            OSError: it hasn't; of a full disk only the base is left, and room for the next time.
        """
        snapshots = self._snapshots
        unfinished = snapshots.begin(head, takes_reserve=True)
        try:
            unfinished.add(chunks)
            unfinished.finish()
            snapshots.publish(unfinished)
        except OSError as error:
            unfinished.drop()
            if error.errno in FULL_ERRNOS:
                self._keep_base_only()
            raise

    def _patience_with(self, peer: NodeId, seconds: float) -> Callable[[], bool]:
        is_heard = self._pulling.patience(seconds)

        def is_there() -> bool:
            link = self._links().get(peer)
            return is_heard() and link is not None and link.connected

        return is_there


def _decoded(start: LogStart) -> LogBase:
    """Raises NotGiven: it names no members, or as many as no note can hold."""
    try:
        check_configuration_size(len(start.configuration))
        return base_of(start)
    except (DecodeError, ValueError) as error:
        raise NotGiven(f"who is a member there can't be read: {error}") from error


def _told(fit: Fit | Gap) -> str:
    return fit.value if isinstance(fit, Fit) else f"and lacks {fit}"
