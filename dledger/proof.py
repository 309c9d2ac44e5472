"""How two nodes show each other that they hold their broker group's secret.

A stream between nodes without TLS is open to everybody who reaches the port and knows three names.
Where a group has a secret, each side proves before the Hello that it holds it, and neither says it:

    dialer                                        acceptor
    opening: group, both ids, nonce d   ─────►    knows the names, or refuses
    checks mac a                        ◄─────    challenge: nonce a, mac a
    closing: mac d                      ─────►    checks mac d; the Hello may come

    mac of a role = HMAC-SHA256(secret, "dledger peer 1", role, group, dialer, acceptor, nonce d,
                    nonce a), each with its length before it

Both nonces are made for this stream alone, so what was overheard on another proves nothing; the
role is part of the mac, so that a challenge sent back is no answer; the names are, so that a proof
for one node is none for another. It protects *joining*: who sits between two nodes and passes their
words on hears and changes everything afterwards. That takes TLS (`dledger.credentials.tls`).

This owns the proof, and no socket.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass
from typing import Final

from dledger.core.types import NodeId
from dledger.credentials.secret import GroupSecret
from dledger.errors import PeerRefused
from dledger.wire.raft_pb2 import PeerMessage, SecretProof

NONCE_BYTES: Final = 16

_CONTEXT: Final = b"dledger peer 1"
_DIALER: Final = b"dialer"
_ACCEPTOR: Final = b"acceptor"


@dataclass(frozen=True, slots=True)
class Parties:
    """Who proves what to whom: the names that both macs are taken of."""

    broker_group: str
    dialer: NodeId
    acceptor: NodeId


class Dialer:
    """The proof of the side that dials: `opening`, then `closing`."""

    def __init__(self, secret: GroupSecret, parties: Parties) -> None:
        self._secret = secret
        self._parties = parties
        self._nonce = secrets.token_bytes(NONCE_BYTES)

    def opening(self) -> PeerMessage:
        """What is said first."""
        names = self._parties
        return PeerMessage(
            secret_proof=SecretProof(
                broker_group=names.broker_group,
                node_id=names.dialer,
                to_node_id=names.acceptor,
                nonce=self._nonce,
            )
        )

    def closing(self, challenge: PeerMessage) -> PeerMessage:
        """What is said last; who is addressed holds the secret.

        Raises:
            PeerRefused: it doesn't, or didn't show it.
        """
        peer = self._parties.acceptor
        said = _proof_in(challenge, f"{peer!r} doesn't show that it holds the group's secret")
        theirs = _mac(self._secret, _ACCEPTOR, self._parties, (self._nonce, said.nonce))
        if len(said.nonce) != NONCE_BYTES or not hmac.compare_digest(theirs, said.mac):
            raise PeerRefused(f"{peer!r} holds another secret than this node")
        ours = _mac(self._secret, _DIALER, self._parties, (self._nonce, said.nonce))
        return PeerMessage(secret_proof=SecretProof(mac=ours))


class Acceptor:
    """The proof of the side that is dialed: `challenge`, then `check`."""

    def __init__(self, secret: GroupSecret, broker_group: str, node: NodeId) -> None:
        self._secret = secret
        self._broker_group = broker_group
        self._node = node
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._expected = b""
        self._dialer = NodeId("")

    def challenge(self, opening: PeerMessage) -> PeerMessage:
        """The answer to the first message of a stream.

        Raises:
            PeerRefused: it isn't the opening of a proof, or one for another node.
        """
        said = _proof_in(opening, f"{self._node!r} asks for the group's secret (secret_file)")
        asked_for = (said.broker_group, said.to_node_id)
        if asked_for != (self._broker_group, self._node):
            raise PeerRefused(
                f"peer {said.node_id!r} addresses node {said.to_node_id!r} of broker group "
                f"{said.broker_group!r}; this is {self._node!r} of {self._broker_group!r}"
            )
        if len(said.nonce) != NONCE_BYTES:
            raise PeerRefused(f"peer {said.node_id!r}: a nonce has {NONCE_BYTES} bytes")
        self._dialer = NodeId(said.node_id)
        parties = Parties(self._broker_group, self._dialer, self._node)
        self._expected = _mac(self._secret, _DIALER, parties, (said.nonce, self._nonce))
        ours = _mac(self._secret, _ACCEPTOR, parties, (said.nonce, self._nonce))
        return PeerMessage(secret_proof=SecretProof(nonce=self._nonce, mac=ours))

    def check(self, closing: PeerMessage) -> NodeId:
        """Who has proved to hold the secret; a Hello in another name is to be refused.

        Raises:
            PeerRefused: it has not.
        """
        said = _proof_in(closing, f"peer {self._dialer!r} broke off its proof")
        if not self._expected or not hmac.compare_digest(self._expected, said.mac):
            raise PeerRefused(f"peer {self._dialer!r} holds another secret than this node")
        self._expected = b""  # One proof, one stream.
        return self._dialer


def _proof_in(message: PeerMessage, otherwise: str) -> SecretProof:
    if not message.HasField("secret_proof"):
        raise PeerRefused(otherwise)
    return message.secret_proof


def _mac(secret: GroupSecret, role: bytes, parties: Parties, nonces: tuple[bytes, bytes]) -> bytes:
    """What the side of that role shows; the dialer's nonce is the first."""
    names = (parties.broker_group, parties.dialer, parties.acceptor)
    return secret.mac(_CONTEXT, role, *(name.encode() for name in names), *nonces)
