"""The second handshake: whose certificate it is, and everything that must not pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from dledger.certificate_proof import MAX_HANDSHAKE_BYTES, Question, addressed, answer
from dledger.core.types import NodeId
from dledger.credentials.tls import TlsFiles, TlsMaterial, fingerprint, read_material
from dledger.errors import PeerRefused
from dledger.proof import Parties
from dledger.wire.raft_pb2 import CertificateProof, PeerMessage
from tests.certificates import Authority, certs

N1, N2, N3 = NodeId("n1"), NodeId("n2"), NodeId("n3")
PARTIES = Parties("g1", N1, N2)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certs") / "certs")


@pytest.fixture(scope="module")
def n1(authority: Authority) -> TlsMaterial:
    return material(authority.node("n1"))


@pytest.fixture(scope="module")
def n2(authority: Authority) -> TlsMaterial:
    return material(authority.node("n2"))


def material(files: dict[str, str], revoked: Path | None = None) -> TlsMaterial:
    paths = {key: Path(path) for key, path in files.items()}
    return read_material(TlsFiles(**paths, revoked=revoked))


def asked(dialer: TlsMaterial, acceptor: TlsMaterial) -> str:
    """n1 asks for n2's certificate."""
    question = Question(dialer, PARTIES)
    opening = question.opening()
    assert addressed(opening, "g1", N2) == N1
    return question.check(answer(acceptor, PARTIES, opening))


def test_dialer_learns_whose_certificate_it_is(
    authority: Authority, n1: TlsMaterial, n2: TlsMaterial
) -> None:
    pem = (authority.folder / "n2.pem").read_text()
    assert asked(n1, n2) == fingerprint(pem)
    assert asked(n1, n2) == fingerprint(pem)  # contexts serve any number of streams


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("revoked", "its certificate is revoked"),
        ("of another node", "not for n2.g1.dledger"),
        ("of another group", "not for n2.g1.dledger"),
        ("a client's", "no certificate with a name"),
        ("a wildcard's", r"for \*\.g1\.dledger, not for n2"),
        ("in capitals", "for N2.G1.dledger, not for n2"),
        ("expired", "certificate has expired"),
        ("not yet valid", "certificate is not yet valid"),
        ("of another authority", "unable to get local issuer|self-signed certificate"),
    ],
)
def test_certificate_that_is_not_the_peers_is_refused(
    tmp_path: Path, kind: str, reason: str
) -> None:
    """By the dialer, and not as browsers understand names."""
    authority, revoked = Authority(tmp_path / "certs"), tmp_path / "revoked"
    revoked.write_text("")
    match kind:
        case "of another node":
            files = authority.node("n3")
        case "of another group":
            files = authority.node("n2", "g2")
        case "a client's":
            authority.client("c")
            files = authority.files("c")
        case "a wildcard's":
            files = authority.odd_node("n2", names=["*.g1.dledger"])
        case "in capitals":
            files = authority.odd_node("n2", names=["N2.G1.dledger"])
        case "expired":
            files = authority.expired_node("n2")
        case "not yet valid":
            files = authority.odd_node("n2", days=(1, 9))
        case "of another authority":
            files = Authority(tmp_path / "others").node("n2")
        case _:
            files = authority.node("n2")
            revoked.write_text(certs("fingerprint", files["certificate"]))
    dialer = material(authority.node("n1"), revoked)
    with pytest.raises(PeerRefused, match=reason):
        asked(dialer, material(files))


def test_answer_to_one_dialer_is_none_for_another(n1: TlsMaterial, n2: TlsMaterial) -> None:
    """Nor one in the name of another node: the names are signed with the handshake."""
    for parties in (Parties("g1", N3, N2), Parties("g1", N1, N3), Parties("g2", N1, N2)):
        question = Question(n1, PARTIES)
        with pytest.raises(PeerRefused, match="to another than this node"):
            question.check(answer(n2, parties, question.opening()))


def test_recorded_answer_is_worth_nothing(n1: TlsMaterial, n2: TlsMaterial) -> None:
    first, second = Question(n1, PARTIES), Question(n1, PARTIES)
    recorded = answer(n2, PARTIES, first.opening())
    first.check(recorded)
    second.opening()
    with pytest.raises(PeerRefused, match="believed"):
        second.check(recorded)


def test_answer_that_breaks_off_is_no_proof(n1: TlsMaterial, n2: TlsMaterial) -> None:
    """At any byte: before the last one neither the key nor the names are proved."""
    for part in range(1, 20):
        question = Question(n1, PARTIES)
        full = answer(n2, PARTIES, question.opening()).certificate_proof.handshake
        short = full[: -1 if part == 19 else len(full) * part // 20]
        with pytest.raises(PeerRefused):
            question.check(PeerMessage(certificate_proof=CertificateProof(handshake=short)))


@pytest.mark.parametrize("said", [b"", b"x", b"\x16\x03\x01" * 99, bytes(MAX_HANDSHAKE_BYTES + 1)])
def test_nonsense_is_refused_by_either_side(n1: TlsMaterial, n2: TlsMaterial, said: bytes) -> None:
    message = PeerMessage(certificate_proof=CertificateProof(handshake=said))
    question = Question(n1, PARTIES)
    question.opening()
    with pytest.raises(PeerRefused):
        question.check(message)
    with pytest.raises(PeerRefused):
        answer(n2, PARTIES, message)


def test_question_to_another_node_is_refused(n1: TlsMaterial) -> None:
    opening = Question(n1, PARTIES).opening()
    for group, node in (("g1", N3), ("g2", N2)):
        with pytest.raises(PeerRefused, match="addresses node 'n2' of broker group 'g1'"):
            addressed(opening, group, node)
