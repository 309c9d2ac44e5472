"""`dledger log repair`: a log that has rotted is put right from other replicas, with no node on it.

What is proven and written is `audit.repairing.refilling`'s.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from audit.commands.outcome import errors_told
from audit.errors import UsageMistake
from audit.proof.log import LogSum, OpenedLog, SegmentVerified, open_log, verify_log, weight_of
from audit.proof.soundness import Soundness
from audit.repairing.refilling import LogRepair, Outcome
from audit.repairing.sources import Source, folder_source, node_sources
from audit.showing.log import outcome_lines, sum_facts, sum_lines
from audit.showing.terminal import progress_shown
from dledger.terminal.options import parse_addresses
from dledger.terminal.tls import chosen_material
from store.directory import lock_directory
from store.doubt import DoubtNote
from store.files import FileSystem, OsFiles

DataOption = Annotated[
    Path,
    typer.Option("--data", metavar="DIR", help="A member's data directory, on which no node runs."),
]
FromOption = Annotated[
    list[Path] | None,
    typer.Option("--from", metavar="DIR", help="Another member's. Repeat it for each."),
]
BootstrapOption = Annotated[
    str | None,
    typer.Option("--bootstrap", metavar="HOST:PORT,...", help="Ask the members that run."),
]
DryOption = Annotated[
    bool, typer.Option("--dry-run", help="Say what would be done, and write nothing.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print lines of JSON.")]


def repair(
    data: DataOption,
    folders: FromOption = None,
    bootstrap: BootstrapOption = None,
    dry_run: DryOption = False,
    as_json: JsonOption = False,
) -> None:
    """Put entries of a log that have rotted right, with the bytes that another replica has.

    Bytes are taken if the log itself proves them: its own digests, before and behind them. What
    can't be proven is left as it is, and told. A node that runs repairs itself; this is for one
    that doesn't start. What the node had noted as rotten is noted no more once the log is sound.
    Then start the node, or check with: dledger audit copy.

    Exit codes: 0 sound (now), 1 damaged still, 2 used wrongly or no log there, 3 incomplete.

    \b
    Examples:
      dledger log repair --data /srv/dledger/n2 --bootstrap 10.0.0.1:7001
      dledger log repair --data run/n2/data --from run/n1/data --dry-run
    """
    with errors_told():
        if not folders and bootstrap is None:
            raise UsageMistake("where from? --from another member's directory, or --bootstrap")
        addresses = [] if bootstrap is None else parse_addresses(bootstrap)
        if addresses:
            chosen_material()  # what is wrong with it is told before anything is locked
        with (
            _held(data, dry_run=dry_run) as log,
            node_sources(addresses, log.segment_size) as nodes,
        ):
            sources = [folder_source(each, log.segment_size) for each in folders or ()] + nodes
            _repair(data, log, sources, None if dry_run else OsFiles(), as_json=as_json)


@contextmanager
def _held(data: Path, *, dry_run: bool) -> Iterator[OpenedLog]:
    """The log in the directory, which is this process's meanwhile."""
    log = open_log(data)
    if log.holder is not None:
        raise UsageMistake(f"{data} is held by {log.holder}: a node that runs repairs itself")
    if dry_run:
        yield log
        return
    files = OsFiles()
    lock = lock_directory(files, Path(log.survey.commitlog).parent, "dledger log repair")
    try:
        yield open_log(data, is_ours=True)  # a node may have run in between
    finally:
        files.close(lock)


def _repair(
    data: Path,
    log: OpenedLog,
    sources: list[Source],
    files: FileSystem | None,
    *,
    as_json: bool,
) -> None:
    done: list[Outcome] = []

    def tell(outcome: Outcome) -> None:
        done.append(outcome)
        facts = {"what": "place", **asdict(outcome)}
        for line in (
            [json.dumps(facts)] if as_json else outcome_lines(outcome, is_dry=files is None)
        ):
            sys.stdout.write(line + "\n")
        sys.stdout.flush()

    work = LogRepair(log, sources, files)
    work.finish_interrupted()
    wrong, total = _verified(log)
    for base in wrong:
        work.mend(base, tell)
    if files is not None and any(each.source for each in done):
        log = open_log(data, is_ours=True)
        _, total = _verified(log)
    if files is not None and is_cleared(log, total, files):
        DoubtNote(files, Path(log.survey.commitlog).parent).write(())
    repaired = sum(bool(each.source) for each in done)
    if as_json:
        left = {"repaired": repaired, "left": len(done) - repaired, "dry_run": files is None}
        sys.stdout.write(json.dumps({**sum_facts(log, total), **left}) + "\n")
    else:
        would = "would be " if files is None else ""
        sys.stdout.write(f"{repaired} {would}put right, {len(done) - repaired} left\n")
        for line in sum_lines(log, total):
            sys.stdout.write(line + "\n")
    sys.stdout.flush()
    raise typer.Exit(int(total.verdict.exit_code))


def is_cleared(log: OpenedLog, total: LogSum, files: FileSystem) -> bool:
    """Whether nothing that the node had noted as rotten is so any more: the log was read, and is
    right beyond all of it. Of what lies behind its durable end that isn't known where something is
    wrong there, nor where the note doesn't name all."""
    if total.verdict is not Soundness.SOUND:
        return False
    note = DoubtNote(files, Path(log.survey.commitlog).parent)
    if total.tail is not None and not note.says_all():
        return False
    right_to = log.read_end if total.tail is None else log.end
    return all(int(name) + at < right_to for name, at in note.read())


def _verified(log: OpenedLog) -> tuple[list[int], LogSum]:
    """The segments in which something is wrong that was durable, and what is said of all."""
    wrong: list[int] = []

    def tell(segment: SegmentVerified) -> None:
        if segment.left_out or not all(place.is_tail for place in segment.places):
            wrong.append(segment.base)

    with progress_shown() as started:
        total = verify_log(log, tell=tell, progress=started("log", weight_of(log)))
    return wrong, total
