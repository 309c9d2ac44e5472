"""Links between real transports while the network, or a stranger, does its worst.

See docs/adr/0018-peer-links.md for the rules; tests/links has them one by one, without sockets.
"""

from __future__ import annotations

import asyncio
from statistics import median

import grpc
import pytest

from chaos.real.network import Quality
from dledger.checksum import seal
from dledger.core.types import NodeId
from dledger.greeting import Identity
from dledger.links import LinkTimes
from dledger.wire.raft_pb2 import KeepAlive, PeerMessage
from tests.integration.members import SEGMENT_BYTES, Pair, Thief, pair

N1, N2 = NodeId("n1"), NodeId("n2")
BOTH = [(N1, N2), (N2, N1)]
SILENT = Quality(silent=True)
TIMES = LinkTimes.of(0.3)


def hello_of(name: NodeId, to: NodeId) -> PeerMessage:
    return Identity("g", name, SEGMENT_BYTES).hello(to)


async def after_silence(silence_s: float, links: list[tuple[NodeId, NodeId]]) -> float:
    """Seconds from the end of a silence to the next answers in both directions."""
    async with pair(TIMES) as two:
        await two.talk()
        two.network.set_fault("silence", links, SILENT)
        await asyncio.sleep(silence_s)
        two.network.clear_fault("silence")
        return await two.talk()


async def side_by_side(*silences: float) -> list[float]:
    return await asyncio.gather(*(after_silence(each, BOTH) for each in silences))


@pytest.mark.slow
def test_links_are_back_soon_after_a_silent_network() -> None:
    """Packets were dropped and nothing was reset, for as long as it likes: every pair talks again
    long before TCP would have sent anything."""
    took = asyncio.run(side_by_side(0.7, 1.5, 3.2, 6.3, 7.0, 9.1))
    assert median(took) <= 1.0, took
    assert max(took) <= 2.0, took


@pytest.mark.slow
@pytest.mark.parametrize("deaf", [(N1, N2), (N2, N1)])
def test_links_are_back_soon_after_one_direction_was_silent(deaf: tuple[NodeId, NodeId]) -> None:
    """A stream needs both directions; the watchdog of who dialed it notices either."""
    assert asyncio.run(after_silence(3.2, [deaf])) <= 2.0


def test_streams_that_are_silent_are_renewed_while_they_are() -> None:
    """The watchdog acts during the silence, and `connected` tells the truth."""

    async def scenario() -> None:
        async with pair(TIMES) as two:
            await two.talk()
            one = two.members[N1].transport
            assert one.links()[N2].connected
            two.network.set_fault("silence", BOTH, SILENT)
            await asyncio.sleep(TIMES.silence_s + 2 * TIMES.ping_s)
            picture = one.links()[N2]
            assert not picture.connected
            assert (picture.renewed, picture.reconnects) == (1, 1)
            assert two.members[N1].broken == [N2]

    asyncio.run(scenario())


def test_idle_links_stay_as_they_are() -> None:
    """Keep-alives are progress: nothing is renewed while nobody has anything to say."""

    async def scenario() -> None:
        async with pair(TIMES) as two:
            await two.talk()
            await asyncio.sleep(2.5 * TIMES.silence_s)
            pictures = [
                two.members[N1].transport.links()[N2],
                two.members[N2].transport.links()[N1],
            ]
            assert all(each.connected and each.reconnects == 0 for each in pictures)
            assert await two.talk() < 1.0

    asyncio.run(scenario())


def test_peers_with_long_round_trips_connect() -> None:
    """300 ms each way: connecting takes four times the interval between attempts."""

    async def scenario() -> None:
        async with pair(TIMES, is_started=False) as two:
            two.network.set_fault("far", BOTH, Quality(delay_ms=300))
            for each in two.members.values():
                each.transport.start()
            await two.talk(10.0)
            await asyncio.sleep(2 * TIMES.silence_s)
            pictures = [
                two.members[N1].transport.links()[N2],
                two.members[N2].transport.links()[N1],
            ]
            assert all(each.connected and each.reconnects == 0 for each in pictures)

    asyncio.run(scenario())


async def stolen(two: Pair, victim: NodeId, name: NodeId, *, speaks: bool) -> None:
    """A stranger says Hello to `victim` as `name`, three times, and goes away after a while."""
    async with grpc.aio.insecure_channel(two.address(victim)) as channel:
        thieves = [Thief(channel) for _ in range(3)]
        for thief in thieves:
            await thief.say(hello_of(name, victim))
            await thief.is_greeted()
            if speaks:
                await thief.say(seal(PeerMessage(keep_alive=KeepAlive())))
        await asyncio.sleep(0.3)


@pytest.mark.parametrize("speaks", [False, True], ids=["silent", "speaking"])
def test_stolen_streams_mute_nobody(speaks: bool) -> None:
    """Six Hellos in others' names: both directions work while the thieves are there, and after."""

    async def scenario() -> None:
        async with pair(TIMES) as two:
            await two.talk()
            theft = asyncio.gather(
                stolen(two, N1, N2, speaks=speaks), stolen(two, N2, N1, speaks=speaks)
            )
            await asyncio.sleep(0.2)
            assert await two.talk() < 2.0
            await theft
            assert await two.talk() < 2.0
            assert all(
                link.connected
                for member in two.members.values()
                for link in member.transport.links().values()
            )

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_late_dial_of_ones_own_changes_nothing() -> None:
    """An attempt that hung in the network arrives when another has long been in use."""

    async def scenario() -> None:
        async with pair(TIMES, is_started=False) as two:
            two.network.set_fault("silence", BOTH, SILENT)
            for each in two.members.values():
                each.transport.start()
            await asyncio.sleep(3.5)  # every attempt of it hangs, and will arrive, one by one
            two.network.clear_fault("silence")
            await two.talk()
            for _ in range(10):
                await asyncio.sleep(0.2)
                assert await two.talk() < 0.5
            pictures = [
                two.members[N1].transport.links()[N2],
                two.members[N2].transport.links()[N1],
            ]
            assert all(each.connected and each.reconnects == 0 for each in pictures)

    asyncio.run(scenario())


def test_a_call_that_never_says_hello_is_ended() -> None:
    """It doesn't hold a place for ever."""

    async def scenario() -> None:
        async with (
            pair(LinkTimes(attempt_s=0.2)) as two,
            grpc.aio.insecure_channel(two.address(N1)) as channel,
        ):
            code = await asyncio.wait_for(Thief(channel).call.code(), 5)
            assert code is grpc.StatusCode.DEADLINE_EXCEEDED

    asyncio.run(scenario())
