"""`dledger group doctor` on real processes, each with something that is really wrong with it."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from broker.doctor import asking
from broker.doctor.asking import ask_group
from broker.doctor.finding import Finding, Kind
from broker.doctor.judging import judge
from chaos.faults import ClockFault
from chaos.real.arena import Arena, ArenaOptions, arena
from dledger.client import Client, ClientOptions
from tests.warm import program

WAIT_S = 60.0
TOPIC = "t"


@pytest.fixture(autouse=True)
def _short_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is found too early is looked at again here."""
    monkeypatch.setattr(asking, "PAUSE_S", 0.2)


def within_group(folder: Path, act: Callable[[Arena, Client], Awaitable[None]]) -> None:
    async def scenario() -> None:
        async with arena(folder / "group", ArenaOptions(nodes=3, seed=1)) as made:
            await made.group.up()
            options = ClientOptions(deadline_s=WAIT_S)
            async with Client.connect(",".join(made.client_addresses), options=options) as client:
                await client.create_topic(TOPIC, queues=1)
                await act(made, client)

    asyncio.run(scenario())


async def asked(made: Arena) -> tuple[Finding, ...]:
    return judge(await ask_group(list(made.addresses.values()), None))


async def found(made: Arena, *wanted: Kind) -> tuple[Finding, ...]:
    """What the doctor says once it says these, and nothing else."""
    deadline = time.monotonic() + WAIT_S
    while True:
        findings = await asked(made)
        if {each.kind for each in findings} == set(wanted):
            return findings
        assert time.monotonic() < deadline, findings


async def command(made: Arena, *arguments: str) -> tuple[int, str]:
    """How the program ends, and what it prints."""
    words = ("--bootstrap", ",".join(made.addresses.values()), *arguments)
    done = await asyncio.to_thread(program, "group", "doctor", *words)
    return done.returncode, done.stdout


async def send(client: Client, count: int, size: int = 10) -> None:
    async with client.producer() as producer:
        for _ in range(count):
            await producer.send(TOPIC, bytes(size))


async def follower_of(made: Arena) -> str:
    status = await made.group.status()
    return next(node.id for node in status.nodes if node.role == "follower")


def test_processes_that_are_gone_or_hang(tmp_path: Path) -> None:
    """One of three: it serves without margin. Two: nobody can."""

    async def act(made: Arena, client: Client) -> None:
        await found(made)
        assert await command(made) == (0, "3 of 3 nodes answered; nothing is wrong\n")
        one = await follower_of(made)
        made.kill(one)
        findings = await found(made, Kind.NO_MARGIN, Kind.UNREACHABLE)
        assert findings[-1].member == one
        await made.start(one)
        await found(made)
        made.pause(one)
        await found(made, Kind.NO_MARGIN, Kind.UNREACHABLE)
        made.resume(one)
        await found(made)
        for victim in made.node_ids[:2]:
            made.kill(victim)
        await found(made, Kind.NO_MAJORITY, Kind.UNREACHABLE)
        code, text = await command(made, "--json")
        assert code == 3
        said = json.loads(text)
        assert said["exit_code"] == 3
        assert said["findings"][0]["gravity"] == "critical"
        assert said["silent"] == list(made.node_ids[:2])
        made.kill(made.node_ids[2])
        code, text = await command(made)
        assert code == 3
        assert all(len(line) <= 80 for line in text.splitlines())
        for victim in made.node_ids:
            await made.start(victim)
        await found(made)

    within_group(tmp_path, act)


@pytest.mark.long
def test_directory_that_was_wiped(tmp_path: Path) -> None:
    """It stands by, until it is taken in with the command that the doctor names."""

    async def act(made: Arena, client: Client) -> None:
        await send(client, 20)
        one = await follower_of(made)
        made.terminate(one)
        await made.gone(one)
        shutil.rmtree(made.data_directory(one))
        await made.start(one)
        findings = await found(made, Kind.NO_MARGIN, Kind.UNFORMED)
        assert f"dledger group replace {one}" in findings[-1].remedy
        code, text = await command(made, "--no-remedies")
        assert code == 1
        assert "replace" not in text
        words = ("--bootstrap", ",".join(made.addresses.values()))
        replaced = await asyncio.to_thread(program, "group", "replace", one, *words)
        assert replaced.returncode == 0, replaced.stderr
        await found(made)

    within_group(tmp_path, act)


@pytest.mark.long
def test_disk_without_room_and_clock_that_is_off(tmp_path: Path) -> None:
    """Both pass by themselves with what caused them."""

    async def act(made: Arena, client: Client) -> None:
        one = await follower_of(made)
        made.order("full", one, lambda orders: replace(orders, free_bytes=4096))
        nearly = await found(made, Kind.DISK_NEARLY_FULL)
        assert nearly[0].member == one
        made.order("full", one, lambda orders: replace(orders, free_bytes=0))
        sending = asyncio.create_task(send(client, 60, 200 << 10))
        full = await found(made, Kind.NO_MARGIN, Kind.DISK_FULL)
        assert full[-1].member == one
        await sending
        made.order("full", one, None)
        await found(made)
        await send(client, 1)
        fast = ClockFault(offset_ms=60_000)
        made.order("clock", one, lambda orders: replace(orders, clock=(fast,)))
        off = await found(made, Kind.CLOCK_OFF)
        assert (off[0].member, "ahead" in off[0].detail) == (one, True)
        made.order("clock", one, None)
        await found(made)

    within_group(tmp_path, act)
