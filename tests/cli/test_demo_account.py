"""The demo's books: each way in which a run can go wrong shows in the settlement."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import pytest

from chaos.account import FILE_PROPERTY, LINE_PROPERTY, Fate, Received, Sent, Settlement, settle
from chaos.corpus import Corpus, Line, read_corpus, standard_library


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    """Two files; one without a newline at its end, and with one line twice."""
    (tmp_path / "a.py").write_bytes(b"one\ntwo\none\n")
    (tmp_path / "b.py").write_bytes(b"eins\r\nzwei")
    return read_corpus([tmp_path / "a.py", tmp_path / "b.py"])


def sent_lines(lines: Iterable[Line], **fates: Fate) -> Sent:
    """A sender's book; `fates` by file and number (`a1`), all others acknowledged."""
    sent = Sent()
    for line in lines:
        identity = (line.file, line.number)
        sent.on_sent(identity)
        sent.on_settled(identity, fates.get(f"{line.file[0]}{line.number}", Fate.ACKNOWLEDGED))
    return sent


def received_lines(lines: Iterable[Line]) -> Received:
    received = Received()
    for line in lines:
        properties = {FILE_PROPERTY: line.file, LINE_PROPERTY: str(line.number)}
        received.on_message(properties, line.body)
    return received


def flaws(settlement: Settlement) -> dict[str, int]:
    """What isn't 0, of what should be."""
    names = ("failed", "unknown", "lost", "duplicated", "out_of_order", "phantom")
    found = {name: getattr(settlement, name) for name in names}
    return {name: count for name, count in found.items() if count}


def test_lines_are_interleaved_and_each_files_in_order(corpus: Corpus) -> None:
    """A line of each file in turn, with its ending."""
    assert list(corpus.interleaved()) == [
        ("a.py", 0, b"one\n"),
        ("b.py", 0, b"eins\r\n"),
        ("a.py", 1, b"two\n"),
        ("b.py", 1, b"zwei"),
        ("a.py", 2, b"one\n"),
    ]
    assert corpus.line_count == 5


def test_standard_library_is_read_whole() -> None:
    """The lines of each file make up the file."""
    library = standard_library()
    assert len(library.files) > 100
    assert {"os.py", "this.py"} <= {file.name for file in library.files}
    for file in library.files:
        assert hashlib.sha256(b"".join(file.lines)).hexdigest() == file.sha256
    assert library.line_count > 100_000


def test_everything_back_in_order_is_flawless(corpus: Corpus) -> None:
    """The order between files is free, that within a file isn't."""
    lines = list(corpus.interleaved())
    by_file = sorted(lines, key=lambda line: (line.file, line.number))
    settlement = settle(corpus, sent_lines(lines), received_lines(by_file))
    assert flaws(settlement) == {}
    assert (settlement.sent, settlement.acknowledged, settlement.files_identical) == (5, 5, 2)
    assert settlement.flawless


def test_acknowledged_line_that_never_comes_is_lost(corpus: Corpus) -> None:
    """And its file isn't what it was."""
    lines = list(corpus.interleaved())
    settlement = settle(corpus, sent_lines(lines), received_lines(lines[:-1]))
    assert flaws(settlement) == {"lost": 1}
    assert settlement.files_identical == 1
    assert not settlement.flawless


def test_line_that_comes_twice_is_duplicated(corpus: Corpus) -> None:
    """Equal bodies of different lines are no duplicates; one line at two offsets is."""
    lines = list(corpus.interleaved())
    settlement = settle(corpus, sent_lines(lines), received_lines([*lines, lines[4]]))
    assert flaws(settlement) == {"duplicated": 1}
    assert not settlement.flawless


def test_line_after_a_later_one_is_out_of_order(corpus: Corpus) -> None:
    """Nothing is sorted back into its place."""
    a0, b0, a1, b1, a2 = corpus.interleaved()
    settlement = settle(corpus, sent_lines([a0, b0, a1, b1, a2]), received_lines([a1, a0, b0, b1]))
    assert flaws(settlement) == {"lost": 1, "out_of_order": 1}
    assert not settlement.flawless


def test_exchange_of_equal_lines_is_noticed(corpus: Corpus) -> None:
    """The bytes are the same, yet the order isn't: the digest alone would not tell."""
    a0, b0, a1, b1, a2 = corpus.interleaved()
    exchanged = received_lines([a2, b0, a1, b1, a0])
    settlement = settle(corpus, sent_lines([a0, b0, a1, b1, a2]), exchanged)
    assert settlement.files_identical == 2
    assert flaws(settlement) == {"out_of_order": 2}
    assert not settlement.flawless


def test_changed_byte_is_noticed(corpus: Corpus) -> None:
    """Every line came once and in order, and still."""
    a0, b0, a1, b1, a2 = corpus.interleaved()
    received = received_lines([a0, b0, a1._replace(body=b"Two\n"), b1, a2])
    settlement = settle(corpus, sent_lines([a0, b0, a1, b1, a2]), received)
    assert flaws(settlement) == {}
    assert settlement.files_identical == 1
    assert not settlement.flawless


@pytest.mark.parametrize("comes", [True, False])
def test_unknown_line_may_come_or_not(corpus: Corpus, comes: bool) -> None:
    """It is no loss if it doesn't, and no phantom if it does; the file decides."""
    lines = list(corpus.interleaved())
    sent = sent_lines(lines, a2=Fate.UNKNOWN)
    settlement = settle(corpus, sent, received_lines(lines if comes else lines[:-1]))
    assert flaws(settlement) == {"unknown": 1}
    assert settlement.flawless is comes


def test_failed_line_that_comes_is_a_phantom(corpus: Corpus) -> None:
    """The client had said that it certainly wasn't stored."""
    lines = list(corpus.interleaved())
    settlement = settle(corpus, sent_lines(lines, b0=Fate.FAILED), received_lines(lines))
    assert flaws(settlement) == {"failed": 1, "phantom": 1}
    assert not settlement.flawless


def test_line_that_was_never_sent_is_a_phantom(corpus: Corpus) -> None:
    """Somebody else's message in our topic."""
    lines = list(corpus.interleaved())
    settlement = settle(corpus, sent_lines(lines[:4]), received_lines(lines))
    assert flaws(settlement) == {"phantom": 1}


def test_line_without_a_fate_counts_as_unknown(corpus: Corpus) -> None:
    """A run that ended early must not look complete."""
    lines = list(corpus.interleaved())
    sent = sent_lines(lines[:4])
    sent.on_sent(("a.py", 2))
    settlement = settle(corpus, sent, received_lines(lines))
    assert (settlement.sent, settlement.acknowledged, settlement.unknown) == (5, 4, 1)


def test_message_that_names_no_line_is_an_error() -> None:
    """What isn't of this run must not be counted as if it were."""
    with pytest.raises(KeyError):
        Received().on_message({FILE_PROPERTY: "a.py"}, b"")
