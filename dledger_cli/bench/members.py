"""`bench members`: what idle members of consumer groups cost a leader, and how soon they are back.

So many members in so many groups, each with a stream of its own, in some client processes. Their
processor time is counted apart. The leader's share of a core is taken before the first of them is
there and while all are, over the same number of seconds. Then the leader is killed, round by round:
the time runs from the signal until the next one has a stream of every member.

What came of it, and on what machine: `docs/performance.md`.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from dataclasses import dataclass, field
from uuid import uuid4

from broker.local_group import LocalGroup, LocalGroupError, LocalNode
from dledger_cli.bench.arena import Arena, connected, fresh_topic
from dledger_cli.bench.crew import Worker, crew
from dledger_cli.bench.figures import Comparison, Figure, Report, Spread, Target
from dledger_cli.bench.node_watch import metrics_of, uses_of
from dledger_cli.bench.rounds import MS, Tell, Yardsticks, in_ms
from dledger_cli.bench.yardsticks import echo_client

SHARE = Target(Comparison.AT_MOST, 10)
BACK = Target(Comparison.AT_MOST, 3_000)
PROMISED = (1_000, 100)  # members, groups
JOIN_S = 600.0
BACK_S = 120.0
POLL_S = 0.05
CALM_S = 1.0  # after all are there, before anything is counted
PERCENT = 100


@dataclass(slots=True)
class Shares:
    """Of a core, in percent, over one stretch."""

    leader: float
    follower: float  # the one that uses most
    members: float = 0.0


@dataclass(slots=True)
class Taken:
    """What the rounds gave."""

    bare: Shares
    idle: list[Shares] = field(default_factory=list)
    joined_s: float = 0.0
    back_s: list[float] = field(default_factory=list)


async def members(
    place: Arena,
    echo_address: str,
    *,
    count: int,
    groups: int,
    processes: int,
    seconds: float,
    rounds: int,
    tell: Tell,
) -> Report:
    """Kills the leader `rounds` times under `count` idle members, and looks for `seconds` each.

    Raises:
        TimeoutError: they don't come, or don't come back.
        LocalGroupError: a node doesn't start again.
    """
    group, prefix = place.local_group(), f"bench-{uuid4().hex[:8]}"
    per_group = -(-count // groups)
    async with (
        connected(place) as client,
        fresh_topic(place, client, min(1_024, per_group)) as topic,
        echo_client(echo_address) as echo,
    ):
        yardsticks = Yardsticks(echo, place.directory, tell)
        tell("nobody is there")
        await asyncio.sleep(CALM_S)
        taken = Taken(await _shares(group, [], seconds))
        parts = [range(count)[each::processes] for each in range(processes)]
        words = [
            (",".join(place.addresses), prefix, topic, groups, sum(map(len, parts[:at])), len(part))
            for at, part in enumerate(parts)
            if part
        ]
        began = time.monotonic()
        async with crew("idle_members", words) as workers:
            tell(f"{count:,} members join")
            async with asyncio.timeout(JOIN_S):
                await asyncio.gather(*(worker.until_it_says(1) for worker in workers))
            taken.joined_s = time.monotonic() - began

            async def one_round() -> None:
                await asyncio.sleep(CALM_S)
                taken.idle.append(await _shares(group, workers, seconds))
                taken.back_s.append(await _failed_over(group, count))

            await yardsticks.around(rounds, one_round)
    facts: dict[str, str | int | float] = {
        "members": count,
        "groups": groups,
        "processes": processes,
        "seconds": seconds,
        "rounds": rounds,
    }
    return _report(facts, taken, yardsticks)


async def _shares(group: LocalGroup, workers: list[Worker], seconds: float) -> Shares:
    leader = (await _leader(group)).id
    before, members_s, began = uses_of(group.nodes), _sum(workers), time.monotonic()
    await asyncio.sleep(seconds)
    passed, after = time.monotonic() - began, uses_of(group.nodes)
    shares = {
        node: PERCENT * (use.cpu_s - before[node].cpu_s) / passed for node, use in after.items()
    }
    others = [share for node, share in shares.items() if node != leader]
    return Shares(
        shares[leader], max(others, default=0.0), PERCENT * (_sum(workers) - members_s) / passed
    )


def _sum(workers: list[Worker]) -> float:
    return sum(worker.cpu_s for worker in workers)


async def _failed_over(group: LocalGroup, count: int) -> float:
    """Seconds from the leader's death until all members are at the next one; the node runs again.

    Raises:
        TimeoutError: they aren't, for too long.
        LocalGroupError: the node doesn't start.
    """
    victim = await _leader(group)
    struck = group.signal(victim.id, signal.SIGKILL)
    others = [node for node in group.nodes if node.id != victim.id]
    async with asyncio.timeout(BACK_S):
        while True:
            attached = await asyncio.gather(*map(_attached, others))
            if max(attached) >= count:
                break
            await asyncio.sleep(POLL_S)
    took = time.monotonic() - struck
    await group.wait_gone(victim.id)
    await group.start(victim.id)
    return took


async def _leader(group: LocalGroup) -> LocalNode:
    """Who leads; waited for, as it may just change on a busy machine.

    Raises:
        TimeoutError: nobody does, for too long.
    """
    async with asyncio.timeout(BACK_S):
        while True:
            with contextlib.suppress(LocalGroupError):
                return await group.resolve("leader")
            await asyncio.sleep(POLL_S)


async def _attached(node: LocalNode) -> float:
    """How many members are on streams there; 0 where nobody answers now."""
    try:
        sample = await asyncio.to_thread(metrics_of, node)
    except OSError:
        return 0.0
    return sample.values["dledger_group_members_attached"]


def _report(facts: dict[str, str | int | float], taken: Taken, yardsticks: Yardsticks) -> Report:
    is_promised = (facts["members"], facts["groups"]) == PROMISED
    shares = [each.leader for each in taken.idle]
    return Report(
        "members",
        facts,
        yardsticks.figures(),
        (
            Figure("leader_without", "% core", Spread.of([taken.bare.leader])),
            Figure(
                "leader",
                "% core",
                Spread.of(shares),
                target=SHARE if is_promised else None,
            ),
            Figure("follower", "% core", Spread.of([each.follower for each in taken.idle])),
            Figure("members", "% core", Spread.of([each.members for each in taken.idle])),
            Figure(
                "leader_a_member",
                "µs/s",
                Spread.of(
                    [
                        (share - taken.bare.leader) * 1e6 / PERCENT / int(facts["members"])
                        for share in shares
                    ]
                ),
            ),
            Figure("all_joined", "ms", Spread.of([taken.joined_s * MS])),
            Figure(
                "kill_to_all_back",
                "ms",
                in_ms(taken.back_s),
                target=BACK if is_promised else None,
            ),
        ),
        ("all_joined: with the start of their processes",),
    )
