"""Asking running nodes how far they are, before anything of theirs is read.

A node's answer makes its replica: where its data lies, up to where it is committed, and the
digest there. This only asks; it needs no leader and no quorum, so it works on a group that has
lost both. A node that doesn't answer is audited as a copy if its directory is known; if not, it is
a silent replica, and the others are audited without it.

This decides, too, who reads: this process, if the node runs on this machine, and its folder is that
node's disk by its identity (every host may have a folder of that name, and one that a node was
moved from still has its own), else the node itself, over gRPC.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Final

import grpc

from audit.errors import Unreachable, UsageMistake
from audit.reading.membership import Answer, Membership
from audit.reading.replica import Replica, Seat
from dledger.credentials.tls import open_blocking_channel
from dledger.reading.files import is_same_directory, opened, read_at
from dledger.reading.here import is_this_machine
from dledger.reading.survey import Position
from dledger.terminal.tls import chosen_material
from dledger.wire.cluster_pb2 import GetStatusRequest, NodeStatus

TIMEOUT_S: Final = 2.0
MAX_NODES: Final = 64
ROUNDS: Final = 4  # in which members are looked for that others name: who is asked first may be old
_MOST_BYTES: Final = 1 << 20  # of a group's file, or a node's identity
_GET_STATUS: Final = "/dledger.v1.Cluster/GetStatus"
# A channel of its own: a shared one may still be backing off from a node that was down.
_CHANNEL_OPTIONS: Final = (("grpc.use_local_subchannel_pool", 1),)


class Over(StrEnum):
    """How what nodes hold is read."""

    AUTO = "auto"  # files where they lie here, else gRPC
    FILES = "files"
    GRPC = "grpc"


def replicas_of_directory(directory: Path, over: Over = Over.AUTO) -> list[Replica]:
    """The nodes of the local group in `directory`; those that answer with their positions.

    Args:
        over: `GRPC` asks those that answer for their logs; else all are read here.

    Raises:
        UsageMistake: there is no group, or its file is something else.
    """
    file = directory / "group.json"
    try:
        nodes = json.loads(_content(file))["nodes"]
        known = [_named(node) for node in nodes]
    except OSError as error:
        raise UsageMistake(
            f"no local group in {directory} ({error.strerror}): start one with `dledger group up`, "
            "or name the replicas with --replica or --bootstrap"
        ) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageMistake(f"{file} doesn't describe a local group: {error!r}") from error
    if not known:
        raise UsageMistake(f"{file} names no node")
    answers = ask([address for _, address, _ in known])
    return [_of_directory(node, answers.get(node[1]), over) for node in known]


def _of_directory(node: tuple[str, str, str], answer: NodeStatus | None, over: Over) -> Replica:
    """The node of a local group that is in the group's file so. Groups that are made one after the
    other have the same ports: what another one's node says is nothing about this one."""
    node_id, address, data = node
    path = str(Path(data).absolute())
    if answer is not None and not _runs_on(path, node_id, answer):
        told = (
            f"{node_id}: {address} is answered by {answer.node_id} of broker group "
            f"{answer.broker_group}, on {answer.data_directory}: what is in {path} was audited as "
            "a copy"
        )
        return Replica(node_id, path, standing=told)
    return Replica(
        node_id,
        path,
        position=_position(answer),
        address=address if over is Over.GRPC and answer is not None else None,
        standing=_standing(answer),
        seat=_seat(answer),
    )


def _runs_on(path: str, node_id: str, answer: NodeStatus) -> bool:
    """Whether it is that node, on that directory, who answers."""
    return answer.node_id == node_id and is_same_directory(path, answer.data_directory)


def _content(file: Path) -> bytes:
    """The file, which is one and small: a pipe is not waited for, a device not read for ever."""
    with opened(str(file)) as descriptor:
        return read_at(descriptor, _MOST_BYTES, 0)


def _named(node: dict[str, object]) -> tuple[str, str, str]:
    """Id, address and data directory of a node in `group.json`."""
    found = (node["id"], node["address"], node["data_directory"])
    if not all(isinstance(each, str) and each for each in found):
        raise TypeError(f"a node's id, address and folder are words, not {found}")
    return str(found[0]), str(found[1]), str(found[2])


def replicas_of_group(
    addresses: Sequence[str], *, on_hosts: bool, over: Over = Over.AUTO
) -> list[Replica]:
    """The nodes that `addresses` and their answers name, each with its position; a member that
    doesn't answer is silent, and so is who answers beside one under its id (`membership`).

    Args:
        on_hosts: a node's files are read on the host of its address; else they are read here.
        over: `AUTO` asks a node itself if its files aren't here (and `on_hosts` isn't wanted).

    Raises:
        Unreachable: none of them answers.
        UsageMistake: they are of several groups.
    """
    heard = _heard(addresses)
    answers = _answers_of(heard)
    if not answers:
        reasons = (f"{address}: {each}" for address, each in heard.items())
        raise Unreachable(", ".join(addresses), next(reasons, "no answer"))
    group, asked = Membership(answers), set(addresses)
    for _ in range(ROUNDS):
        wanted = [each for each in group.to_ask() if each not in asked]
        group.hear(ask(wanted))
        asked.update(wanted)
    found = [_answered(each, on_hosts=on_hosts, over=over) for each in group.nodes()]
    found += [
        Replica(each.node_id, each.address or each.node_id, silence=each.instead)
        for each in group.absent()
    ]
    found += [_stranger(each) for each in group.strangers()]
    return sorted(found, key=lambda replica: replica.id)


def _answered(node: Answer, *, on_hosts: bool, over: Over) -> Replica:
    address, answer = node.address, node.status
    host = address.rpartition(":")[0].strip("[]") if on_hosts and over is not Over.GRPC else None
    elsewhere = "" if on_hosts or over is Over.GRPC else _elsewhere(address, answer)
    asks = over is Over.GRPC or (over is Over.AUTO and bool(elsewhere))
    asked_at = (answer.admin_address or address) if asks else None
    named = Replica(answer.node_id, answer.data_directory, is_member=node.is_member)
    if asked_at is not None and asked_at != address and (silence := _silence(asked_at, answer)):
        return replace(named, silence=silence)
    known = replace(
        named, position=_position(answer), standing=_standing(answer), seat=_seat(answer)
    )
    if over is Over.FILES and elsewhere:
        # Nothing of it is read, but what it says counts: who leads, and up to where, say.
        return replace(known, silence=f"{elsewhere}; its files are read where they lie (--replica)")
    return replace(known, host=host, address=asked_at)


def _stranger(node: Answer) -> Replica:
    """Nothing is compared with it, and nobody finds that it isn't there."""
    name = f"{node.status.node_id}@{node.address}"
    return Replica(name, node.address, silence=node.stranger, is_member=False)


def _silence(administration: str, told: NodeStatus) -> str:
    """Why the node that named this address can't be asked there; empty if it can.

    An address that leads elsewhere from here would have one replica compared with itself.
    """
    found = _ask(administration)
    if isinstance(found, str):
        return f"{administration}, where {told.node_id} is audited, gives no answer"
    if _itself(found) != _itself(told):
        return (
            f"{administration}, where {told.node_id} is audited, leads to {found.node_id} of "
            f"broker group {found.broker_group} from here"
        )
    return ""


def _itself(answer: NodeStatus) -> tuple[str, str, bytes]:
    return answer.broker_group, answer.node_id, answer.health.disk_id


def _elsewhere(address: str, answer: NodeStatus) -> str:
    """Why the node's folder isn't what lies at its path here, in words; empty if it is."""
    host, folder = address.rpartition(":")[0].strip("[]"), Path(answer.data_directory)
    if not is_this_machine(host):
        return f"{answer.node_id} runs on {host}, and this is another machine"
    try:
        told = json.loads(_content(folder / "identity.json"))
        owner, disk = (str(told["group"]), str(told["node_id"])), str(told.get("disk_id") or "")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return f"{folder}, where {answer.node_id} has its files, holds no node's here"
    if owner != (answer.broker_group, answer.node_id):
        return f"{folder} is that of {owner[1]} of broker group {owner[0]} here"
    known = answer.health.disk_id.hex()
    if disk and known and disk != known:
        return f"{folder} is on disk {disk} here, and {answer.node_id} runs on disk {known}"
    if not os.access(folder / "commitlog", os.R_OK):
        return f"{folder / 'commitlog'} can't be read here"
    return ""


def ask(addresses: Sequence[str]) -> dict[str, NodeStatus]:
    """What each node says of itself, by address; a silent one is left out."""
    return _answers_of(_heard(addresses))


def _answers_of(heard: dict[str, NodeStatus | str]) -> dict[str, NodeStatus]:
    return {at: answer for at, answer in heard.items() if not isinstance(answer, str)}


def _heard(addresses: Sequence[str]) -> dict[str, NodeStatus | str]:
    """What each node says of itself, or why it says nothing, by address."""
    if not addresses:
        return {}
    if len(addresses) > MAX_NODES:
        raise UsageMistake(f"{len(addresses)} addresses; {MAX_NODES} at most")
    with ThreadPoolExecutor(len(addresses)) as pool:
        return dict(zip(addresses, pool.map(_ask, addresses), strict=True))


def _ask(address: str) -> NodeStatus | str:
    """The answer, or why there is none."""
    with open_blocking_channel(address, _CHANNEL_OPTIONS, chosen_material()) as channel:
        get_status = channel.unary_unary(
            _GET_STATUS,
            request_serializer=GetStatusRequest.SerializeToString,
            response_deserializer=NodeStatus.FromString,
        )
        try:
            answer: NodeStatus = get_status(GetStatusRequest(), timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details() or 'no answer'}"
        return answer


def _standing(answer: NodeStatus | None) -> str:
    """Of a node that has taken itself out of service."""
    if answer is None or not answer.HasField("divergence"):
        return ""
    told = answer.divergence
    if told.recoveries:
        return (
            f"{answer.node_id} was given up: the group was recovered by force without it, and is "
            f"in epoch {len(told.recoveries)}. Its log is another epoch's; keep its directory, "
            f"start it on an empty one and `dledger member add {answer.node_id} ADDRESS`"
        )
    where = f"entry {told.differing_index} is the first that differs"
    if not told.differing_index:
        where = f"they part between entries {told.agreed_index} and {told.compared_index}"
    return (
        f"{answer.node_id} is out of service, as its log isn't that of {', '.join(told.peers)}: "
        f"{where}. Keep its directory, start it on an empty one and `dledger group replace "
        f"{answer.node_id}`"
    )


def _position(answer: NodeStatus | None) -> Position | None:
    if answer is None:
        return None
    return Position(
        committed=answer.committed_offset,
        digest=answer.committed_digest,
        index=answer.commit_index,
        first_index=answer.first_index,
    )


def _seat(answer: NodeStatus | None) -> Seat | None:
    if answer is None:
        return None
    members = answer.health.members
    ways = (
        frozenset(each.node_id for each in members if each.votes),
        frozenset(each.node_id for each in members if each.votes_until_left),
    )
    return Seat(answer.term, answer.serving, tuple(each for each in ways if each))
