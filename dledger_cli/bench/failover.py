"""`bench failover`: how long a group is silent when its leader dies or hangs, under full load.

For each fault: the load runs at full strength, the leader gets its signal, the clock runs from
just before the signal to the first acknowledgement that another node stamped, as the client sees
it. Then the load is turned down, the node is started again (or continued), and the next fault
waits until every node has caught up. At the end the whole topic is read back and held against
what each message's future had said: a benchmark that loses messages measures nothing.

What came of it, and on what machine: `docs/performance.md`.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from dataclasses import dataclass

from broker.local_group import GroupStatus, LocalGroup
from dledger.addresses import split_address
from dledger.client import Client, StartFrom
from dledger.records.message_id import encode_host
from dledger.terminal.figures import percentile
from dledger_cli.bench.arena import Arena, connected, fresh_topic
from dledger_cli.bench.figures import Comparison, Figure, Report, Spread, Target
from dledger_cli.bench.ledger import Audit
from dledger_cli.bench.load import NumberedLoad
from dledger_cli.bench.rounds import MS, Tell, Yardsticks, in_ms
from dledger_cli.bench.yardsticks import echo_client

SETTLE_S = 1.0  # of full load before each fault
CALM_IN_FLIGHT = 16  # while a node is down; the log of a long run should fit a small disk
OUTAGE_TIMEOUT_S = 30.0
WHOLE_TIMEOUT_S = 60.0
POLL_S = 0.05
READ_TIMEOUT_S = 30.0  # without a message, though not all have been read

MEDIAN_TARGETS_MS = {signal.SIGKILL: 250.0, signal.SIGSTOP: 600.0}
P99_TARGETS_MS = {signal.SIGKILL: 1000.0}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault and what came of it."""

    silent_s: float  # from the signal to the first acknowledgement by the next leader
    whole_s: float  # from that acknowledgement until every node had caught up
    terms: int  # how far the term moved on


async def failover(
    place: Arena,
    echo_address: str,
    *,
    kills: int,
    number: signal.Signals,
    size_bytes: int,
    in_flight: int,
    tell: Tell,
) -> Report:
    """Strikes the leader `kills` times with `number` (SIGKILL or SIGSTOP)."""
    group = place.local_group()
    faults: list[Fault] = []
    async with (
        connected(place) as client,
        fresh_topic(place, client) as topic,
        client.producer() as producer,
        echo_client(echo_address) as echo,
    ):
        yardsticks = Yardsticks(echo, place.directory, tell)
        await yardsticks.sample()
        load = NumberedLoad(producer, topic, size_bytes=size_bytes, limit=in_flight)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(load.run(), name="load")
            for strike in range(1, kills + 1):
                faults.append(await _strike(group, load, number, in_flight))
                tell(f"fault {strike} of {kills}: silent {faults[-1].silent_s * MS:.0f} ms")
            load.stop()
        await yardsticks.sample()
        tell("reading everything back")
        await _read_back(client, topic, load)
    return _report(number, faults, load, yardsticks, size_bytes, in_flight)


async def _strike(
    group: LocalGroup, load: NumberedLoad, number: signal.Signals, in_flight: int
) -> Fault:
    """One fault, from a whole group to a whole group.

    Raises:
        TimeoutError: the group did not recover in time.
        LocalGroupError: the node could not be struck, or not be started again.
    """
    load.turn(in_flight)
    await asyncio.sleep(SETTLE_S)
    before = await group.status()
    leader = await group.resolve("leader")
    acknowledged = load.acknowledgement_from_other_than(store_host_of(leader.address))
    struck = group.signal(leader.id, number)
    async with asyncio.timeout(OUTAGE_TIMEOUT_S):
        silent_s = await acknowledged - struck
    load.turn(CALM_IN_FLIGHT)
    recovered = time.monotonic()
    if number is signal.SIGSTOP:
        group.signal(leader.id, signal.SIGCONT)
    else:
        await group.wait_gone(leader.id)
        await group.start(leader.id)
    after = await _whole(group)
    terms = (after.term or 0) - (before.term or 0)
    return Fault(silent_s, time.monotonic() - recovered, terms)


async def _whole(group: LocalGroup) -> GroupStatus:
    """Waits until every node has applied what the leader had committed at the first look.

    Raises:
        TimeoutError: one of them does not get there.
    """
    wanted: int | None = None
    async with asyncio.timeout(WHOLE_TIMEOUT_S):
        while True:
            status = await group.status()
            if status.serves_fully:
                applied = [node.applied_index or 0 for node in status.nodes]
                wanted = max(applied) if wanted is None else wanted
                if min(applied) >= wanted:
                    return status
            await asyncio.sleep(POLL_S)


async def _read_back(client: Client, topic: str, load: NumberedLoad) -> None:
    """Shows the ledger every message of the topic."""
    described = await client.describe_topic(topic)
    left = sum(queue.max_offset - queue.min_offset for queue in described.queues)
    consumer = client.pull_consumer(topic, start=StartFrom.FIRST, idle_timeout_s=READ_TIMEOUT_S)
    async with consumer:
        async for batch in consumer.batches():
            for message in batch:
                load.ledger.find(message.body)
            left -= len(batch)
            if left <= 0:
                break


def store_host_of(address: str) -> bytes:
    """What a leader at that address stamps into records: the first half of message ids."""
    host, port = split_address(address)
    return encode_host((socket.gethostbyname(host), port))


def _report(
    number: signal.Signals,
    faults: list[Fault],
    load: NumberedLoad,
    yardsticks: Yardsticks,
    size_bytes: int,
    in_flight: int,
) -> Report:
    silent = sorted(fault.silent_s for fault in faults)
    p99 = Spread.of([percentile(silent, 0.99) * MS])
    figures = (
        Figure(
            "signal_to_next_ack",
            "ms",
            in_ms([fault.silent_s for fault in faults]),
            target=_at_most(MEDIAN_TARGETS_MS.get(number)),
        ),
        Figure("signal_to_next_ack_p99", "ms", p99, target=_at_most(P99_TARGETS_MS.get(number))),
        Figure("caught_up_after", "ms", in_ms([fault.whole_s for fault in faults])),
        Figure("terms_per_fault", "terms", Spread.of([float(fault.terms) for fault in faults])),
        *audit_figures(load.ledger.audit()),
    )
    return Report(
        "failover",
        {
            "faults": len(faults),
            "signal": number.name,
            "size_bytes": size_bytes,
            "in_flight": in_flight,
        },
        yardsticks.figures(),
        figures,
        tuple(f"{count} × {text}" for text, count in load.errors.most_common()),
    )


def audit_figures(audit: Audit) -> tuple[Figure, ...]:
    """The account as figures; what breaks a promise must be 0."""
    none = Target(Comparison.AT_MOST, 0, must=True)
    found: list[tuple[str, int, Target | None]] = [
        ("sent", audit.sent, None),
        ("acknowledged", audit.acknowledged, None),
        ("refused", audit.refused, None),
        ("unknown", audit.unknown, None),
        ("unknown_but_stored", audit.unknown_but_stored, None),
        ("lost", audit.lost, none),
        ("refused_but_stored", audit.refused_but_stored, none),
        ("duplicated", audit.duplicated, none),
        ("foreign", audit.foreign, none),
    ]
    return tuple(
        Figure(name, "msgs", Spread.of([float(count)]), target=target)
        for name, count, target in found
    )


def _at_most(bound: float | None) -> Target | None:
    return None if bound is None else Target(Comparison.AT_MOST, bound)
