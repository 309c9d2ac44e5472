"""Gets back from peers what a start has found rotten in the log: the next start finds it whole.

A running member repairs its log while it goes on (`broker.repairs`). One that starts can't go on:
behind the rot lies its log's end, and perhaps the configuration in force, and nothing of either is
proven until the bytes before are there. So it is no member until then: it has no core, votes for
nobody, acknowledges nothing, gives nobody anything, which it says, and applies nothing. It dials
whoever may be a peer, in its own name and on its own disk, asks for exactly the entries that are
missing, judges what comes (`store.gap`) and writes it by way of the journal. Then it ends, and
whoever runs it starts again on a log in which nothing is wrong.

    gaps found ─▶ asking ─▶ judged ─▶ journal ─▶ in place ─▶ the next gap ─▶ none left: a start
                     │ ▲
                     │ ├ nobody has given them: said, and asked again
                     │ └ the others have let go of them: the log is to begin behind them: a start
                     └ three times over, as every peer says that it can't: it ends

It must never write a byte that wasn't judged, nor change anything else in the directory but the
number of starts, which peers hold it to, and where the log begins (`broker.later_start`;
docs/adr/0053-a-start-gets-back-what-has-rotted.md).
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog

from broker.asking import AGAIN_S, NEGATIVE_ROUNDS, Asking, Given, are_final, told
from broker.config import NodeConfig
from broker.later_start import LaterStart, Place
from broker.ports import ReplicaPorts
from broker.pulling import Pulling
from broker.recovery import site_of
from dledger.checksum import check_outside_terms, seal
from dledger.core.types import ConfigurationPlace, DiskId, Index, NodeId
from dledger.greeting import Identity
from dledger.promises import NOBODY, Start
from dledger.sparing import Sparing
from dledger.wire import raft_pb2 as pb
from store.errors import BeyondRepair, CorruptionFound, GapFound
from store.files import FULL_ERRNOS
from store.gap import Gap, GapFilling
from store.gap_files import GapFiles
from store.snapshot_files import SnapshotFiles
from store.starting.opening import Holed, open_holed

SPACE_S: Final = 1.0  # from finding no space for the journal to trying again

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RefillStatistics:
    """Gaps that are left, and the entries that are missing in the first of them."""

    gaps: int
    missing: str


class Refilling:
    """One start's that found gaps: `open`, `fill`, `close`."""

    def __init__(self, config: NodeConfig, ports: ReplicaPorts, found: GapFound) -> None:
        """Opens the directory, and nothing else yet.

        Raises:
            GapFound: there is nobody to ask.
            StartRefused, StoreError, HardStateCorrupt, OSError: the directory can't be used.
        """
        self._config = config
        self._ports = ports
        self._found = found
        self._left = [*found.holes.gaps]
        self._sparing = Sparing()
        site = site_of(config, ports.files, ports.machinery)
        self._files = GapFiles(ports.files, site.path, site.identity.segment_size_bytes)
        self._holed = open_holed(site, found.holes)
        if not self._holed.members and not all(gap.is_filler for gap in self._left):
            self._holed.directory.close()
            raise found
        self._members = {NodeId(name): address for name, address in self._holed.members}
        self.transport = ports.connect(self._greeting(), self._on_message, _untold)
        links, request = self.transport.links, self.transport.send_request
        self._asking = Asking(links, request)
        received = SnapshotFiles(site.path, ports.files, site.options.reserve_bytes)
        self._pulling = Pulling(request, received, ports.hand)
        self._later = LaterStart(
            Place(
                ports.files,
                site.path,
                NodeId(config.node_id),
                site.identity.segment_size_bytes,
                ports.machinery.state,
                ports.known_level,
            ),
            self._holed,
            found.holes,
            self._files,
            ports.hand,
            links,
            self._pulling,
            self._asking,
        )

    def statistics(self) -> RefillStatistics:
        """A frozen picture, as of now; in any thread."""
        left = tuple(self._left)
        return RefillStatistics(len(left), str(left[0]) if left else "")

    @property
    def holed(self) -> Holed:
        """What is known of the member."""
        return self._holed

    async def fill(self) -> None:
        """The log has no gaps any more; or the next start will find others, as the log begins
        behind some by then, or a sector that can't be read has entries in it that this one has
        passed over.

        Raises:
            BeyondRepair: every peer has said that it can't give what is missing.
            CorruptionFound, OSError: the disk doesn't keep what is written to it.
        """
        found = self._found
        log.error("start_asks_peers", file=found.file, offset=found.offset, missing=found.missing)
        # Of the members' disks it may know the past only, so it holds nobody to one.
        self.transport.know(ConfigurationPlace(), {}, is_known=False, members=self._members)
        self.transport.start()
        while self._left and await self._fill(self._left[0]):
            del self._left[0]

    async def close(self) -> None:
        """Nobody is asked any more, no step of the disk goes on, and the directory is free."""
        with contextlib.closing(self._holed.directory):
            try:
                await self.transport.stop()
            finally:
                # Whoever waits for a step can be cancelled, and the thread that does it goes on:
                # what it writes must not meet who locks the directory next.
                await self._ports.hand.run(_nothing)

    async def _fill(self, gap: Gap) -> bool:
        """Whether it is full; else the next start knows more of it."""
        negative = 0
        try:
            begun = await self._ports.hand.run(partial(self._files.begin, gap))
        except CorruptionFound:
            if await self._ports.hand.run(partial(self._files.unseal, gap)):
                return False
            raise
        if gap.is_filler:
            await self._write(begun, "")
            return True
        while True:
            verdicts = await self._asking.ask_all(begun.anew, gap.behind.index, gap.behind.term)
            if isinstance(verdicts, Given):
                await self._write(verdicts.taken, verdicts.peer)
                return True
            negative = negative + 1 if are_final(verdicts) else 0
            reason = "logs may be compared" if self._later.is_disputed() else await self._begun()
            if not reason:
                return False
            if negative >= NEGATIVE_ROUNDS:
                raise BeyondRepair(self._found.file, f"of {gap}, {told(verdicts)}")
            details = f"{gap}: {told(verdicts)}; a log that begins behind them: {reason}"
            self._wait("nobody has given the entries yet", details)
            await asyncio.sleep(AGAIN_S)

    async def _begun(self) -> str:
        """Why the next start doesn't begin its log behind what is missing; empty: it does."""
        return await self._later.begun(self._left)

    async def _write(self, filled: GapFilling, giver: str) -> None:
        gap = filled.gap
        while True:
            try:
                await self._ports.hand.run(partial(self._files.write, filled))
                break
            except OSError as error:
                if error.errno not in FULL_ERRNOS:
                    raise
                self._wait("no space for the journal", str(error))
            await asyncio.sleep(SPACE_S)
        log.warning(
            "log_repaired",
            file=self._found.file,
            offset=gap.start,
            size_bytes=gap.size,
            first_entry=gap.first_index,
            last_entry=gap.last_index,
            peer=giver,
        )

    def _wait(self, why: str, details: str) -> None:
        if (unreported := self._sparing.due(("start_waits", why))) is not None:
            log.warning("start_waits", reason=why, details=details, unreported=unreported)

    def _greeting(self) -> Identity:
        """Who asks. The last entry that is intact is what the next start will find as its last."""
        config, holed = self._config, self._holed
        start = Start(
            holed.boot_number,
            self._ports.random.getrandbits(64),
            holed.hard_state.term,
            holed.hard_state.vote or NOBODY,
            Index(self._found.holes.last_index),
            is_synced=config.store.flush == "sync",
        )
        return Identity(
            config.broker_group,
            NodeId(config.node_id),
            config.store.segment_size_bytes,
            DiskId(holed.directory.disk.disk_id),
            start,
            self._ports.known_level,
            tells_log_start=False,
        )

    def _on_message(self, peer: NodeId, message: pb.PeerMessage) -> None:
        """Answers are heeded. Who asks for what a member has is told at once that it isn't had
        here: a member in doubt, which asks one peer after the other, would wait for each answer.
        Everything else is said to a member, and this is none yet."""
        match message.WhichOneof("body"):
            case "entries_response":
                check_outside_terms(peer, message)
                self._asking.on_response(peer, message.entries_response)
            case "snapshot_response":
                check_outside_terms(peer, message)
                self._pulling.on_piece(peer, message.snapshot_response)
            case "log_start_response":
                check_outside_terms(peer, message)
                self._pulling.on_log_start(peer, message.log_start_response)
            case "entries_request":
                check_outside_terms(peer, message)
                number, status = message.entries_request.number, pb.ENTRIES_STATUS_NOT_YET
                none_yet = pb.EntriesResponse(number=number, status=status)
                self.transport.send_answer(peer, seal(pb.PeerMessage(entries_response=none_yet)))
            case "digest_request":
                check_outside_terms(peer, message)
                is_settled = message.digest_request.only_looks_again
                if peer in self._members and not is_settled:  # a stranger may be anybody
                    self._later.compared()
                unknown = pb.DigestResponse(number=message.digest_request.number)
                self.transport.send_answer(peer, seal(pb.PeerMessage(digest_response=unknown)))
            case "snapshot_request":
                check_outside_terms(peer, message)
                number, gone = message.snapshot_request.number, pb.SNAPSHOT_STATUS_GONE
                none = pb.SnapshotResponse(number=number, status=gone)
                # It is asked on the stream that this node has dialed, and answered there.
                self.transport.send_request(peer, seal(pb.PeerMessage(snapshot_response=none)))


def _nothing() -> None:
    """The hand does one step after the other: what was begun before is over."""


def _untold(peer: NodeId) -> None:
    """A stream has ended: the links dial again."""
