"""How a node makes sure of who is at the other end of a stream between peers.

Two means, each enough to keep strangers out, and usable together: TLS, where both sides show a
certificate for their node id (`dledger.credentials.tls`, `dledger.certificate_proof`), and the
group's secret, which both sides prove to hold before the Hello (`dledger.proof`). This owns their
order and what is refused, on both sides of a stream; the greeting and everything behind it are the
links' matter. Without either, everybody who reaches the port and knows the names is believed: the
configuration allows that on loopback, and elsewhere only by name.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import grpc

from dledger.certificate_proof import Question, addressed, answer
from dledger.core.types import NodeId
from dledger.credentials.secret import GroupSecret
from dledger.credentials.tls import TlsSource, open_channel, peer_name, refusal_of
from dledger.errors import PeerRefused, StreamEnded
from dledger.proof import Acceptor, Dialer, Parties
from dledger.wire.raft_pb2 import PeerMessage

Read = Callable[[], Awaitable[object]]
Write = Callable[[PeerMessage], Awaitable[None]]
Shown = Mapping[str, Iterable[bytes]]  # what gRPC knows of a caller: `context.auth_context()`


@dataclass(frozen=True, slots=True)
class At:
    """Who is dialed."""

    broker_group: str
    node: NodeId


@dataclass(frozen=True, slots=True)
class Examined:
    """A caller that may be listened to: who it proved to be (None: there is no secret), and its
    first words behind that."""

    proved: NodeId | None
    first: object


@dataclass(frozen=True, slots=True)
class PeerSecurity:
    """What a node asks of its peers, and shows them.

    Attributes:
        secret: None for a group without one.
        tls: None for streams in the clear.
        checks_names: callers show certificates, and each must be for the node that it says it is.
    """

    secret: GroupSecret | None = None
    tls: TlsSource | None = None
    checks_names: bool = False

    def channel(
        self,
        address: str,
        options: Sequence[tuple[str, object]],
        group: str,
        peer: NodeId,
    ) -> grpc.aio.Channel:
        """To the peer; under TLS one that only that peer can answer on."""
        material = None if self.tls is None else self.tls.material()
        return open_channel(address, options, material, peer_name(group, peer))

    async def prove(self, parties: Parties, read: Read, write: Write) -> str:
        """As the dialer, before anything else is said; the fingerprint of the certificate that the
        other side has shown, empty where none is asked for.

        Raises:
            PeerRefused: the other side isn't the peer, or doesn't hold the secret. StreamEnded.
        """
        fingerprint = ""
        if self.tls is not None and self.checks_names:
            question = Question(self.tls.material(), parties)
            await write(question.opening())
            fingerprint = question.check(_said(await read()))
        if self.secret is not None:
            proof = Dialer(self.secret, parties)
            await write(proof.opening())
            await write(proof.closing(_said(await read())))
        return fingerprint

    async def examine(self, at: At, read: Read, write: Write, shown: Shown) -> Examined:
        """As who is dialed: the peer that has proved to hold the secret, and what it said next.

        Raises:
            PeerRefused: it has not. StreamEnded.
        """
        said = await read()
        if isinstance(said, PeerMessage) and said.HasField("certificate_proof"):
            if self.tls is None or not self.checks_names:
                raise PeerRefused(f"{at.node!r} asks its peers for no certificates")
            dialer = addressed(said, at.broker_group, at.node)
            # Before the answer: who dials as nobody in particular could pass it on to the peer.
            self.check_caller(at.broker_group, dialer, None, shown)
            parties = Parties(at.broker_group, dialer, at.node)
            await write(answer(self.tls.material(), parties, said))
            said = await read()
        if self.secret is None:
            return Examined(None, said)
        proof = Acceptor(self.secret, at.broker_group, at.node)
        await write(proof.challenge(_said(said)))
        return Examined(proof.check(_said(await read())), await read())

    def check_shown(self, peer: NodeId, fingerprint: str) -> None:
        """What who was dialed has shown is believed still.

        Raises:
            PeerRefused: it is revoked.
        """
        if self.tls is not None and fingerprint in self.tls.material().revoked:
            raise PeerRefused(f"{peer!r}: its certificate is revoked (SHA-256 {fingerprint})")

    def check_caller(self, group: str, peer: str, proved: NodeId | None, shown: Shown) -> None:
        """The caller may say Hello as `peer`.

        Raises:
            PeerRefused: it proved to be another, or its certificate isn't for that node.
        """
        if proved is not None and proved != peer:
            raise PeerRefused(f"{proved!r} proved to hold the secret, and says Hello as {peer!r}")
        if self.tls is None or not self.checks_names:
            return
        revoked = self.tls.material().revoked
        if refusal := refusal_of(shown, peer_name(group, peer), revoked):
            raise PeerRefused(f"peer {peer!r}: {refusal}")


OPEN = PeerSecurity()


def _said(message: object) -> PeerMessage:
    if isinstance(message, PeerMessage):
        return message
    if isinstance(message, bytes):
        raise PeerRefused("bytes that are no PeerMessage came instead of a proof")
    raise StreamEnded
