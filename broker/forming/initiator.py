"""Carries a formation out: everybody is asked, everybody prepares, and only then anybody commits.

It keeps nothing: whoever repeats it, anywhere, asks again and finishes what was begun. Once one
member is formed all were prepared, and the rest follows from that; so a member that is lost in
between holds nobody else up: the others are formed, and it is replaced by them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Protocol

from broker.forming.errors import FormationRefused, MemberUnreachable
from broker.forming.planning import (
    FORMED,
    Description,
    founding_of,
    prepared_beside_formed,
    prepared_beside_joined,
)
from store.starting.founding import Founding


class FormingCalls(Protocol):
    """The members, by address. Each raises MemberUnreachable or FormationRefused."""

    async def describe(self, address: str) -> Description: ...
    async def prepare(self, address: str, founding: Founding) -> None: ...
    async def commit(self, address: str, name: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Formed:
    """A group that is formed. `was_before`: nothing had to be done."""

    broker_group: str
    members: tuple[str, ...]
    was_before: bool


async def form(calls: FormingCalls, addresses: Sequence[str], *, adopt: bool = False) -> Formed:
    """The group of the members at `addresses`, and of those that they name, is formed.

    Raises:
        FormationRefused: it can't be; what was prepared stays prepared.
        MemberUnreachable: somebody didn't answer; asking again goes on where this ended.
    """
    members, silent = await _describe_all(calls, addresses)
    descriptions = [description for _, description in members]
    try:
        if silent is not None:
            raise silent
        founding = founding_of(descriptions, adopt=adopt)
    except (FormationRefused, MemberUnreachable):
        await _commit(calls, members, prepared_beside_formed(descriptions))
        raise
    first = descriptions[0]
    names = tuple(sorted(each.node_id for each in descriptions))
    if founding is None:
        return Formed(first.broker_group, names, was_before=True)
    if late := prepared_beside_joined(descriptions):
        await _commit(calls, members, late)
        return Formed(first.broker_group, names, was_before=False)
    # All of them first: a member that has committed may elect and be elected.
    await _all_done([calls.prepare(address, founding) for address, _ in members])
    unformed = [address for address, each in members if each.state != FORMED]
    await _all_done([calls.commit(address, founding.name) for address in unformed])
    return Formed(first.broker_group, names, was_before=False)


async def _commit(
    calls: FormingCalls,
    members: Sequence[tuple[str, Description]],
    late: Sequence[tuple[Description, str]],
) -> None:
    """Those are formed by the founding that is named beside them."""
    for each, name in late:
        await calls.commit(next(at for at, one in members if one is each), name)


async def _all_done(steps: Sequence[Coroutine[object, object, None]]) -> None:
    """All at once, and none is under way afterwards; then the first error, if there was one."""
    for ended in await asyncio.gather(*steps, return_exceptions=True):
        if ended is not None:
            raise ended


async def _describe_all(
    calls: FormingCalls, addresses: Sequence[str]
) -> tuple[list[tuple[str, Description]], MemberUnreachable | None]:
    """Every member that answers, with its address, by name; those that weren't given are learned
    of. And the first that doesn't answer."""
    found, silent = await _describe_each(calls, addresses)
    asked = {each.node_id for _, each in found}
    others = {pair for _, each in found for pair in each.peers if pair[0] not in asked}
    wanted = sorted({address for _, address in others} - set(addresses))
    more, also_silent = await _describe_each(calls, wanted)
    # Whoever has two names is one member.
    each_once = {(each.node_id, each.disk_id): (at, each) for at, each in (*more, *found)}
    members = sorted(each_once.values(), key=lambda pair: pair[1].node_id)
    return members, silent or also_silent


async def _describe_each(
    calls: FormingCalls, addresses: Sequence[str]
) -> tuple[list[tuple[str, Description]], MemberUnreachable | None]:
    answers = await asyncio.gather(
        *(calls.describe(address) for address in addresses), return_exceptions=True
    )
    found: list[tuple[str, Description]] = []
    silent: MemberUnreachable | None = None
    for address, answer in zip(addresses, answers, strict=True):
        if isinstance(answer, MemberUnreachable):
            silent = silent or answer
        elif isinstance(answer, BaseException):
            raise answer
        else:
            found.append((address, answer))
    return found, silent
