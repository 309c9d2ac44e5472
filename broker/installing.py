"""The state that a peer's log begins with, given to who needs it, and got from who offers it.

A member that needs entries which are gone is offered the base of its leader's log (ADR 43). This
pulls it, a piece at a time, judges the whole, and puts it where the next start begins with it; and
it gives pieces to others. Nothing of this member's own is touched before all of it was checked, and
nothing is promised between the last look at whether it is needed and the end of the replica, which
then is opened again: installing is a start's matter (`store.log_start`).

    offered ─▶ pulling ─▶ checked ─▶ this disk's own ─▶ silent, if needed ─▶ intended ─▶ reopened
                  │ gone, another offer, nobody offers any more: begun again with the next offer
                  └ of a level that this program doesn't know: told, and not pulled again (ADR 23)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog
from crc32c import crc32c

from broker.ending import DISK_ERRNOS
from broker.filling import Giving
from broker.pulling import MAX_BYTES, PIECE_BYTES, Hand, NotGiven, Pulling, checked, head_of
from broker.snapshots import REFUSALS, Base, BaseOf, SnapshotKeeper
from broker.state.errors import SnapshotOfLaterLevel
from dledger.checksum import check_outside_terms, seal
from dledger.core.types import MAX_INDEX, LogBase, NodeId, SnapshotOffer
from dledger.errors import InvalidMessage
from dledger.sparing import Sparing
from dledger.wire import raft_pb2 as pb
from store.errors import StoreError
from store.files import PASSING_ERRNOS
from store.log_start import Install
from store.starting.opening import start_of

FETCH_S: Final = 30.0  # for a MiB of a state that nobody offers, from one peer that answers
SILENT_S: Final = 5.0  # since the last offer: then nobody is there to ask
AGAIN_S: Final = 1.0  # from one that was no good to the next
LISTEN_S: Final = 2.0  # from the first offer: who compares logs has asked here by then
LOOK_S: Final = 0.02  # until term and vote are durable

log = structlog.get_logger(__name__)


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
        self._pulling = Pulling(around.ask, base.files, hand)
        self._sparing = Sparing()
        self._on_lost: Callable[[], None] = lambda: None
        self._is_stopped = self._is_fetching = False
        self._of_later_level: tuple[LogBase, str] | None = None  # the last one that was, and why
        self.giving = Giving(lambda: asyncio.get_running_loop().time())

    def when_lost(self, call: Callable[[], None]) -> None:
        """It is called when the state that this log begins with can't be given to a peer."""
        self._on_lost = call

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
        elif is_other:
            self._pulling.give_up()

    @property
    def offering(self) -> NodeId | None:
        """Who offers what this member needs; None: nobody does, or not any more."""
        offer = self._offer
        return offer.sender if offer is not None and self._is_offered(offer) else None

    @property
    def apply_stopped(self) -> str:
        """Why this program can apply nothing of what it is offered; empty: it could, or needs
        nothing."""
        offer = self._offer
        if self._of_later_level is None or offer is None or not self._is_offered(offer):
            return ""
        base, reason = self._of_later_level
        return reason if base == offer.base else ""

    # --- getting ------------------------------------------------------------------------------

    async def fetched(self, base: LogBase) -> Sequence[bytes] | None:
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
                    given_back = max(0, base.end_offset - self._base.log.start.end_offset)
                    await self._pulling.pull(
                        peer, base.index, self._patience_with(peer), given_back
                    )
                    return await self._hand.run(partial(self._checked, base))
                except (NotGiven, *REFUSALS) as error:
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
        is_heard = self._pulling.patience(FETCH_S)
        return lambda: is_heard() and peer in self._around.peers()

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
        if self._of_later_level is not None and self._of_later_level[0] == offer.base:
            return False  # whoever gives it, it is the same
        try:
            self._check_undisputed()
            await self._pull(offer)
            chunks = await self._hand.run(partial(self._checked, offer.base))
            head = head_of(self._base.disk_id, start_of(offer.base))
            if not await self._snapshots.write_base(head, iter(chunks), BaseOf.PEER):
                raise NotGiven("it couldn't be written")
            # Before the log goes: the next start begins with this file or not at all.
            refusal = await self._hand.run(partial(self._base.refusal_of, head))
            if refusal is not None:
                raise NotGiven(f"what was written isn't what is read: {refusal}")
            await self._hand.run(
                self._base.files.drop_received
            )  # nothing comes behind what follows
            await self._begin_anew(offer)
        except NotGiven as reason:
            self._tell(offer, str(reason))
            return False
        except SnapshotOfLaterLevel as error:
            self._stop_at(offer, error)
            return False
        except REFUSALS as error:
            if isinstance(error, OSError) and error.errno in DISK_ERRNOS:
                raise
            self._tell(offer, str(error))
            return False
        finally:
            await self._hand.run(self._base.files.drop_received)
        return True

    def _stop_at(self, offer: SnapshotOffer, error: SnapshotOfLaterLevel) -> None:
        """It is told as a raise in the log is that this program doesn't know."""
        reason = (
            f"the log of {offer.sender} begins behind entry {offer.base.index}, and {error}: "
            "install a newer one"
        )
        self._of_later_level = offer.base, reason
        log.critical(
            "apply_stopped",
            peer=offer.sender,
            index=offer.base.index,
            level=error.level,
            known_level=error.known,
            reason=reason,
        )

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
        await self._pulling.pull(
            offer.sender,
            offer.base.index,
            lambda: self._is_offered(offer),
            self._base.log.statistics().log_bytes,
        )

    def _is_offered(self, offer: SnapshotOffer) -> bool:
        """Whether it still is. Another one's offers don't keep this one alive: who made it may be
        gone, and would be asked for ever."""
        latest, now_s = self._offer, asyncio.get_running_loop().time()
        if latest is None or (latest.sender, latest.base) != (offer.sender, offer.base):
            return False
        return now_s < self._offered_s + SILENT_S

    def _checked(self, base: LogBase) -> Sequence[bytes]:
        own = self._base
        return checked(own.files, start_of(base), own.options, own.known_level)

    async def _begin_anew(self, offer: SnapshotOffer) -> None:
        """The next start begins with what was received, and comes at once; or as soon as no logs
        are compared, as what was pulled would have to be pulled again."""
        while self._around.is_compared():
            if not self._is_offered(offer):
                break
            await asyncio.sleep(LOOK_S)
        await asyncio.sleep(LOOK_S)  # the term that it was offered in becomes durable meanwhile
        if not self._around.needs(offer):
            raise NotGiven("it isn't needed any more")
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
            NotGiven: somebody's is.
        """
        if self._around.is_compared():
            raise NotGiven("members' logs are compared, and it isn't known whose is wrong")

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
                self._pulling.on_piece(peer, message.snapshot_response)
            case "log_start_request":
                check_outside_terms(peer, message)
                self._tell_start(peer, message.log_start_request)
            case _:
                return False
        return True

    def _on_request(self, peer: NodeId, body: pb.SnapshotRequest) -> None:
        if not 1 <= body.index <= MAX_INDEX or body.at >= MAX_BYTES:
            raise InvalidMessage(f"{peer} asks for byte {body.at} of snapshot {body.index}")
        answer = pb.SnapshotResponse(number=body.number, status=pb.SNAPSHOT_STATUS_GONE)
        if body.index == self._base.log.start.index:
            try:
                size, piece = self._base.files.piece(body.index, body.at, PIECE_BYTES)
                if piece:
                    answer.status = pb.SNAPSHOT_STATUS_GIVEN
                    answer.size_bytes, answer.piece = size, piece
                    answer.piece_crc = crc32c(piece)
                    is_last = body.at + len(piece) >= size
                    self.giving.gave(peer, body.index, is_first=not body.at, is_last=is_last)
            except (StoreError, OSError) as error:
                if not self._is_gone(peer, body.index, error):
                    return  # it is asked for again
        self._around.give(peer, seal(pb.PeerMessage(snapshot_response=answer)))

    def _is_gone(self, peer: NodeId, index: int, error: StoreError | OSError) -> bool:
        """Whether the state that this log begins with is lost here, as far as that error tells;
        then it is mended."""
        if (unreported := self._sparing.due("base")) is not None:
            log.warning(
                "base_not_given", peer=peer, index=index, reason=str(error), unreported=unreported
            )
        if isinstance(error, OSError) and error.errno in PASSING_ERRNOS:
            return False
        self._on_lost()
        return True

    def _tell_start(self, peer: NodeId, body: pb.LogStartRequest) -> None:
        """Nothing while logs are compared: who asks has nothing to compare, would begin with this
        one's state, and agree with it whoever is wrong."""
        if self._around.is_compared():
            return
        start = self._base.log.start
        answer = pb.LogStartResponse(number=body.number)
        if start.index:
            answer.log_start = start.encode()
        self._around.give(peer, seal(pb.PeerMessage(log_start_response=answer)))
