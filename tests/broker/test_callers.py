"""Streams of callers who aren't served any more end; the list is another one, and nobody calls."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from broker.doors.grpc import callers as door_callers
from broker.doors.grpc.callers import CHECKED_AT_ONCE, RevokedCallers
from dledger.credentials.tls import TlsSource
from tests.client.loops import async_test
from tests.client.members.test_push import until


class Caller:
    """A call's context, as far as callers look at it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked = 0
        self.error: Exception | None = None

    def auth_context(self) -> Any:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return self.name


class Bench:
    """Some streams, and the list."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(door_callers, "STREAMS_CHECKED_EVERY_S", 0.005)
        monkeypatch.setattr(door_callers, "LOOKED_AT_EVERY_S", 0.0)
        monkeypatch.setattr(door_callers, "fingerprint_of", lambda name: name)
        self.revoked = frozenset[str]()
        self.looks = 0
        self.callers = RevokedCallers(cast(TlsSource, SimpleNamespace(material=self._material)))
        self.ended: list[str] = []

    def _material(self) -> Any:
        self.looks += 1
        return SimpleNamespace(revoked=self.revoked)

    def stream(self, name: str) -> Any:
        caller: Any = Caller(name)
        self.callers.lasts(caller, lambda reason: self.ended.append(name))
        return caller

    async def looked(self) -> None:
        """Returns once the list was looked at some times more."""
        before = self.looks
        await until(lambda: self.looks >= before + 3)


@async_test
async def test_streams_end_once_their_caller_is_revoked(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are; those of others go on, and one that is over isn't ended."""
    bench = Bench(monkeypatch)
    streams = [bench.stream(f"c{number}") for number in range(3 * CHECKED_AT_ONCE)]
    bench.callers.is_over(streams[5])
    await bench.looked()
    assert [each.asked for each in streams] == [0] * len(streams), "nobody is revoked"
    bench.revoked = frozenset({"c2", "c5", f"c{3 * CHECKED_AT_ONCE - 1}"})
    await until(lambda: len(bench.ended) == 2)
    assert bench.ended == ["c2", f"c{3 * CHECKED_AT_ONCE - 1}"]
    await bench.looked()
    assert streams[0].asked == 1, "once for each list"
    bench.revoked |= {"c0"}
    await until(lambda: "c0" in bench.ended)
    for each in streams:
        bench.callers.is_over(each)
    await until(lambda: bench.callers._timer is None)  # nothing goes on where there is no stream


@async_test
async def test_what_befalls_one_look_is_told_and_looked_at_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The others are looked at by then."""
    bench = Bench(monkeypatch)
    one, _ = bench.stream("a"), bench.stream("b")
    one.error = ValueError("no certificate")
    with capture_logs() as logs:
        bench.revoked = frozenset({"a", "b"})
        await until(lambda: "b" in bench.ended)
        one.error = None
        await until(lambda: "a" in bench.ended)
    assert {each["event"] for each in logs} == {"certificate_not_checked"}
