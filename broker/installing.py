"""The state that a peer's log begins with, given to who needs it, and got from who offers it.

A member that needs entries which are gone is offered the base of its leader's log (ADR 43). This
pulls it, a piece at a time, judges the whole, and puts it where the next start begins with it; and
it gives pieces to others. Nothing of this member's own is touched before all of it was checked, and
nothing is promised between the last look at whether it is needed and the end of the replica, which
then is opened again: installing is a start's matter (`store.log_start`).

    offered ─▶ pulling ─▶ checked ─▶ this disk's own ─▶ silent, if needed ─▶ intended ─▶ reopened
                  │ gone, another offer, nobody offers any more: begun again with the next offer
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, TypeVar

import structlog
from crc32c import crc32c

from broker.ending import DISK_ERRNOS
from broker.snapshots import REFUSALS, Base, BaseOf, NoFiles, SnapshotKeeper
from broker.state.errors import SnapshotDamaged
from broker.state.machine import StateMachine
from dledger.checksum import check_outside_terms, seal
from dledger.core.types import MAX_INDEX, LogBase, NodeId, SnapshotOffer
from dledger.errors import InvalidMessage
from dledger.sparing import Sparing
from dledger.wire import raft_pb2 as pb
from store.errors import StoreError
from store.log_start import Install
from store.snapshot_files import SnapshotHead
from store.starting.opening import start_of

PIECE_BYTES: Final = 64 << 10
MAX_BYTES: Final = 1 << 30  # of a snapshot; at the state's bounds it has 16 MB
ASK_S: Final = 1.0
FETCH_S: Final = 30.0  # for all of a state that nobody offers, from one peer
SILENT_S: Final = 5.0  # since the last offer: then nobody is there to ask
AGAIN_S: Final = 1.0  # from one that was no good to the next
LISTEN_S: Final = 2.0  # from the first offer: who compares logs has asked here by then
LOOK_S: Final = 0.02  # until term and vote are durable

T = TypeVar("T")

log = structlog.get_logger(__name__)


class Hand(Protocol):
    """`broker.ports.DiskHand`, as far as it is used here."""

    async def run(self, step: Callable[[], T]) -> T: ...


@dataclass(frozen=True, slots=True)
class Around:
    """What this needs of the replica that it is a part of.

    Attributes:
        ask, give: send a message to a peer, which may get lost. One asks on the stream that the
            offer came on: who is new may not know yet where anybody is.
        needs: whether this member may begin anew with an offer, were it silent from now on.
        peers: who can be asked for the state that its log begins with.
        is_compared: whether members' logs are being compared, this one's or others'.
        fall_silent: this member says, takes and applies nothing any more.
        reopen: the replica is to be closed, and opened again.
        failed: is told of an error that the replica can't get over.
    """

    ask: Callable[[NodeId, pb.PeerMessage], None]
    give: Callable[[NodeId, pb.PeerMessage], None]
    needs: Callable[[SnapshotOffer], bool]
    peers: Callable[[], Collection[NodeId]]
    is_compared: Callable[[], bool]
    fall_silent: Callable[[], None]
    reopen: Callable[[], None]
    failed: Callable[[BaseException], None]


@dataclass(slots=True)
class _Asked:
    """The request that is under way."""

    peer: NodeId
    number: int
    answer: asyncio.Future[pb.SnapshotResponse]


class _OfferGone(Exception):
    """Nothing comes of this offer."""


class Installer:
    """One replica's, from `start` to `stop`.

    Args:
        base: of this member's log; its files are where everything is.
        snapshots: writes what was received as this disk's own.
        install: of the data directory.
    """

    def __init__(
        self,
        base: Base,
        snapshots: SnapshotKeeper,
        install: Install,
        hand: Hand,
        around: Around,
    ) -> None:
        self._base = base
        self._snapshots = snapshots
        self._install = install
        self._hand = hand
        self._around = around
        self._offer: SnapshotOffer | None = None
        self._offered_s = 0.0
        self._task: asyncio.Task[None] | None = None
        self._asked: _Asked | None = None
        self._number = 0
        self._sparing = Sparing()
        self._is_stopped = self._is_fetching = False

    async def stop(self) -> None:
        """Nothing is pulled any more."""
        self._is_stopped = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def offered(self, offer: SnapshotOffer) -> None:
        """This member needs what it is offered; it is told so again and again."""
        if self._is_stopped or self._is_fetching:
            return  # it is offered again
        loop = asyncio.get_running_loop()
        self._offered_s = loop.time()
        is_other = self._offer is None or (self._offer.sender, self._offer.base) != (
            offer.sender,
            offer.base,
        )
        self._offer = offer
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._work(), name="installing")
        elif is_other and self._asked is not None and not self._asked.answer.done():
            self._asked.answer.cancel()

    # --- getting ------------------------------------------------------------------------------

    async def fetched(self, base: LogBase) -> list[bytes] | None:
        """The chunks of the state as of that entry, from the first peer whose log begins behind it;
        None: nobody gives it now. That it is the one of that entry is believed of a member, as when
        it is offered.

        Raises:
            OSError: the disk failed.
        """
        if self._is_fetching or (self._task is not None and not self._task.done()):
            return None
        self._is_fetching = True
        try:
            for peer in sorted(self._around.peers()):
                try:
                    await self._pull_from(peer, base.index, self._patience_with(peer))
                    return await self._hand.run(partial(self._checked, base))
                except (_OfferGone, *REFUSALS) as error:
                    if isinstance(error, OSError) and error.errno in DISK_ERRNOS:
                        raise
                    if (unreported := self._sparing.due(("not given", peer))) is not None:
                        log.info(
                            "base_not_given",
                            peer=peer,
                            index=base.index,
                            reason=str(error),
                            unreported=unreported,
                        )
                finally:
                    await self._hand.run(self._base.files.drop_received)
            return None
        finally:
            self._is_fetching = False

    def _patience_with(self, peer: NodeId) -> Callable[[], bool]:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + FETCH_S
        return lambda: loop.time() < until_s and peer in self._around.peers()

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await asyncio.sleep(LISTEN_S)
            while (offer := self._offer) is not None and loop.time() < self._offered_s + SILENT_S:
                if await self._get(offer):
                    return
                await asyncio.sleep(AGAIN_S)
        except Exception as error:  # noqa: BLE001  nobody else would hear of it
            self._around.failed(error)

    async def _get(self, offer: SnapshotOffer) -> bool:
        """Whether the replica is to be opened again; else why not was told.

        Raises:
            OSError, StorageFailed: the disk failed.
        """
        try:
            self._check_undisputed()
            await self._pull(offer)
            chunks = await self._hand.run(partial(self._checked, offer.base))
            head = _head(self._base.disk_id, offer.base)
            if not await self._snapshots.write_base(head, iter(chunks), BaseOf.PEER):
                raise _OfferGone("it couldn't be written")
            await self._hand.run(
                self._base.files.drop_received
            )  # nothing comes behind what follows
            await self._begin_anew(offer)
        except _OfferGone as reason:
            self._tell(offer, str(reason))
            return False
        except REFUSALS as error:
            if isinstance(error, OSError) and error.errno in DISK_ERRNOS:
                raise
            self._tell(offer, str(error))
            return False
        finally:
            await self._hand.run(self._base.files.drop_received)
        return True

    def _tell(self, offer: SnapshotOffer, reason: str) -> None:
        if (unreported := self._sparing.due(("not installed", offer.sender))) is not None:
            log.warning(
                "snapshot_not_installed",
                peer=offer.sender,
                index=offer.base.index,
                reason=reason,
                unreported=unreported,
            )

    async def _pull(self, offer: SnapshotOffer) -> None:
        """All of the offered file is in `received.tmp`, as it came."""
        log.info("snapshot_wanted", peer=offer.sender, index=offer.base.index)
        await self._pull_from(
            offer.sender,
            offer.base.index,
            lambda: asyncio.get_running_loop().time() < self._offered_s + SILENT_S,
        )

    async def _pull_from(self, peer: NodeId, index: int, is_there: Callable[[], bool]) -> None:
        """The same, as long as `is_there`, of a peer's snapshot as of that entry."""
        at, size = 0, 1
        while at < size:
            answer = await self._exchange(peer, index, at, is_there)
            if answer.status != pb.SNAPSHOT_STATUS_GIVEN:
                raise _OfferGone("it is gone there")
            if at and answer.size_bytes != size:
                raise _OfferGone("its size has changed")
            size = answer.size_bytes
            await self._hand.run(partial(self._base.files.receive, at, answer.piece))
            at += len(answer.piece)

    async def _exchange(
        self, peer: NodeId, index: int, at: int, is_there: Callable[[], bool]
    ) -> pb.SnapshotResponse:
        """One piece, asked for until it comes."""
        loop = asyncio.get_running_loop()
        while is_there():
            self._number += 1
            asked = _Asked(peer, self._number, loop.create_future())
            self._asked = asked
            body = pb.SnapshotRequest(number=asked.number, index=index, at=at)
            self._around.ask(peer, seal(pb.PeerMessage(snapshot_request=body)))
            try:
                async with asyncio.timeout(ASK_S):
                    await asyncio.wait([asked.answer])
                if asked.answer.cancelled():
                    raise _OfferGone("another one is offered")
                return asked.answer.result()
            except TimeoutError:
                pass  # it may have got lost
            finally:
                self._asked = None
        raise _OfferGone("nobody offers it any more")

    def _checked(self, base: LogBase) -> list[bytes]:
        """The chunks of what was received, which are the state as of the base.

        Raises:
            SnapshotRefused, StoreError: they aren't.
        """
        head, chunks = self._base.files.received()
        if head != _head(head.disk_id, base):
            raise SnapshotDamaged("head", f"that of {base}", head)
        options, level = self._base.options, self._base.known_level
        machine = StateMachine.restore(chunks, NoFiles(), options=options, known_level=level)
        if machine.applied_index != base.index:
            raise SnapshotDamaged("state", f"that of entry {base.index}", machine.applied_index)
        return chunks

    async def _begin_anew(self, offer: SnapshotOffer) -> None:
        """The next start begins with what was received, and comes at once."""
        await asyncio.sleep(LOOK_S)  # the term that it was offered in becomes durable meanwhile
        if not self._around.needs(offer):
            raise _OfferGone("it isn't needed any more")
        self._check_undisputed()
        self._around.fall_silent()
        log.info("snapshot_installed", peer=offer.sender, index=offer.base.index)
        try:
            await self._hand.run(partial(self._install.intend, start_of(offer.base)))
        finally:
            self._around.reopen()

    def _check_undisputed(self) -> None:
        """Nobody's log is in question. Else this member's may be what is left of the true one, and
        with the leader's state in its place it would agree with the leader whoever is wrong. What
        ends the wait is what ends the comparison: a verdict, or an operator who replaces one of
        the two.

        Raises:
            _OfferGone: somebody's is.
        """
        if self._around.is_compared():
            raise _OfferGone("members' logs are compared, and it isn't known whose is wrong")

    # --- what peers say -----------------------------------------------------------------------

    def on_message(self, peer: NodeId, message: pb.PeerMessage) -> bool:
        """Whether `message` is about this; then it has been heeded.

        Raises:
            InvalidMessage: no working peer sends it.
        """
        match message.WhichOneof("body"):
            case "snapshot_request":
                check_outside_terms(peer, message)
                self._on_request(peer, message.snapshot_request)
            case "snapshot_response":
                check_outside_terms(peer, message)
                self._on_response(peer, message.snapshot_response)
            case _:
                return False
        return True

    def _on_request(self, peer: NodeId, body: pb.SnapshotRequest) -> None:
        if not 1 <= body.index <= MAX_INDEX or body.at >= MAX_BYTES:
            raise InvalidMessage(f"{peer} asks for byte {body.at} of snapshot {body.index}")
        answer = pb.SnapshotResponse(number=body.number, status=pb.SNAPSHOT_STATUS_GONE)
        if body.index == self._base.log.start.index:
            with contextlib.suppress(StoreError, OSError):
                size, piece = self._base.files.piece(body.index, body.at, PIECE_BYTES)
                if piece:
                    answer.status = pb.SNAPSHOT_STATUS_GIVEN
                    answer.size_bytes, answer.piece = size, piece
                    answer.piece_crc = crc32c(piece)
        self._around.give(peer, seal(pb.PeerMessage(snapshot_response=answer)))

    def _on_response(self, peer: NodeId, body: pb.SnapshotResponse) -> None:
        is_given = body.status == pb.SNAPSHOT_STATUS_GIVEN
        is_fit = 0 < len(body.piece) <= min(PIECE_BYTES, body.size_bytes) if is_given else True
        if not is_fit or is_given != bool(body.piece) or body.size_bytes > MAX_BYTES:
            raise InvalidMessage(f"{peer} gives {len(body.piece)} bytes of a snapshot")
        if crc32c(body.piece) != body.piece_crc:
            raise InvalidMessage(f"{peer} gives a piece that isn't what was sent")
        asked = self._asked
        is_awaited = asked is not None and (asked.peer, asked.number) == (peer, body.number)
        if asked is not None and is_awaited and not asked.answer.done():
            asked.answer.set_result(body)


def _head(disk_id: bytes, base: LogBase) -> SnapshotHead:
    return SnapshotHead(disk_id, base.index, base.term, base.digest, base.end_offset)
