"""The account of numbered messages: each way in which a promise can be broken shows."""

from __future__ import annotations

import pytest

from dledger_cli.bench.ledger import NUMBER, Audit, Fate, Ledger


def body(number: int) -> bytes:
    return NUMBER.pack(number) + b"padding"


def ledger_of(*fates: Fate) -> Ledger:
    ledger = Ledger()
    for fate in fates:
        ledger.close(ledger.open(), fate)
    return ledger


def test_a_clean_run_is_clean() -> None:
    """Everything acknowledged is there once."""
    ledger = ledger_of(Fate.ACKNOWLEDGED, Fate.ACKNOWLEDGED)
    ledger.find(body(1))
    ledger.find(body(0))
    assert ledger.audit() == Audit(
        sent=2,
        acknowledged=2,
        refused=0,
        unknown=0,
        unknown_but_stored=0,
        lost=0,
        refused_but_stored=0,
        duplicated=0,
        foreign=0,
    )


def test_an_acknowledged_message_that_is_missing_is_lost() -> None:
    """The one thing that must never happen."""
    audit = ledger_of(Fate.ACKNOWLEDGED, Fate.REFUSED, Fate.UNKNOWN).audit()
    assert (audit.lost, audit.acknowledged, audit.refused, audit.unknown) == (1, 1, 1, 1)


def test_a_refused_message_that_is_there_was_a_lie() -> None:
    """*Was not stored* means it: an honest error."""
    ledger = ledger_of(Fate.REFUSED)
    ledger.find(body(0))
    assert ledger.audit().refused_but_stored == 1


@pytest.mark.parametrize("fate", [Fate.UNKNOWN, Fate.PENDING])
def test_an_unknown_message_may_be_there(fate: Fate) -> None:
    """Either is right; a message whose future never spoke is unknown too."""
    ledger = ledger_of(fate, fate)
    ledger.find(body(1))
    audit = ledger.audit()
    assert (audit.unknown, audit.unknown_but_stored, audit.lost) == (2, 1, 0)


def test_copies_beyond_the_first_are_duplicates() -> None:
    """Counted whatever the message's fate, up to what a byte holds."""
    ledger = ledger_of(Fate.ACKNOWLEDGED, Fate.UNKNOWN)
    for _ in range(3):
        ledger.find(body(0))
    for _ in range(300):
        ledger.find(body(1))
    assert ledger.audit().duplicated == 2 + 254


@pytest.mark.parametrize("found", [b"", b"short", body(7)])
def test_bodies_that_nobody_sent_are_foreign(found: bytes) -> None:
    """They are told, and count as nobody's message."""
    ledger = ledger_of(Fate.ACKNOWLEDGED)
    ledger.find(found)
    audit = ledger.audit()
    assert (audit.foreign, audit.lost, audit.duplicated) == (1, 1, 0)
