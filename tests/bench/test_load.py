"""Loads against a producer that answers when told to: bounds, accounts, the awaited answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from dledger.client import Busy, Outcome, SendResult, Unavailable
from dledger.terminal.loops import run
from dledger_cli.bench.ledger import NUMBER
from dledger_cli.bench.load import NumberedLoad, fill, one_at_a_time, saturate

HOST_1 = b"\x7f\0\0\1\0\0\0\1"
HOST_2 = b"\x7f\0\0\1\0\0\0\2"
TURNS = 50  # of the loop, for everything that is ready to have happened
REFUSED = Busy("a bound is reached", outcome=Outcome.DID_NOT_HAPPEN)
IN_DOUBT = Unavailable("the connection broke", outcome=Outcome.MAY_HAVE_HAPPENED)


class ScriptedSender:
    """Accepts everything; a message is answered at the next turn, or when the test says so."""

    def __init__(self, *, at_once: bool = False, error: Exception | None = None) -> None:
        self.bodies: list[bytes] = []
        self.waiting: list[asyncio.Future[SendResult]] = []
        self.most_outstanding = 0
        self._at_once = at_once
        self._error = error

    def send(self, topic: str, body: bytes) -> asyncio.Future[SendResult]:
        future: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        self.bodies.append(body)
        self.waiting.append(future)
        self.most_outstanding = max(self.most_outstanding, len(self.waiting))
        if self._at_once:
            asyncio.get_running_loop().call_soon(self.answer, 1, HOST_1, self._error)
        return future

    def answer(self, count: int, host: bytes = HOST_1, error: Exception | None = None) -> None:
        """Settles the oldest `count` messages."""
        for future in self.waiting[:count]:
            if error is None:
                future.set_result(SendResult("t", 0, 0, 0, 0, host, False))
            else:
                future.set_exception(error)
        del self.waiting[:count]


async def turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


def test_saturating_keeps_exactly_so_many_outstanding() -> None:
    """Never one more, and every message sent is settled before the end."""
    sender = ScriptedSender(at_once=True)
    got = run(saturate(sender, "t", b"body", in_flight=7, seconds=0.01))
    assert sender.most_outstanding == 7
    assert got.acknowledged == len(sender.bodies) > 7
    assert got.failed == 0
    assert got.latencies_s


def test_one_at_a_time_is_one_at_a_time() -> None:
    """And each message's latency is taken."""
    sender = ScriptedSender(at_once=True)
    got = run(one_at_a_time(sender, "t", b"body", seconds=0.01))
    assert sender.most_outstanding == 1
    assert got.acknowledged == len(got.latencies_s) == len(sender.bodies)


@pytest.mark.parametrize("in_flight", [1, 3])
def test_messages_that_fail_are_counted_and_not_as_acknowledged(in_flight: int) -> None:
    """A rate must not be made of errors."""
    sender = ScriptedSender(at_once=True, error=REFUSED)
    if in_flight == 1:
        got = run(one_at_a_time(sender, "t", b"", seconds=0.005))
    else:
        got = run(saturate(sender, "t", b"", in_flight=in_flight, seconds=0.005))
    assert (got.acknowledged, got.failed) == (0, len(sender.bodies))


def test_filling_a_topic_fails_with_its_first_failure() -> None:
    """A topic that was filled holds what it should, or nobody measures it."""
    with pytest.raises(Busy):
        run(fill(ScriptedSender(at_once=True, error=REFUSED), "t", b"", 5))
    sender = ScriptedSender(at_once=True)
    run(fill(sender, "t", b"x", 5000))
    assert len(sender.bodies) == 5000


def with_load(
    check: Callable[[NumberedLoad, ScriptedSender], Coroutine[None, None, None]],
) -> NumberedLoad:
    """Runs `check` beside a load of four outstanding messages, then ends the load."""
    sender = ScriptedSender()

    async def main() -> NumberedLoad:
        load = NumberedLoad(sender, "t", size_bytes=16, limit=4)
        running = asyncio.create_task(load.run())
        await turns()
        await check(load, sender)
        load.stop()
        await turns()
        sender.answer(len(sender.waiting))
        await running
        return load

    return run(main())


def test_a_load_numbers_its_messages_and_keeps_to_its_limit() -> None:
    """Bodies of the size asked for, numbered from 0; answers make room for as many."""

    async def check(load: NumberedLoad, sender: ScriptedSender) -> None:
        assert [NUMBER.unpack_from(body)[0] for body in sender.bodies] == [0, 1, 2, 3]
        assert {len(body) for body in sender.bodies} == {16}
        sender.answer(3)
        await turns()
        assert (len(sender.bodies), sender.most_outstanding) == (7, 4)

    assert with_load(check).bytes_acknowledged == 7 * 16


def test_a_load_is_turned_up_and_down_at_once() -> None:
    """Down: nothing more until enough was answered. Up: at the next turn."""

    async def check(load: NumberedLoad, sender: ScriptedSender) -> None:
        load.turn(2)
        sender.answer(2)
        await turns()
        assert len(sender.bodies) == 4
        load.turn(6)
        await turns()
        assert (len(sender.bodies), len(sender.waiting)) == (8, 6)

    with_load(check)


def test_a_load_ends_only_when_every_message_has_its_fate() -> None:
    """Each kind of answer goes into the account."""

    async def check(load: NumberedLoad, sender: ScriptedSender) -> None:
        load.stop()
        sender.answer(1)
        sender.answer(1, error=REFUSED)
        sender.answer(1, error=IN_DOUBT)
        sender.waiting.pop().cancel()
        await turns()

    load = with_load(check)
    audit = load.ledger.audit()
    assert (audit.sent, audit.acknowledged, audit.refused, audit.unknown) == (4, 1, 1, 2)
    assert load.errors == {str(REFUSED): 1, str(IN_DOUBT): 1}


def test_only_another_nodes_stamp_ends_an_outage() -> None:
    """An answer that the dead leader still got out is no sign of the next one."""

    async def check(load: NumberedLoad, sender: ScriptedSender) -> None:
        moment = load.acknowledgement_from_other_than(HOST_1)
        sender.answer(2, HOST_1)
        await turns()
        assert not moment.done()
        sender.answer(1, error=IN_DOUBT)
        await turns()
        assert not moment.done()
        sender.answer(2, HOST_2)
        await turns()
        assert moment.done()

    with_load(check)


def test_a_body_without_room_for_its_number_is_refused() -> None:
    """It could not be accounted for."""
    with pytest.raises(ValueError, match="no room"):
        NumberedLoad(ScriptedSender(), "t", size_bytes=7, limit=1)
