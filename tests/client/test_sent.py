"""The future of a message: who waits for it hears of its fate, and of nothing else."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import cast

import pytest

from dledger.client import ClientError, SendResult
from dledger.client.blocking import BlockingClient
from dledger.client.sent import Sent
from dledger.testing import BlockingFakeGroup
from tests.client.test_blocking_ends import PATIENCE_S, Pool

STORED = SendResult("t", 0, 0, 0, 0, b"", duplicate=False)


def unsettled() -> Sent:
    """Of a message that is on its way."""
    return Sent(lambda: None, lambda: None)


def wait_until_heard(sent: Sent, count: int) -> None:
    """So many wait for it."""
    due = time.monotonic() + PATIENCE_S
    while len(sent._bells) < count:
        assert time.monotonic() < due
        time.sleep(0.001)


class RungMeanwhile:
    """A bell that another thread rings between any two steps of this one's."""

    def locked(self) -> bool:
        """It was, just now."""
        return True

    def release(self) -> None:
        """See `threading.Lock.release`."""
        raise RuntimeError("release unlocked lock")


def test_cancelling_what_is_being_settled_wakes_nobody() -> None:
    """Who waited without a timeout was told that its time was over."""
    sent, pool = unsettled(), Pool()
    waiting = [pool.submit(sent.result), pool.submit(sent.exception), pool.submit(sent.result, 60)]
    wait_until_heard(sent, len(waiting))
    assert sent.may_settle()
    assert not sent.cancel()
    sent._ring()  # as somebody else's would be
    time.sleep(0.05)
    sent.set_result(STORED)
    assert [each.result(PATIENCE_S) for each in waiting] == [STORED, None, STORED]


def lost() -> ClientError:
    return ClientError("it was not stored")


def test_who_was_told_that_the_time_is_over_has_not_seen_the_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It failed right behind that, and neither `flush` nor `close` told of it."""
    for ask in (Sent.result, Sent.exception):
        sent = unsettled()
        failure = sent._failure

        def and_then_fails(sent: Sent = sent, failure: Callable[[], object] = failure) -> object:
            try:
                return failure()
            finally:
                if not sent.done():
                    sent.set_exception(lost())

        monkeypatch.setattr(sent, "_failure", and_then_fails)
        with pytest.raises(TimeoutError):
            ask(sent, 0)
        assert sent.done()
        assert not sent.asked
        assert isinstance(sent.exception(0), ClientError)
        assert sent.asked


def test_who_is_interrupted_as_it_fails_has_not_seen_the_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """But where somebody had seen it before, nobody is told again."""
    sent = unsettled()

    def interrupted(_: float | None) -> None:
        if not sent.done():
            sent.set_exception(lost())
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(sent, "_wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            sent.result()
        assert not sent.asked
        patched.undo()
        assert sent.exception() is not None
        patched.setattr(sent, "_wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            sent.result()
        assert sent.asked


def test_time_that_is_over_is_told() -> None:
    """Though it was rung for nothing before."""
    sent = unsettled()
    waiting = Pool().submit(sent.result, 0.05)
    wait_until_heard(sent, 1)
    sent._ring()
    with pytest.raises(TimeoutError):
        waiting.result(PATIENCE_S)


def test_bell_that_another_thread_rings_costs_nobody_his() -> None:
    """Everybody behind it waited for ever."""
    sent = unsettled()
    sent._bells.append(cast(threading.Lock, RungMeanwhile()))
    waiting = Pool().submit(sent.result)
    wait_until_heard(sent, 2)
    assert sent.may_settle()
    sent.set_result(STORED)
    assert waiting.result(PATIENCE_S) is STORED


def test_failure_is_known_to_flush_whatever_settling_raises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody may look at the future."""
    with BlockingFakeGroup() as group, BlockingClient.connect(group.addresses) as client:
        producer, settle = client.producer(), Sent.set_exception

        def settle_and_raise(sent: Sent, error: BaseException | None) -> None:
            settle(sent, error)
            raise RuntimeError("in the midst")

        monkeypatch.setattr(Sent, "set_exception", settle_and_raise)
        sent = unsettled()
        with pytest.raises(RuntimeError, match="in the midst"):
            producer._fail(sent, ClientError("x"))
        assert [each for _, each in producer._failed._kept] == [sent]
        producer.abort()
