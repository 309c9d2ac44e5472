"""Asking every member of a group how it is: twice, so that what only passes isn't called a fault.

Members that nobody named are learned from those that answer and are of the group that is asked for:
that of most who answer at the addresses given. A node that is silent costs a second a look, all of
them together; no leader is needed. At most `LOOKS` looks are made. In which order addresses are
given, and answers come, must change nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import grpc

from broker.doctor.facts import (
    GroupFacts,
    MemberFacts,
    Silence,
    apart,
    committed_by,
    each_node_once,
    group_of,
    member_facts,
)
from broker.local_group.status import ask, why_silent
from dledger.credentials.tls import TlsMaterial

PAUSE_S: Final = 1.0  # from one look to the next: an election is over within it, as a rule
LOOKS: Final = 4
MAX_ADDRESSES: Final = 64  # more than a group can have; what is learned must not go on for ever

Answers = dict[str, MemberFacts | str]  # by address; why there is none
Look = tuple[str, tuple[MemberFacts, ...], tuple[Silence, ...]]  # the group, and who is in it


async def ask_group(
    addresses: Sequence[str], tls: TlsMaterial | None, names: Mapping[str, str] | None = None
) -> GroupFacts:
    """What the members say, looked at twice, and again while nobody serves, a few times.

    Args:
        names: whose addresses these are, for members of which nobody else says it.
    """
    group, members, silent = await _look(addresses, tls)
    first = members
    led: list[MemberFacts] = []
    for number in range(1, LOOKS):
        led += [each for each in members if each.role == "leader"]
        await asyncio.sleep(PAUSE_S)
        known = [each.address for each in members if each.address not in addresses]
        group, members, silent = await _look(addresses, tls, known)
        serving = [each for each in members if each.is_serving and each.group == group]
        if number == LOOKS - 1 or serving or not members:
            break
    before = [each for each in first if each.group == group]
    contradictions = tuple(
        (each.node, each.health.contradictions) for each in before if each.health
    )
    fsyncs = tuple((each.id, each.health.last_fsync_ms) for each in before if each.health)
    return GroupFacts(
        members,
        _each_once(silent, names or {}),
        committed_by(before, group),
        int(time.time() * 1000),
        fsyncs,
        apart(before),
        tuple(led),
        group,
        contradictions,
    )


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


async def _look(
    addresses: Sequence[str], tls: TlsMaterial | None, known: Sequence[str] = ()
) -> Look:
    """Everybody that can be found from `addresses` was asked, once at each address; so were
    `known`."""
    answers: Answers = {}
    group = ""
    wanted = list(dict.fromkeys([*addresses, *known]))
    while wanted:
        given = await asyncio.gather(*(_ask(each, tls) for each in wanted))
        answers.update(zip(wanted, given, strict=True))
        asked = _answering({at: answers[at] for at in addresses})
        group = group or group_of(asked or _answering(answers))
        own = [each for each in _answering(answers) if each.group == group]
        # Where a member answered already, too: at that address it may have been a copy of it.
        named = {peer.address for each in own for peer in each.peers}
        named.discard("")  # nobody has said where that member is
        wanted = sorted(named - answers.keys())[: max(MAX_ADDRESSES - len(answers), 0)]
    return group, *_sorted(answers, group)


def _answering(answers: Answers) -> list[MemberFacts]:
    return [each for each in answers.values() if isinstance(each, MemberFacts)]


def _sorted(answers: Answers, group: str) -> tuple[tuple[MemberFacts, ...], tuple[Silence, ...]]:
    """Each node that answered, and each address that is silent. Who isn't of the group neither
    speaks for a member of it nor knows where they are."""
    members = each_node_once(_answering(answers))
    own = [each for each in members if each.group == group]
    heard = {each.id for each in own}
    names = {peer.address: peer.id for each in own for peer in each.peers}
    silent = [
        Silence(names.get(address, ""), address, answer)
        for address, answer in answers.items()
        # Somebody who answered elsewhere isn't silent: administration has addresses of its own.
        if isinstance(answer, str) and names.get(address) not in heard
    ]
    return members, tuple(sorted(silent, key=lambda each: (each.id, each.address)))


async def _ask(address: str, tls: TlsMaterial | None) -> MemberFacts | str:
    """The answer, or why there is none."""
    try:
        return member_facts(address, await ask(address, tls=tls))
    except grpc.aio.AioRpcError as error:
        return why_silent(error)
