"""`dledger group backup` and `restore`: a group's log out of a group, and into a new one."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dledger.terminal.figures import human_bytes
from dledger.terminal.options import JsonOption
from dledger.terminal.outcome import ExitCode, complain, end, errors_told
from dledger.terminal.output import print_json
from dledger.terminal.tls import chosen_material
from dledger_cli.group_options import (
    DEFAULT_DIRECTORY,
    BootstrapOption,
    DirectoryOption,
    bootstrap_addresses,
)

if TYPE_CHECKING:
    from audit.backing.taking import Taken
    from dledger.reading.backup import Backup


def backup(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Where it is kept; made if it isn't there.")
    ],
    directory: DirectoryOption = DEFAULT_DIRECTORY,
    bootstrap: BootstrapOption = None,
    node: Annotated[
        str | None, typer.Option("--node", help="Whose copy.", show_default="a follower's")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Copy a running group's log, as of one entry, and verify the copy.

    Once more into the same folder, it copies what came since. Whatever interrupts it, the folder
    still is the backup that it was.

    Exit codes: 0 done, 1 failed, 2 used wrongly, 3 members gave no answer, or nobody leads: what
    only they, or the last leader, knew to be committed may be missing.

    \b
    Examples:
      dledger group backup /backup/orders --bootstrap 10.0.0.1:7001
      dledger group backup /backup/orders --node n3 --json
    """
    from audit.backing.taking import take_backup
    from audit.commands.outcome import errors_told as audit_errors_told
    from audit.showing.terminal import progress_shown

    with errors_told():
        addresses = bootstrap_addresses(bootstrap, directory)
        chosen_material()  # what is wrong with it is told before anything is made
    with audit_errors_told(), progress_shown() as started:
        taken = take_backup(folder, addresses, node, started)
    if as_json:
        mended = [asdict(each) for each in taken.mended]
        facts = {"copied_bytes": taken.copied_bytes, "mended": mended, "silent": taken.silent}
        facts |= {"leader": taken.leader, "remarks": taken.remarks}
        print_json({**_facts(taken.backup), **facts})
    else:
        _tell_taken(folder, taken)
    for remark in taken.remarks:
        complain(remark)
    if taken.silent:
        names = ", ".join(taken.silent)
        complain(f"no answer from {names}: what only they knew to be committed may be missing")
    if not taken.leader:
        complain("nobody leads: what only the last leader knew to be committed may be missing")
    if taken.silent or not taken.leader:
        end(ExitCode.INCOMPLETE)


def _tell_taken(folder: Path, taken: Taken) -> None:
    done = taken.backup
    typer.echo(
        f"{folder}: broker group {done.broker_group}, entries {done.first_index} to "
        f"{done.last_index}, verified"
    )
    typer.echo(f"copied now: {human_bytes(taken.copied_bytes)}, from {done.node_id}")
    for place in taken.mended:
        typer.echo(
            f"{place.size} bytes at {place.offset} of {place.file} had rotted at {done.node_id} "
            f"and are {place.source}'s"
        )


def restore(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A backup.")],
    config: Annotated[
        Path, typer.Option("--config", metavar="FILE", help="Of the new group's first node.")
    ],
    through: Annotated[
        int | None,
        typer.Option("--through", min=1, metavar="INDEX", help="The last entry that is wanted."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a new group of one member from a backup.

    The data directory that the configuration names must never have been used. Then start the node,
    and take others in: dledger member add.

    \b
    Examples:
      dledger group restore /backup/orders --config /etc/dledger/n1.toml
      dledger group restore /backup/orders --config n1.toml --through 120000
    """
    from audit.showing.terminal import progress_shown
    from broker.config import load_config
    from broker.recovery import REAL_MACHINERY, site_of
    from store.backup import read_backup
    from store.files import OsFiles
    from store.starting.restoring import KEPT_FILES
    from store.starting.restoring import restore as make_directory_of

    with errors_told():
        found = load_config(config)
        files = OsFiles()
        site = site_of(found, files, REAL_MACHINERY)
        address = found.peers.get(found.node_id, found.listen)
        held = read_backup(KEPT_FILES, folder) if folder.is_dir() else None
        with progress_shown() as started:
            progress = started("restore", held.end_offset if held else 0)
            done = make_directory_of(folder, site, address, through, progress, kept=KEPT_FILES)
    if as_json:
        new = {"broker_group": found.broker_group, "node_id": found.node_id}
        place = {"data_directory": str(found.data_directory), "disk": done.disk_id.hex()}
        facts = {**new, **place, "last_index": done.last_index, "term": done.term}
        facts["epoch"] = done.epoch.number
        print_json({**facts, "backup": _facts(done.backup)})
        return
    taken = datetime.fromtimestamp(done.backup.taken_ms / 1000, UTC).isoformat(" ", "seconds")
    typer.echo(
        f"{found.data_directory}: {found.node_id} is the one member of broker group "
        f"{found.broker_group}, with entries {done.backup.first_index} to {done.last_index} of "
        f"{done.backup.broker_group} (backup of {taken})"
    )
    typer.echo(
        f"epoch:          {done.epoch.number} of the group; sessions of consumer groups are over, "
        "and the members of before must not go on under the same name"
    )
    typer.echo("clients:        stop those of the group of before, and start them anew")
    typer.echo(f"start it:       dledger node --config {config}")
    typer.echo("take others in: dledger member add ID HOST:PORT --bootstrap " + address)


def _facts(backup: Backup) -> dict[str, object]:
    return {**asdict(backup), "last_digest": f"{backup.last_digest:016x}"}
