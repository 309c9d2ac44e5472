"""Whom a recovery by force has to hear before it gives anybody up (ADR 52).

The survivor's directory says who the others are; they are asked where the log and the caller say
that they are found, and other directories are compared. What comes of that is decided by one pure
function. Nobody who doesn't answer is known to be lost: that is for the operator to know.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from broker.local_group.status import (
    OUT_OF_SERVICE_ROLE,
    PROBE_TIMEOUT_S,
    REFILLING_ROLE,
    WAITING_ROLES,
    probe,
)
from dledger.addresses import split_address
from dledger.core.quorum import has_quorum
from dledger.core.types import NodeId
from dledger.credentials.tls import TlsMaterial
from dledger.wire.cluster_pb2 import NodeStatus
from store.errors import RecoveryRefused
from store.starting.recovering import Survivor

_SAYS_NOTHING: Final = object()


@dataclass(frozen=True, slots=True)
class Heard:
    """Another member that runs, on the disk by which the survivor knows it. One that refills its
    log says neither its end nor its epoch."""

    node_id: str
    address: str
    role: str
    term: int
    last_term: int
    last_index: int
    epoch: int
    recovery_id: bytes

    @property
    def end(self) -> tuple[int, int]:
        return self.last_term, self.last_index

    @property
    def refills(self) -> bool:
        """Whether its log has gaps, so that nobody knows yet what it holds behind them."""
        return self.role == REFILLING_ROLE


@dataclass(frozen=True, slots=True)
class Doubts:
    """Who may be a member that isn't lost, and doesn't say so.

    Attributes:
        listening: members that say nothing and take connections: certificates that aren't named or
            believed look like this, and so does a process that hangs.
        late: members that answer now, and didn't when they were asked first, as in an election:
            nobody has compared their logs.
        elsewhere: addresses that the caller gave where the same happens. Nobody knows who is there:
            each may be any member.
        unformed: members whose node runs on a directory that was never formed.
        unasked: members of whom neither the log nor the caller says where they may be found.
    """

    listening: tuple[str, ...] = ()
    late: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    unformed: tuple[str, ...] = ()
    unasked: tuple[str, ...] = ()


async def hear(
    survivor: Survivor, addresses: Iterable[str], tls: TlsMaterial | None
) -> tuple[Heard, ...]:
    """The other members that answer, by name.

    Args:
        addresses: where somebody may be found besides where the log says.
    """
    known = [each.address for each in survivor.others if each.address]
    wanted = list(dict.fromkeys((*known, *addresses)))
    answers = await asyncio.gather(*(probe(address, tls=tls) for address in wanted))
    found = {
        answer.node_id: _heard(answer, address)
        for address, answer in zip(wanted, answers, strict=True)
        if answer is not None and _is_member(survivor, answer)
    }
    return tuple(found[name] for name in sorted(found))


async def doubts(
    survivor: Survivor,
    heard: Sequence[Heard],
    addresses: Iterable[str],
    tls: TlsMaterial | None,
) -> Doubts:
    """Who isn't heard and may not be lost: where the log says that others are found, and where the
    caller says that somebody may be, as a member is that has moved since. Who named addresses has
    said where those may be of whom the log says nothing; else nobody has asked them.

    Args:
        addresses: as for `hear`.
    """
    known = {each.node_id: each.address for each in heard}
    silent = {
        each.address: each.node_id
        for each in survivor.others
        if each.address and each.node_id not in known
    }
    named = tuple(addresses)
    wanted = [each for each in dict.fromkeys((*silent, *named)) if each not in known.values()]
    found = await asyncio.gather(*(_found_at(address, tls) for address in wanted))
    takes = [at for at, each in zip(wanted, found, strict=True) if each is _SAYS_NOTHING]
    answers = [each for each in found if isinstance(each, NodeStatus)]
    late = {each.node_id for each in answers if _is_member(survivor, each)} - known.keys()
    waiting = {each.node_id for each in answers if _waits_as_member(survivor, each)}
    return Doubts(
        listening=tuple(silent[at] for at in takes if at in silent),
        late=tuple(sorted(late)),
        elsewhere=tuple(at for at in takes if at not in silent),
        unformed=tuple(sorted(waiting - known.keys())),
        unasked=() if named else _without_address(survivor, known),
    )


def _without_address(survivor: Survivor, known: Collection[str]) -> tuple[str, ...]:
    """Of whom the log doesn't say where they are, and who isn't known to run."""
    return tuple(
        each.node_id for each in survivor.others if not each.address and each.node_id not in known
    )


async def _found_at(address: str, tls: TlsMaterial | None) -> NodeStatus | object | None:
    """The answer of who is there, `_SAYS_NOTHING` from who takes connections only, None if nobody
    does: a closed port is as good as lost."""
    try:
        host, port = split_address(address)
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), port)
    except (OSError, TimeoutError, ValueError):
        return None
    writer.close()
    return await probe(address, tls=tls) or _SAYS_NOTHING


def _waits_as_member(survivor: Survivor, answer: NodeStatus) -> bool:
    """Whether who answers goes by another member's id on a directory that was never formed: that
    member's machine runs, and its disk may only not be mounted."""
    return (
        answer.broker_group == survivor.broker_group
        and answer.role in WAITING_ROLES
        and any(answer.node_id == each.node_id for each in survivor.others)
    )


def _is_member(survivor: Survivor, answer: NodeStatus) -> bool:
    """Whether who answers is one of the others: a machine that was made anew has another disk."""
    disks = {each.node_id: each.disk_id for each in survivor.others}
    return (
        answer.broker_group == survivor.broker_group
        and answer.role not in (*WAITING_ROLES, OUT_OF_SERVICE_ROLE)
        and answer.node_id in disks
        and answer.health.disk_id == disks[answer.node_id]
    )


def _heard(answer: NodeStatus, address: str) -> Heard:
    return Heard(
        answer.node_id,
        address,
        answer.role,
        answer.term,
        answer.last_term,
        answer.last_index,
        answer.epoch.number,
        answer.epoch.recovery_id,
    )


def check(
    survivor: Survivor,
    rivals: Sequence[Survivor],
    heard: Sequence[Heard],
    doubts: Doubts = Doubts(),
) -> None:
    """Returns if, for all that is known, nothing better is left than this survivor.

    Args:
        rivals: other directories that were given.
        doubts: who may not be lost.

    Raises:
        RecoveryRefused: a majority isn't lost, somebody has the longer log, or is of another epoch.
    """
    path = str(survivor.path)
    if survivor.is_alone:
        raise RecoveryRefused(path, f"{survivor.node_id} decides alone: no majority is lost")
    _check_epochs(survivor, rivals, [each for each in heard if not each.refills])
    if doubts.late:
        names = ", ".join(doubts.late)
        raise RecoveryRefused(
            path,
            f"{names} answers now, and didn't a moment ago: its log is still to be compared. Ask "
            "again",
        )
    running = {NodeId(each.node_id) for each in heard}
    if has_quorum(survivor.configuration, running | {NodeId(survivor.node_id)}):
        names = ", ".join(sorted(running))
        raise RecoveryRefused(
            path,
            f"{names} can be reached, and with {survivor.node_id} that is a majority: nothing is "
            "lost for ever. Start this node, and look at `dledger group doctor`",
        )
    _check_directories(survivor, rivals, running)
    _check_refilling(survivor, heard)
    _check_doubts(survivor, running | _on_their_disks(survivor, rivals), doubts)
    ends = [(each.end, f"{each.node_id} in {each.path}") for each in rivals]
    ends += [(each.end, f"{each.node_id} at {each.address}") for each in heard]
    (last_term, last_index), where = max(ends, default=((0, 0), ""))
    if (last_term, last_index) > survivor.end:
        raise RecoveryRefused(
            path,
            f"{where} has the longer log, up to entry {last_index} of term {last_term}; here it is "
            f"entry {survivor.last_index} of term {survivor.last_term}. Recover that one",
        )


def _check_refilling(survivor: Survivor, heard: Sequence[Heard]) -> None:
    """Nobody runs whose log may be the longer one, and who can't say.

    Raises:
        RecoveryRefused: somebody does.
    """
    where = ", ".join(f"{each.node_id} at {each.address}" for each in heard if each.refills)
    if where:
        raise RecoveryRefused(
            str(survivor.path),
            f"{where} runs and refills its log, so nobody knows how far that goes: stop that node, "
            f"`dledger log repair` its directory with --from {survivor.path}, and name it with "
            "--data. If it can't be repaired, leave it stopped: it is given up with the others",
        )


def _check_directories(
    survivor: Survivor, rivals: Sequence[Survivor], running: set[NodeId]
) -> None:
    """The directories that are left, with whoever runs, are no majority of the group.

    Raises:
        RecoveryRefused: they are: their nodes would elect a leader.
    """
    left = _on_their_disks(survivor, rivals)
    if has_quorum(survivor.configuration, {*left, *running, NodeId(survivor.node_id)}):
        names = ", ".join(sorted({*left, *running}))
        raise RecoveryRefused(
            str(survivor.path),
            f"with {names} it is a majority: nothing is lost for ever. Start their nodes on these "
            "directories. Leave out with --data what is no member's disk as it was last, but an "
            "older copy: on that none must be started",
        )


def _on_their_disks(survivor: Survivor, rivals: Sequence[Survivor]) -> set[NodeId]:
    """Whose directory is left, on the disk by which the survivor knows the member."""
    known = survivor.configuration
    return {
        NodeId(each.node_id)
        for each in rivals
        if known.disk_of(NodeId(each.node_id)) == each.disk_id
    }


def _check_doubts(survivor: Survivor, left: set[NodeId], doubts: Doubts) -> None:
    """Those that are left, with all who may not be lost, are no majority.

    Args:
        left: who runs, or whose directory is left.

    Raises:
        RecoveryRefused: they may be one.
    """
    there = left | {NodeId(survivor.node_id)}
    unasked = sorted({NodeId(each) for each in doubts.unasked} - there)
    there |= {NodeId(each) for each in (*doubts.listening, *doubts.unformed, *unasked)}
    away = sorted({NodeId(each.node_id) for each in survivor.others} - there)
    unknown = min(len(away), len(doubts.elsewhere))
    if not any(
        has_quorum(survivor.configuration, there | set(some))
        for some in combinations(away, unknown)
    ):
        return
    reasons: list[str] = []
    silent = [*doubts.elsewhere]
    if doubts.listening:
        silent.insert(0, f"the addresses of {', '.join(doubts.listening)}")
    if silent:
        reasons.append(
            f"somebody takes connections at {', '.join(silent)}, and doesn't say who it is: name "
            "the certificates as for `dledger group status` (--tls-ca and its like), or stop what "
            "runs there"
        )
    if doubts.unformed:
        reasons.append(
            f"{', '.join(doubts.unformed)} runs, unformed: is its disk mounted? If that is lost "
            "for ever, stop the node"
        )
    if unasked:
        reasons.append(
            f"{', '.join(unasked)} wasn't asked, as the log doesn't say where that is: name with "
            "--bootstrap where it may run, and its directory with --data if that is left"
        )
    raise RecoveryRefused(str(survivor.path), "; ".join(reasons))


def _check_epochs(survivor: Survivor, rivals: Sequence[Survivor], heard: Sequence[Heard]) -> None:
    """Nobody knows of a recovery that this survivor doesn't know, or the other way round.

    Raises:
        RecoveryRefused: somebody does.
    """
    path, own = str(survivor.path), survivor.configuration.epoch
    for rival in rivals:
        if rival.broker_group != survivor.broker_group:
            raise RecoveryRefused(path, f"{rival.path} is of broker group {rival.broker_group}")
        if rival.configuration.epoch.recoveries != own.recoveries:
            raise RecoveryRefused(
                path,
                f"{rival.path} is of epoch {rival.configuration.epoch.number} of the group, and "
                f"this one of epoch {own.number}: one of them was given up before",
            )
    last = own.recoveries[-1] if own.recoveries else b""
    for each in heard:
        if (each.epoch, each.recovery_id) != (own.number, last):
            raise RecoveryRefused(
                path,
                f"{each.node_id} at {each.address} is of epoch {each.epoch} of the group, and this "
                f"directory of epoch {own.number}: one of them was given up before",
            )


def newest_term(rivals: Sequence[Survivor], heard: Sequence[Heard]) -> int:
    """The newest term that any of them is seen to know; 0: nobody is seen."""
    return max([*(each.term for each in rivals), *(each.term for each in heard)], default=0)
