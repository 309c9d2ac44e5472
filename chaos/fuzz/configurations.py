"""Configurations with everything wrong: each is read, or refused by name."""

from __future__ import annotations

import tempfile
from pathlib import Path
from random import Random
from typing import Final

from broker.config import ConfigError, load_config

TRIED: Final = 4
SOUND: Final = b"""broker_group = "g"
node_id = "n1"
data_directory = "data"
listen = "127.0.0.1:7001"
metrics_listen = "127.0.0.1:8001"
[peers]
n1 = "127.0.0.1:7001"
n2 = "127.0.0.1:7002"
[raft]
tick_ms = 10
election_timeout_ms = [150, 300]
[store]
segment_size_bytes = 8388608
flush = "sync"
[broker]
max_message_bytes = 1024
"""
PIECES: Final = (
    *(b"[" * 3_000, b"= ", b'""', b"\0", b"\xff", b"9" * 5_000, b"-1", b"nan", b"1e999", b"[[a]]"),
    *(b"a.b.c = 1\n", b'"\\u0000"', b"2026-01-01", b"{}", b"true", b"'''", b"\r", b"[peers]\n"),
)


def broken_configurations(chance: Random) -> tuple[list[str], int]:
    """What was wrong with the answers to some of them, and how many were tried."""
    wrong: list[str] = []
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        file = Path(folder) / "node.toml"
        for _ in range(TRIED):
            content = bytearray(SOUND)
            for _ in range(chance.randrange(1, 5)):
                at = chance.randrange(len(content) + 1)
                content[at : at + chance.choice((0, 1, 9, 60))] = chance.choice(PIECES)
            file.write_bytes(content)
            try:
                load_config(file)
            except ConfigError as error:
                if "\n" in str(error):
                    wrong.append(f"a configuration is refused in several lines: {content[:200]!r}")
            except Exception as error:  # noqa: BLE001  whatever it is, it is a finding
                wrong.append(f"a configuration: {type(error).__name__}: {error}; {content[:200]!r}")
        extra = [path.name for path in Path(folder).iterdir() if path != file]
        if extra:
            wrong.append(f"reading a configuration made {extra}")
    return wrong, TRIED
