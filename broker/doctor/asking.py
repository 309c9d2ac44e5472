"""Asking every member of a group how it is: twice, so that what only passes isn't called a fault.

Members that nobody named are learned from those that answer. A node that is silent costs a second
a look, all of them together; no leader is needed. At most `LOOKS` looks are made.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import grpc

from broker.doctor.facts import GroupFacts, MemberFacts, Silence, apart, member_facts
from broker.local_group.status import ask
from dledger.credentials.tls import TlsMaterial
from dledger.wire.cluster_pb2 import NodeStatus

PAUSE_S: Final = 1.0  # from one look to the next: an election is over within it, as a rule
LOOKS: Final = 4
MAX_ADDRESSES: Final = 64  # more than a group can have; what is learned must not go on for ever

Look = tuple[tuple[MemberFacts, ...], tuple[Silence, ...]]


async def ask_group(
    addresses: Sequence[str], tls: TlsMaterial | None, names: Mapping[str, str] | None = None
) -> GroupFacts:
    """What the members say, looked at twice, and again while nobody serves, a few times.

    Args:
        names: whose addresses these are, for members of which nobody else says it.
    """
    members, silent = await _look(addresses, tls)
    committed = max((each.commit_index for each in members), default=0)
    apart_before = apart(members)
    fsyncs = tuple((each.id, each.health.last_fsync_ms) for each in members if each.health)
    for number in range(1, LOOKS):
        await asyncio.sleep(PAUSE_S)
        known = list(dict.fromkeys([*addresses, *(each.address for each in members)]))
        members, silent = await _look(known, tls)
        if number == LOOKS - 1 or any(each.is_serving for each in members) or not members:
            break
    told = _each_once(silent, names or {})
    return GroupFacts(members, told, committed, int(time.time() * 1000), fsyncs, apart_before)


def _each_once(silent: Sequence[Silence], names: Mapping[str, str]) -> tuple[Silence, ...]:
    """Those who are silent, each at one address. An address that nobody knows is told only where
    every member is accounted for: else it may be one more of a member that is silent."""
    known: dict[str, Silence] = {}
    unknown = []
    for each in silent:
        who = each.id or names.get(each.address, "")
        if who:
            known.setdefault(who, replace(each, id=who))
        else:
            unknown.append(each)
    return tuple(known.values()) if known else tuple(unknown)


async def _look(addresses: Sequence[str], tls: TlsMaterial | None) -> Look:
    """Everybody that can be found from `addresses` was asked once, at one address each."""
    answers: dict[str, NodeStatus | str] = {}
    wanted = list(dict.fromkeys(addresses))
    while wanted:
        given = await asyncio.gather(*(_ask(each, tls) for each in wanted))
        answers.update(zip(wanted, given, strict=True))
        found = [each for each in answers.values() if isinstance(each, NodeStatus)]
        heard = {each.node_id for each in found}
        named = {peer.address for each in found for peer in each.peers if peer.node_id not in heard}
        named.discard("")  # nobody has said where that member is
        wanted = sorted(named - answers.keys())[: max(MAX_ADDRESSES - len(answers), 0)]
    return _sorted(answers)


def _sorted(answers: dict[str, NodeStatus | str]) -> Look:
    members = {
        answer.node_id: member_facts(address, answer)
        for address, answer in answers.items()
        if isinstance(answer, NodeStatus)
    }
    names = {peer.address: peer.id for member in members.values() for peer in member.peers}
    silent = [
        Silence(names.get(address, ""), address, answer)
        for address, answer in answers.items()
        # Somebody who answered elsewhere isn't silent: administration has addresses of its own.
        if isinstance(answer, str) and names.get(address, "") not in members
    ]
    return (
        tuple(sorted(members.values(), key=lambda each: each.id)),
        tuple(sorted(silent, key=lambda each: (each.id, each.address))),
    )


async def _ask(address: str, tls: TlsMaterial | None) -> NodeStatus | str:
    """The answer, or why there is none."""
    try:
        return await ask(address, tls=tls)
    except grpc.aio.AioRpcError as error:
        return _words(error)


def _words(error: grpc.aio.AioRpcError) -> str:
    """In a line: what libraries say can be pages."""
    details = " ".join((error.details() or "").split())
    name = error.code().name.lower().replace("_", " ")
    return f"{name}: {details[:120]}" if details else name
