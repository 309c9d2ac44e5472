"""The log file and who rotates it; and an address that is another one than where a node listens."""

from __future__ import annotations

import errno
import logging
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from broker.config import ConfigError, load_config
from broker.logging import Lines, LogFile, configure_logging
from tests.node.members import members, nothing_to_shut
from tests.node.test_replica import on_a_loop

CONFIG = """\
broker_group = "g1"
node_id = "n1"
data_directory = "data"
listen = "0.0.0.0:7001"
insecure = true
{advertise}
[peers]
n1 = "10.0.0.1:7001"
"""


def test_log_file_is_opened_anew_after_a_rotation(tmp_path: Path) -> None:
    """Lines written before are in the old file, later ones in the new one."""
    path = tmp_path / "node.log"
    log = LogFile(path)
    log.write("before\n")
    path.rename(tmp_path / "node.log.1")
    log.write("renamed\n")
    log.reopen()
    log.write("after\n")
    log.close()
    assert (tmp_path / "node.log.1").read_text() == "before\nrenamed\n"
    assert path.read_text() == "after\n"


def test_log_file_that_cannot_be_opened_stays_the_old_one(tmp_path: Path) -> None:
    """A rotation that went wrong must not end the node, nor its log."""
    (tmp_path / "logs").mkdir()
    log = LogFile(tmp_path / "logs" / "node.log")
    (tmp_path / "logs").rename(tmp_path / "old")
    log.reopen()
    log.write("still here\n")
    log.close()
    assert "still here\n" in (tmp_path / "old" / "node.log").read_text()


class FullNowAndThen:
    """A stream on a disk that others fill, too."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.error: Exception | None = None

    def write(self, text: str) -> int:
        if self.error is not None:
            raise self.error
        self.lines.append(text)
        return len(text)

    def flush(self) -> None:
        """Nothing is kept back."""


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "full"), BrokenPipeError(), ValueError("closed")], ids=str
)
def test_lines_that_cannot_be_written_are_counted_and_end_nobody(error: Exception) -> None:
    stream = FullNowAndThen()
    lines = Lines(stream)
    stream.error = error
    with capture_logs() as told:
        for _ in range(3):
            lines.write("lost\n")
        assert not told
        stream.error = None
        lines.write("kept\n")
        lines.write("kept\n")
    assert stream.lines == ["kept\n"] * 2
    assert [(each["event"], each["count"]) for each in told] == [("log_lines_lost", 3)]


def test_line_that_the_disk_took_in_part_does_not_run_into_the_next(
    tmp_path: Path, monkeypatch: Any
) -> None:
    """Whoever reads lines of JSON loses one and no more."""
    path = tmp_path / "node.log"
    log = LogFile(path)
    real = log._stream

    class Full:
        """Takes four bytes, and then none."""

        left = 4

        def write(self, data: memoryview) -> int:
            if not self.left:
                raise OSError(errno.ENOSPC, "full")
            written = real.write(data[: self.left])
            self.left = 0
            return written

    monkeypatch.setattr(log, "_stream", Full())
    with pytest.raises(OSError, match="full"):
        log.write("lost in part\n")
    monkeypatch.setattr(log, "_stream", real)
    log.write("whole\n")
    log.close()
    assert path.read_text() == "lost\nwhole\n"


def test_line_that_a_process_before_left_in_part_does_not_run_into_the_next(
    tmp_path: Path,
) -> None:
    """The disk was full, and the node was started anew; or the file was put back by who rotates."""
    path = tmp_path / "node.log"
    for content in (b"", b"whole\n", b"lost in p"):
        path.write_bytes(content)
        log = LogFile(path)
        log.write("first\n")
        path.write_bytes(content)
        log.reopen()
        log.write("second\n")
        log.close()
        ended = content + b"\n" if content.endswith(b"p") else content
        assert path.read_bytes() == ended + b"second\n"
        path.write_bytes(content)
        log = LogFile(path)
        log.write("first\n")
        log.close()
        assert path.read_bytes() == ended + b"first\n"


@on_a_loop
async def test_node_whose_log_cannot_be_written_lives_and_stops_as_ever(
    tmp_path: Path, monkeypatch: Any
) -> None:
    """Every state of every disk that a node lives with is one in which it has something to say."""
    stream = FullNowAndThen()
    stream.error = OSError(errno.ENOSPC, "full")
    monkeypatch.setattr("sys.stderr", stream)
    before, handlers = structlog.get_config(), logging.getLogger().handlers[:]
    configure_logging("info", "json")
    try:
        async with members(tmp_path, 1) as group:
            leader = await group.leader()
            leader.fail(OSError("the disk"))
            await leader.wait()
            assert not await leader.stop(nothing_to_shut)
            group.replicas.clear()
    finally:
        structlog.configure(**before)
        logging.basicConfig(handlers=handlers, force=True)


def test_node_listens_elsewhere_than_it_is_known(tmp_path: Path) -> None:
    """A container's 0.0.0.0; what is advertised must be the entry in `peers`."""
    path = tmp_path / "node.toml"
    path.write_text(CONFIG.format(advertise='advertise = "10.0.0.1:7001"'))
    config = load_config(path)
    assert (config.listen, config.peers["n1"]) == ("0.0.0.0:7001", "10.0.0.1:7001")
    for wrong, key in (("", "listen"), ('advertise = "10.0.0.9:7001"', "advertise")):
        path.write_text(CONFIG.format(advertise=wrong))
        with pytest.raises(ConfigError, match=f"{key}.*peers.n1"):
            load_config(path)
