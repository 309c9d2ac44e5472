"""Defects in what tells members from strangers: certificates, the group's secret, addresses."""

from __future__ import annotations

from chaos.mutants.mutant import Mutant

_NO_SOCKETS = "the simulator has no sockets, so no strangers"
_PROOF = ("tests/node/test_secret.py",)
_WIRE = ("tests/integration/test_strangers_on_the_wire.py",)

STRANGERS = (
    Mutant(
        "proof-without-the-secret",
        "dledger/proof.py",
        "if not self._expected or not hmac.compare_digest(self._expected, said.mac):",
        "if not self._expected:",
        masked=_NO_SOCKETS,
        tests=_PROOF,
    ),
    Mutant(
        "acceptor-needs-no-secret",
        "dledger/proof.py",
        "if len(said.nonce) != NONCE_BYTES or not hmac.compare_digest(theirs, said.mac):",
        "if len(said.nonce) != NONCE_BYTES:",
        masked=_NO_SOCKETS,
        tests=_PROOF,
    ),
    Mutant(
        "one-role-for-both-sides",
        "dledger/proof.py",
        '_ACCEPTOR: Final = b"acceptor"',
        "_ACCEPTOR: Final = _DIALER",
        masked=_NO_SOCKETS,
        tests=_PROOF,
    ),
    Mutant(
        "proof-without-names",
        "dledger/proof.py",
        "return secret.mac(_CONTEXT, role, *(name.encode() for name in names), *nonces)",
        "return secret.mac(_CONTEXT, role, *nonces)",
        masked=_NO_SOCKETS,
        tests=_PROOF,
    ),
    Mutant(
        "proof-that-can-be-replayed",
        "dledger/proof.py",
        '        self._nonce = secrets.token_bytes(NONCE_BYTES)\n        self._expected = b""',
        '        self._nonce = bytes(NONCE_BYTES)\n        self._expected = b""',
        masked=_NO_SOCKETS,
        tests=_PROOF,
    ),
    Mutant(
        "secret-that-others-may-read",
        "dledger/credentials/secret.py",
        "content = read_credential(path, is_private=True)",
        "content = read_credential(path)",
        masked=_NO_SOCKETS,
        tests=_PROOF,
    ),
    Mutant(
        "local-group-without-its-secret",
        "broker/local_group/layout.py",
        "            secret_file=secret_file,\n",
        "",
        masked=_NO_SOCKETS,
        tests=("tests/cli/test_local_secret.py",),
    ),
    Mutant(
        "administration-told-on-loopback",
        "broker/config.py",
        "if is_loopback(self.admin_listen) and not is_loopback(known_as):",
        "if not self.admin_listen:",
        masked=_NO_SOCKETS,
        tests=("tests/test_config.py",),
    ),
    Mutant(
        "audit-believes-any-address-it-is-told",
        "audit/reading/live.py",
        "if (found.broker_group, found.node_id) != (told.broker_group, told.node_id):",
        "if found.broker_group != told.broker_group:",
        masked=_NO_SOCKETS,
        tests=("tests/audit/test_remote.py",),
    ),
    Mutant(
        "hello-in-another-name-than-the-proof",
        "dledger/peer_security.py",
        "if proved is not None and proved != peer:",
        "if proved is not None and not peer:",
        masked=_NO_SOCKETS,
        tests=_WIRE,
    ),
    Mutant(
        "any-certificate-is-any-node",
        "dledger/credentials/tls.py",
        "if expected_name not in shown:",
        "if not shown:",
        masked=_NO_SOCKETS,
        tests=_WIRE,
    ),
    Mutant(
        "revoked-certificate-believed",
        "dledger/credentials/tls.py",
        "if (found := fingerprint_of(auth)) is None or found in revoked:",
        "if (found := fingerprint_of(auth)) is None:",
        masked=_NO_SOCKETS,
        tests=_WIRE,
    ),
    Mutant(
        "open-stream-outlives-its-certificate",
        "dledger/transport.py",
        "        if self._security.checks_names:\n",
        "        if not self._security.checks_names:\n",
        masked=_NO_SOCKETS,
        tests=_WIRE,
    ),
    Mutant(
        "peer-streams-at-the-clients-address",
        "broker/node.py",
        "            main &= ~purpose\n",
        "",
        masked=_NO_SOCKETS,
        tests=_WIRE,
    ),
    Mutant(
        "beyond-loopback-in-the-clear",
        "broker/config.py",
        "if not self.insecure and not is_loopback(address):",
        "if self.insecure and not is_loopback(address):",
        masked=_NO_SOCKETS,
        tests=("tests/test_config.py",),
    ),
)
