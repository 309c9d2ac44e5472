"""The proof of a group's secret: what succeeds, and everything that must not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.core.types import NodeId
from dledger.credentials.errors import CredentialUnusable
from dledger.credentials.secret import GroupSecret
from dledger.errors import PeerRefused
from dledger.proof import NONCE_BYTES, Acceptor, Dialer, Parties
from dledger.wire.raft_pb2 import PeerMessage, SecretProof

N1, N2, N3 = NodeId("n1"), NodeId("n2"), NodeId("n3")
SECRET, OTHER = GroupSecret(b"s" * 32), GroupSecret(b"o" * 32)
PARTIES = Parties("g", N1, N2)


def test_both_sides_learn_that_the_other_holds_the_secret() -> None:
    dialer, acceptor = Dialer(SECRET, PARTIES), Acceptor(SECRET, "g", N2)
    closing = dialer.closing(acceptor.challenge(dialer.opening()))
    assert acceptor.check(closing) == N1


def test_a_proof_is_good_for_one_stream() -> None:
    """What was said on one stream is refused on the next, and twice on the same."""
    dialer, acceptor = Dialer(SECRET, PARTIES), Acceptor(SECRET, "g", N2)
    opening = dialer.opening()
    closing = dialer.closing(acceptor.challenge(opening))
    acceptor.check(closing)
    with pytest.raises(PeerRefused):
        acceptor.check(closing)
    replayed = Acceptor(SECRET, "g", N2)
    replayed.challenge(opening)
    with pytest.raises(PeerRefused, match="another secret"):
        replayed.check(closing)


def test_who_holds_another_secret_is_refused_by_either_side() -> None:
    dialer, acceptor = Dialer(OTHER, PARTIES), Acceptor(SECRET, "g", N2)
    challenge = acceptor.challenge(dialer.opening())
    with pytest.raises(PeerRefused, match="'n2' holds another secret"):
        dialer.closing(challenge)
    forged = Dialer(OTHER, PARTIES)
    forged.opening()
    with pytest.raises(PeerRefused, match="'n1' holds another secret"):
        acceptor.check(PeerMessage(secret_proof=SecretProof(mac=b"\0" * 32)))


def test_a_challenge_sent_back_is_no_proof() -> None:
    """Who holds no secret has two nodes prove to themselves: the role is part of the mac."""
    acceptor = Acceptor(SECRET, "g", N2)
    nonce = b"n" * NONCE_BYTES
    opening = PeerMessage(
        secret_proof=SecretProof(broker_group="g", node_id=N1, to_node_id=N2, nonce=nonce)
    )
    challenge = acceptor.challenge(opening)
    with pytest.raises(PeerRefused):
        acceptor.check(challenge)


def test_a_proof_for_one_node_is_none_for_another() -> None:
    """A node that was talked to can't use what it heard towards a third one."""
    dialer, middle = Dialer(SECRET, Parties("g", N1, N3)), Acceptor(SECRET, "g", N2)
    with pytest.raises(PeerRefused, match="addresses node 'n3'"):
        middle.challenge(dialer.opening())
    opening = dialer.opening()
    opening.secret_proof.to_node_id = N2
    with pytest.raises(PeerRefused, match="'n3' holds another secret"):
        dialer.closing(middle.challenge(opening))


@pytest.mark.parametrize(
    "said",
    [
        PeerMessage(),
        PeerMessage(secret_proof=SecretProof()),
        PeerMessage(secret_proof=SecretProof(broker_group="g", node_id=N1, to_node_id=N2)),
        PeerMessage(
            secret_proof=SecretProof(broker_group="g", node_id=N1, to_node_id=N2, nonce=b"short")
        ),
    ],
)
def test_an_opening_that_is_none_is_refused(said: PeerMessage) -> None:
    with pytest.raises(PeerRefused):
        Acceptor(SECRET, "g", N2).challenge(said)
    with pytest.raises(PeerRefused):
        Acceptor(SECRET, "g", N2).check(said)


@given(st.binary(max_size=64))
def test_no_guess_is_a_proof(guess: bytes) -> None:
    acceptor = Acceptor(SECRET, "g", N2)
    acceptor.challenge(Dialer(SECRET, PARTIES).opening())
    with pytest.raises(PeerRefused):
        acceptor.check(PeerMessage(secret_proof=SecretProof(mac=guess)))


def test_names_are_told_apart_from_each_other() -> None:
    """`a`+`bc` isn't `ab`+`c`: each part has its length before it."""
    assert SECRET.mac(b"a", b"bc") != SECRET.mac(b"ab", b"c")


def test_the_file_is_private_and_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    made = GroupSecret.create(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert GroupSecret.load(path) == made
    assert path.read_text().strip() not in repr(made)
    with pytest.raises(CredentialUnusable, match="exists"):
        GroupSecret.create(path)
    path.chmod(0o640)
    with pytest.raises(CredentialUnusable, match="chmod 600"):
        GroupSecret.load(path)


@pytest.mark.parametrize("content", [b"", b"xyz", b"00" * 31, b"\xff" * 64, b"0" * (2 << 20)])
def test_a_file_without_a_secret_is_refused_and_not_shown(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "secret"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(CredentialUnusable) as refused:
        GroupSecret.load(path)
    assert len(str(refused.value)) < 300


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path, 0o600)
    with pytest.raises(CredentialUnusable, match="isn't a regular file"):
        GroupSecret.load(path)
