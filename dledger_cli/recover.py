"""`dledger member recover`: a group whose majority is lost for ever goes on from one survivor.

What is checked and written is `broker.last_resort`'s and `store.starting.recovering`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dledger.terminal.options import JsonOption, parse_addresses
from dledger.terminal.outcome import errors_told, new_runner, terminable
from dledger.terminal.output import print_columns, print_json
from dledger.terminal.tls import chosen_material

if TYPE_CHECKING:
    from broker.last_resort import Doubts, Heard
    from store.starting.recovering import Survivor

DataOption = Annotated[
    list[Path],
    typer.Option(
        "--data",
        metavar="DIR",
        help="The survivor's data directory, on which no node runs. Those of other members that "
        "are left follow, each with --data of its own: they are compared.",
    ),
]
LoseOption = Annotated[
    str | None,
    typer.Option(
        "--lose",
        metavar="GROUP",
        help="Do it: everything that only the others have of that broker group is lost.",
    ),
]
AskOption = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        metavar="HOST:PORT,...",
        help="Where members may run, besides where the log says that they are.",
    ),
]


def recover(
    data: DataOption,
    lose: LoseOption = None,
    bootstrap: AskOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give up a majority that is lost for ever, and go on from one survivor. The last resort.

    Shows what is known and what is risked, and writes nothing, unless --lose names the broker
    group. Then this member is the only one, in a new epoch of the group that its log tells of: no
    member that was given up is heard any more. What only those had acknowledged is gone. They must
    never run again on their disks. Start this node, and take others in: dledger member add.

    Several members are left: take the one with the longest log; with --data for each of them the
    first one is refused if another one is longer or holds other entries, or if they are a majority
    together: then nothing is lost.

    Exit codes: 0 done, or can be done; 1 refused or failed; 2 used wrongly; 4 the disk failed.

    \b
    Examples:
      dledger member recover --data /srv/dledger/n3
      dledger member recover --data /srv/n3 --data /srv/n4 --lose orders
    """
    from broker.last_resort import check, doubts, hear, newest_term
    from store.files import OsFiles
    from store.starting.recovering import examine, identity_at, same_up_to

    with errors_told():
        addresses = [] if bootstrap is None else parse_addresses(bootstrap)
        tls = chosen_material()
        files = OsFiles()
        looked = [examine(each, identity_at(each), files) for each in dict.fromkeys(data)]
        survivor, rivals = looked[0], looked[1:]
        if lose not in (None, survivor.broker_group):
            raise typer.BadParameter(
                f"{survivor.path} is of broker group {survivor.broker_group}", param_hint="--lose"
            )
        if survivor.recovery is not None:
            _tell_done(survivor, as_json=as_json)
            return
        with new_runner() as runner:
            heard = runner.run(terminable(hear(survivor, addresses, tls)))
            unsure = runner.run(terminable(doubts(survivor, heard, addresses, tls)))
        if not as_json:
            _tell_found(survivor, rivals, heard, unsure)
        check(survivor, rivals, heard, unsure)
        same = [same_up_to(survivor, each, files) for each in rivals]
        if not as_json:
            _tell_compared(rivals, same)
        if lose is None:
            if as_json:
                print_json({**_facts(survivor, rivals, same, heard), "done": False})
            else:
                _tell_risk(survivor)
            return
        done = _forced(survivor, newest_term(rivals, heard))
    _tell_done(done, as_json=as_json)


def _forced(survivor: Survivor, seen_term: int) -> Survivor:
    """The survivor goes on alone; its directory, as the next start will find it."""
    from store.commitlog import CommitLogOptions
    from store.files import OsFiles
    from store.starting.opening import Site
    from store.starting.recovering import HOLDER, examine, force, identity_at
    from store.worker import InlineWorker

    files, identity = OsFiles(), identity_at(survivor.path)
    options = CommitLogOptions(segment_size_bytes=identity.segment_size_bytes, reserve_bytes=0)
    site = Site(survivor.path, identity, files, options, workers=InlineWorker, holder=HOLDER)
    force(site, survivor, seen_term=seen_term)
    return examine(survivor.path, identity, files)


def _tell_found(
    survivor: Survivor, rivals: Sequence[Survivor], heard: Sequence[Heard], unsure: Doubts
) -> None:
    configuration = survivor.configuration
    typer.echo(
        f"{survivor.path}: {survivor.node_id} of broker group {survivor.broker_group}, epoch "
        f"{configuration.epoch.number}, disk {survivor.disk_id.hex()}"
    )
    typer.echo(
        f"entries {survivor.first_index} to {survivor.last_index}, the last one of term "
        f"{survivor.last_term}, of {_moment(survivor.last_time_ms)}; known to be committed: up to "
        f"{survivor.committed_index}"
    )
    for each in rivals:
        typer.echo(
            f"{each.path}: {each.node_id}, up to entry {each.last_index} of term {each.last_term}"
        )
    states = dict.fromkeys(unsure.unasked, "not asked: its address isn't known")
    states |= dict.fromkeys(unsure.listening, "takes connections, says nothing")
    states |= dict.fromkeys(unsure.late, "answers now, and didn't when asked first")
    states |= dict.fromkeys(unsure.unformed, "runs, unformed: is its disk mounted?")
    states |= {each.node_id: f"runs, {each.role}" for each in heard}
    typer.echo(f"the members, by entry {survivor.configuration_index}:")
    role = "voter" if survivor.is_voter else "voter before"
    rows: list[tuple[object, ...]] = [
        (survivor.node_id, role, survivor.address or "-", "this one", survivor.disk_id.hex())
    ]
    for other in survivor.others:
        role = "voter" if other.is_voter else "learner"
        state = states.get(other.node_id, "no answer")
        rows.append((other.node_id, role, other.address or "-", state, other.disk_id.hex()))
    print_columns(("ID", "ROLE", "ADDRESS", "STATE", "DISK"), rows)
    for address in unsure.elsewhere:
        typer.echo(f"at {address} somebody takes connections, and doesn't say who it is")


def _tell_compared(rivals: Sequence[Survivor], same: Sequence[int | None]) -> None:
    for each, index in zip(rivals, same, strict=True):
        said = (
            "nothing that both hold and know to be committed could be compared"
            if index is None
            else f"the same log up to entry {index}, which both know to be committed"
        )
        typer.echo(f"compared with {each.path}: {said}")


def _tell_risk(survivor: Survivor) -> None:
    names = ", ".join(each.node_id for each in survivor.others)
    unsure = survivor.last_index - survivor.committed_index
    typer.echo("")
    typer.echo(f"If the group goes on from here, {names} are given up:")
    typer.echo(
        f"- what they had acknowledged behind entry {survivor.last_index} is lost, and nobody can "
        "say what it was"
    )
    if not survivor.is_voter:
        typer.echo(
            f"- by entry {survivor.configuration_index} {survivor.node_id} votes no more, and that "
            "isn't known here to be committed: if it was, the others may have gone on without "
            f"{survivor.node_id}, and what they acknowledged since is lost as well"
        )
    if unsure:
        typer.echo(
            f"- the last {unsure} entries here, which may never have been acknowledged, will be "
            "committed"
        )
    typer.echo(
        "- they must never run again on their disks: if they find each other, and clients that "
        "haven't heard of this, they serve them, and that is lost as well"
    )
    typer.echo("Who doesn't answer may be cut off only: make sure that it is lost for ever.")
    typer.echo(f"Is this log sound?  dledger log verify --data {survivor.path}")
    typer.echo("Nothing was written. To do it: the same command with")
    typer.echo(f"  --lose {survivor.broker_group}")


def _tell_done(survivor: Survivor, *, as_json: bool) -> None:
    """What its log says was done, now or by an earlier command."""
    epoch, recovery = survivor.configuration.epoch, survivor.recovery
    if recovery is None:
        raise AssertionError("what was forced is in force")
    if as_json:
        facts = {
            "broker_group": survivor.broker_group,
            "node_id": survivor.node_id,
            "data_directory": str(survivor.path),
            "disk": survivor.disk_id.hex(),
            "epoch": epoch.number,
            "recovery_id": epoch.recoveries[-1].hex(),
            "index": recovery.index,
            "term": recovery.term,
            "time_ms": recovery.time_ms,
            "committed_index_before": recovery.committed_index,
            "given_up": [{"id": node, "disk": disk.hex()} for node, disk in recovery.given_up],
        }
        print_json({**facts, "done": True})
        return
    typer.echo(
        f"{survivor.node_id} is the one member of broker group {survivor.broker_group}, in epoch "
        f"{epoch.number}: entry {recovery.index} of term {recovery.term} says so, of "
        f"{_moment(recovery.time_ms)}"
    )
    for node, disk in recovery.given_up:
        typer.echo(f"never start {node} again on disk {disk.hex()}")
    typer.echo("start this node, and take others in, on empty directories:")
    at = survivor.address or "HOST:PORT"
    typer.echo(f"  dledger member add ID HOST:PORT --bootstrap {at}")


def _facts(
    survivor: Survivor,
    rivals: Sequence[Survivor],
    same: Sequence[int | None],
    heard: Sequence[Heard],
) -> dict[str, object]:
    runs = {each.node_id for each in heard}
    return {
        "broker_group": survivor.broker_group,
        "node_id": survivor.node_id,
        "data_directory": str(survivor.path),
        "disk": survivor.disk_id.hex(),
        "epoch": survivor.configuration.epoch.number,
        "first_index": survivor.first_index,
        "last_index": survivor.last_index,
        "last_term": survivor.last_term,
        "committed_index": survivor.committed_index,
        "configuration_index": survivor.configuration_index,
        "votes": survivor.is_voter,
        "given_up": [
            {
                "id": each.node_id,
                "disk": each.disk_id.hex(),
                "address": each.address,
                "votes": each.is_voter,
                "runs": each.node_id in runs,
            }
            for each in survivor.others
        ],
        "compared": [
            {
                "data_directory": str(each.path),
                "id": each.node_id,
                "last_index": each.last_index,
                "last_term": each.last_term,
                "same_up_to": index,
            }
            for each, index in zip(rivals, same, strict=True)
        ],
    }


def _moment(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(" ", "seconds")
