"""One table of descriptors for the log, which grows for years, and for connections."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from broker import descriptors
from broker.config import NodeConfig
from broker.descriptors import (
    LEAST,
    MAX_CONNECTIONS,
    MAX_QUEUE_FILES,
    WANTED,
    TooFewDescriptors,
    raised,
    segments_of,
)
from dledger.records.layout import file_name


class Limits:
    """What the system allows; `soft` moves with what is asked for."""

    RLIM_INFINITY = resource.RLIM_INFINITY
    RLIMIT_NOFILE = resource.RLIMIT_NOFILE

    def __init__(self, soft: int, hard: int) -> None:
        self.soft, self.hard = soft, hard

    def getrlimit(self, _: int) -> tuple[int, int]:
        return self.soft, self.hard

    def setrlimit(self, _: int, limits: tuple[int, int]) -> None:
        self.soft, self.hard = limits


def allowed(monkeypatch: pytest.MonkeyPatch, soft: int, hard: int) -> Limits:
    limits = Limits(soft, hard)
    monkeypatch.setattr(descriptors, "resource", limits)
    return limits


def test_limit_of_a_short_log_is_what_it_always_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """More would only cost."""
    limits = allowed(monkeypatch, 1_024, 1 << 20)
    assert (raised(100).limit, limits.soft) == (WANTED, WANTED)


def test_limit_grows_with_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that it may grow to twice as many segments, and clients keep theirs."""
    limits = allowed(monkeypatch, 1_024, 1 << 20)
    made = raised(60_000)
    assert made.limit == limits.soft == 2 * 60_000 + MAX_CONNECTIONS
    assert (made.connections, made.queue_files) == (MAX_CONNECTIONS, MAX_QUEUE_FILES)


def test_log_has_its_descriptors_before_anybody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system allows no more, clients get less, and the log opens."""
    allowed(monkeypatch, 1_024, 1_024)
    made = raised(600)
    assert made.connections == 212
    assert made.segments + made.connections + made.queue_files < made.limit


@pytest.mark.parametrize("segments", [0, 1, 900, 5_000])
def test_log_that_leaves_nothing_is_told_before_it_is_opened(
    monkeypatch: pytest.MonkeyPatch, segments: int
) -> None:
    """With both figures, and what to raise."""
    allowed(monkeypatch, 64, segments + LEAST - 1)
    with pytest.raises(TooFewDescriptors) as caught:
        raised(segments)
    assert (caught.value.limit, caught.value.segments) == (segments + LEAST - 1, segments)
    assert f"may have {segments + LEAST - 1} open files" in str(caught.value)
    assert "LimitNOFILE" in str(caught.value)
    assert not segments or f"its log has {segments} segments" in str(caught.value)
    allowed(monkeypatch, 64, segments + LEAST)
    assert raised(segments).limit == segments + LEAST


def test_segments_are_counted_and_nothing_else(tmp_path: Path) -> None:
    """A directory that isn't there yet has none."""
    config = NodeConfig(
        broker_group="g",
        node_id="n1",
        data_directory=tmp_path,
        listen="127.0.0.1:1",
        peers={"n1": "127.0.0.1:1"},
    )
    assert segments_of(config) == 0
    (tmp_path / "commitlog").mkdir()
    for name in (file_name(0), file_name(1 << 30), f"{file_name(2 << 30)}.tmp", "lost+found"):
        (tmp_path / "commitlog" / name).touch()
    assert segments_of(config) == 2
    for name in ("install", "out-of-service.json"):  # the log goes, or isn't opened
        note = config.data_directory / name
        note.touch()
        assert segments_of(config) == 0
        note.unlink()
