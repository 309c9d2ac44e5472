"""How a node that was dialed shows its certificate to the dialer, which gRPC doesn't let it see.

TLS has checked that an authority signed what the server showed, and that its name fits, as
browsers understand names: by patterns, and in any case of letters. Which certificate it was, a
program on the dialing side learns nowhere, so a stolen key whose certificate was revoked could
still answer. So both make a second handshake within the stream, from the same files, before
anything else is said:

    dialer                                              acceptor
    opening: group, both ids, ClientHello     ─────►    the caller's certificate is the dialer's, or
                                                        it is refused
    checks authority, name, revocation        ◄─────    ServerHello … Finished

Nothing is ever sent under the keys of that handshake. It proves that who answers holds the key of a
certificate now believed in; the names are its protocol name (ALPN), which TLS signs with all the
rest, so that an answer to one dialer is none for another. It doesn't bind the stream around it. Who
sits between with a stolen key of the acceptor could pass the question on; but only over a stream of
its own to the acceptor, and that answers nobody who doesn't show the dialer's certificate there.
So this is for nodes whose peers all show theirs (`PeerSecurity.checks_names`).

This owns the second handshake, and no socket.
"""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from dledger.core.types import NodeId
from dledger.credentials.tls import TlsMaterial, peer_name, refusal_of_names
from dledger.errors import PeerRefused
from dledger.proof import Parties
from dledger.wire.raft_pb2 import CertificateProof, PeerMessage

MAX_HANDSHAKE_BYTES: Final = 64 << 10  # a long chain of certificates; a ClientHello is one of 500

_CONTEXT: Final = b"dledger peer certificate 1"


class Question:
    """The side of the dialer: `opening`, then `check`."""

    def __init__(self, material: TlsMaterial, parties: Parties) -> None:
        self._material = material
        self._parties = parties
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        # Contexts are shared, so a protocol name holds for who is made next: no await in between.
        material.checks.set_alpn_protocols([_protocol(parties)])
        self._handshake = material.checks.wrap_bio(self._incoming, self._outgoing)

    def opening(self) -> PeerMessage:
        """What is said first."""
        with _refusing(self._parties.acceptor):
            _step(self._handshake)
        return PeerMessage(
            certificate_proof=CertificateProof(
                broker_group=self._parties.broker_group,
                node_id=self._parties.dialer,
                to_node_id=self._parties.acceptor,
                handshake=self._outgoing.read(),
            )
        )

    def check(self, answered: PeerMessage) -> str:
        """The SHA-256 fingerprint of the certificate whose key the acceptor holds.

        Raises:
            PeerRefused: it holds none that is the peer's and believed.
        """
        peer = self._parties.acceptor
        if not answered.HasField("certificate_proof"):
            raise PeerRefused(f"{peer!r} doesn't show its certificate")
        self._incoming.write(_bounded(answered, peer))
        with _refusing(peer):
            is_through = _step(self._handshake)
        # Short of its end nothing is proved yet: neither the key nor the names.
        if not is_through or self._handshake.selected_alpn_protocol() != _protocol(self._parties):
            raise PeerRefused(f"{peer!r} showed its certificate to another than this node")
        shown = self._handshake.getpeercert(binary_form=True) or b""
        told = self._handshake.getpeercert() or {}
        alternatives: tuple[tuple[str, str], ...] = told.get("subjectAltName", ())  # type: ignore[assignment]
        names = [value for kind, value in alternatives if kind == "DNS"]
        fingerprint = hashlib.sha256(shown).hexdigest()
        expected = peer_name(self._parties.broker_group, peer)
        if refusal := refusal_of_names(names, fingerprint, expected, self._material.revoked):
            raise PeerRefused(f"{peer!r}: {refusal}")
        return fingerprint


def addressed(opening: PeerMessage, broker_group: str, node: NodeId) -> NodeId:
    """Who asks for the certificate of this node.

    Raises:
        PeerRefused: it asks another one.
    """
    said = opening.certificate_proof
    if (said.broker_group, said.to_node_id) != (broker_group, node):
        raise PeerRefused(
            f"peer {said.node_id!r} addresses node {said.to_node_id!r} of broker group "
            f"{said.broker_group!r}; this is {node!r} of {broker_group!r}"
        )
    return NodeId(said.node_id)


def answer(material: TlsMaterial, parties: Parties, opening: PeerMessage) -> PeerMessage:
    """The side of the acceptor, for a caller that has shown the dialer's certificate.

    Raises:
        PeerRefused: what was said is no beginning of a handshake.
    """
    assert material.shows is not None  # a node has a certificate
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    incoming.write(_bounded(opening, parties.dialer))
    material.shows.set_alpn_protocols([_protocol(parties)])
    handshake = material.shows.wrap_bio(incoming, outgoing, server_side=True)
    with _refusing(parties.dialer):
        _step(handshake)  # The dialer's end of it proves nothing that its certificate hasn't.
    if not (side := outgoing.read()):
        raise PeerRefused(f"peer {parties.dialer!r}: a handshake that breaks off")
    return PeerMessage(certificate_proof=CertificateProof(handshake=side))


def _step(handshake: ssl.SSLObject) -> bool:
    """Goes on as far as what was read leads; whether the handshake is through."""
    try:
        handshake.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


@contextmanager
def _refusing(peer: NodeId) -> Iterator[None]:
    """What TLS doesn't take is the peer's refusal."""
    try:
        yield
    except ssl.SSLError as error:
        why = error.verify_message if isinstance(error, ssl.SSLCertVerificationError) else ""
        reason = why or error.reason or str(error)
        raise PeerRefused(f"{peer!r} shows no certificate that is believed: {reason}") from error


def _bounded(message: PeerMessage, peer: NodeId) -> bytes:
    handshake = message.certificate_proof.handshake
    if not 0 < len(handshake) <= MAX_HANDSHAKE_BYTES:
        raise PeerRefused(f"peer {peer!r}: {len(handshake)} bytes are no side of a handshake")
    return handshake


def _protocol(parties: Parties) -> str:
    """A name for these parties alone, of the length that ALPN takes."""
    names = (parties.broker_group, parties.dialer, parties.acceptor)
    parts = (_CONTEXT, *(name.encode() for name in names))
    told = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return hashlib.sha256(told).hexdigest()
