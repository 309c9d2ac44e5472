"""Carries a formation out: everybody is asked, everybody prepares, and only then anybody commits.

It keeps nothing: whoever repeats it, anywhere, asks again and finishes what was begun.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Protocol

from broker.forming.planning import FORMED, Description, founding_of
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
    members = await _describe_all(calls, addresses)
    descriptions = [description for _, description in members]
    founding = founding_of(descriptions, adopt=adopt)
    first = descriptions[0]
    names = tuple(sorted(each.node_id for each in descriptions))
    if founding is None:
        return Formed(first.broker_group, names, was_before=True)
    # All of them first: a member that has committed may elect and be elected.
    await _all_done([calls.prepare(address, founding) for address, _ in members])
    unformed = [address for address, each in members if each.state != FORMED]
    await _all_done([calls.commit(address, founding.name) for address in unformed])
    return Formed(first.broker_group, names, was_before=False)


async def _all_done(steps: Sequence[Coroutine[object, object, None]]) -> None:
    """All at once, and none is under way afterwards; then the first error, if there was one."""
    for ended in await asyncio.gather(*steps, return_exceptions=True):
        if ended is not None:
            raise ended


async def _describe_all(
    calls: FormingCalls, addresses: Sequence[str]
) -> list[tuple[str, Description]]:
    """Every member with its address, by name; those that weren't given are learned of."""
    first = await asyncio.gather(*(calls.describe(address) for address in addresses))
    asked = {each.node_id for each in first}
    others = sorted({pair for each in first for pair in each.peers if pair[0] not in asked})
    more = await asyncio.gather(*(calls.describe(address) for _, address in others))
    found = [*zip(addresses, first, strict=True)]
    found += [(address, each) for (_, address), each in zip(others, more, strict=True)]
    return sorted(found, key=lambda pair: pair[1].node_id)
