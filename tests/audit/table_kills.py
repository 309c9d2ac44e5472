"""Kills exports into a table at random moments, a great many of them, and looks what readers see.

    python -m tests.audit.table_kills --format iceberg --kills 60 --seed 1

A run is a fork of this process, in which a timer that nobody catches goes off: the kernel ends it
in the middle of whatever it does, as SIGKILL would, with nothing flushed or closed. This process
never touches a table itself, as the packages' threads don't survive a fork. A run that was killed
is followed by another; after each, a fork reads the table: whole entries of the log from its
beginning, each message once. A table that has everything is followed by a new one.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

from audit.reading.replica import Replica
from audit.tables.export import export_to_table
from dledger.reading.decode import Wanted, read_records
from dledger.reading.ranges import checked_log, log_ranges
from dledger.reading.survey import survey_folder
from tests.audit.replicas import build, usual_entries
from tests.audit.tables import KEY, Lake, keys_of, lake_of, use

ENTRIES = 24
MODULES = {"delta": "deltalake", "iceberg": "pyiceberg.io.pyarrow"}
MOST_RUNS = 50  # Of a table: one that is never done is a failure.


@dataclass
class Seen:
    """What the kills met: `between`: files of rows were written and in no version of the table."""

    runs: int = 0
    kills: int = 0
    between: int = 0
    tables: int = 0
    commits: int = 0


def main() -> None:
    """Prints what it saw as a line of JSON, and so far after each table on standard error; a table
    that isn't right is an error."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--format", choices=["delta", "iceberg"], required=True)
    parser.add_argument("--kills", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        seen = run(Path(folder), chosen.format, chosen.kills, Random(chosen.seed))
    print(_told(seen))


def _told(seen: Seen) -> str:
    return json.dumps({name: getattr(seen, name) for name in Seen.__dataclass_fields__})


def run(folder: Path, kind: str, kills: int, random: Random) -> Seen:
    """At least so many kills."""
    importlib.import_module(MODULES[kind])  # Here, and not in each fork; nothing is started yet.
    build(folder / "n1", usual_entries(ENTRIES))
    wanted = _messages(folder / "n1")
    seen = Seen()
    span_s = 1.0  # About what a whole run takes: learned from those that get through, or don't.
    while seen.kills < kills:
        lake = lake_of(kind, folder / f"lake-{seen.tables}")
        use(lake)
        known = 0
        for _ in range(MOST_RUNS):
            seen.runs += 1
            began = time.monotonic()
            status = _forked(
                lambda lake=lake: _export(lake, folder / "n1"), random.random() * span_s
            )
            was_killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM
            if not was_killed and status:
                sys.exit(f"a run failed: {status}")
            seen.kills += was_killed
            took_s = time.monotonic() - began
            found = _look(lake, folder / "seen.json", wanted)
            if not was_killed:
                span_s = took_s
            elif found["rows"] == known:
                span_s *= 1.5
            known = found["rows"]
            seen.between += was_killed and found["orphans"] > 0
            if found["rows"] == len(wanted):
                seen.commits += found["commits"]
                break
        else:
            sys.exit(f"{MOST_RUNS} runs, and the table isn't whole")
        seen.tables += 1
        print(_told(seen), file=sys.stderr, flush=True)
    return seen


def _export(lake: Lake, replica: Path) -> None:
    """A transaction an entry, so that there are many moments to die in."""
    export_to_table(Replica("n1", str(replica)), lake.table(), (None, False), step_bytes=1)


def _look(lake: Lake, out: Path, wanted: list[tuple[object, ...]]) -> dict[str, int]:
    """What a reader finds; a table that isn't right ends this process."""

    def look() -> None:
        if not _is_made(lake):
            out.write_text(json.dumps({"rows": 0, "commits": 0, "orphans": 0}))
            return
        keys = keys_of(lake.rows())
        if len(set(keys)) != len(keys):
            sys.exit(f"{len(keys) - len(set(keys))} rows stand in the table twice")
        if set(keys) != set(wanted[: len(keys)]):
            sys.exit("the table's rows aren't the beginning of the log")
        named = len(lake.named_files())
        facts = {"commits": lake.commits(), "orphans": lake.data_files() - named}
        out.write_text(json.dumps({"rows": len(keys), **facts}))

    if _forked(look, 0):
        sys.exit("the table isn't right")
    found: dict[str, int] = json.loads(out.read_text())
    return found


def _is_made(lake: Lake) -> bool:
    try:
        lake.raw()
    except Exception as error:
        if "NotFound" in type(error).__name__ or "NoSuch" in type(error).__name__:
            return False
        raise
    return True


def _forked(work: object, killed_after_s: float) -> int:
    """How a fork ended that did the work; it is killed after so long, unless that is 0."""
    assert callable(work)
    sys.stdout.flush()
    if pid := os.fork():
        return os.waitpid(pid, 0)[1]
    try:
        if killed_after_s:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, max(killed_after_s, 0.001))
        work()
        os._exit(0)
    except BaseException as error:  # noqa: BLE001  # The fork ends here, whatever it met.
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)


def _messages(replica: Path) -> list[tuple[object, ...]]:
    """Every message of the log, in its order."""
    log = checked_log(survey_folder("n1", str(replica)))
    return [
        row
        for part in log_ranges(log, 0, log.settled)
        for records in read_records(part, Wanted(tuple(KEY)))
        for row in zip(*(list(_plain(records.columns[name])) for name in KEY), strict=True)
    ]


def _plain(column: object) -> list[object]:
    """The values, as Python has them."""
    import numpy as np

    from dledger.reading.columns import Words

    if isinstance(column, Words):
        return [column.words[code] for code in column.codes.tolist()]
    assert isinstance(column, np.ndarray)
    return list(column.tolist())


if __name__ == "__main__":
    main()
