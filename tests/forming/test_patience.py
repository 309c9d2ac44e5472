"""Commands that change members ask again for what only can't be now."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc
import pytest
from grpc.aio import AioRpcError, Metadata

from broker.doors.grpc.errors import wire_error
from broker.errors import BrokerError, ErrorCode
from broker.forming import calls, patience
from broker.forming.calls import GrpcCalls
from broker.forming.errors import (
    FormationRefused,
    FormingError,
    MemberUnreachable,
    NoLeader,
    RefusedForNow,
    Superseded,
)
from broker.forming.patience import patiently, persistently
from dledger.limits import ERROR_METADATA_KEY


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "AGAIN_S", 0.001)


class Attempts:
    """What is asked for fails so often, in turn, and is done then."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.told: list[str] = []
        self.made = 0

    async def __call__(self) -> str:
        self.made += 1
        if self.failures:
            raise self.failures.pop(0)
        return "done"

    def asked(self, wait_s: float = 60.0) -> str:
        return asyncio.run(patiently(self, wait_s, self.told.append))


def test_what_passes_is_asked_again_and_told_once() -> None:
    """A group that elects, a member that starts, another change: each for a moment."""
    attempts = Attempts(NoLeader("elects"), MemberUnreachable("h:1", "gone"), RefusedForNow("busy"))
    assert attempts.asked() == "done"
    assert (attempts.made, attempts.told) == (4, ["waits: elects"])


@pytest.mark.parametrize("failure", [FormationRefused("n9 is no member"), OSError("disk")])
def test_what_does_not_pass_is_told_at_once(failure: Exception) -> None:
    attempts = Attempts(failure)
    with pytest.raises(type(failure), match=str(failure)):
        attempts.asked()
    assert (attempts.made, attempts.told) == (1, [])


@pytest.mark.parametrize("wait_s", [0.0, 0.05])
def test_it_ends_with_the_last_refusal(wait_s: float) -> None:
    """Within what the caller would wait."""
    attempts = Attempts(*(NoLeader(f"{number}") for number in range(100_000)))
    with pytest.raises(NoLeader) as ended:
        attempts.asked(wait_s)
    assert str(ended.value) == f"{attempts.made - 1}"
    assert (attempts.made == 1) == (wait_s == 0.0)


def refusal_of(code: ErrorCode, *, is_told: bool = True) -> Callable[..., object]:
    """A node's refusal, as gRPC gives it."""
    wire = wire_error(BrokerError(code, "not so").failure).SerializeToString()
    trailing = Metadata((ERROR_METADATA_KEY, wire)) if is_told else Metadata()
    error = AioRpcError(grpc.StatusCode.RESOURCE_EXHAUSTED, Metadata(), trailing, "not so", "")

    class Stub:
        def unary_unary(self, *_: object, **__: object) -> object:
            async def refused(*_: object, **__: object) -> None:
                raise error

            return refused

    class Channel:
        async def __aenter__(self) -> Stub:
            return Stub()

        async def __aexit__(self, *_: object) -> None:
            return None

    return lambda *_, **__: Channel()


@pytest.mark.parametrize(
    ("code", "is_told", "expected"),
    [
        (ErrorCode.BUSY, True, RefusedForNow),
        (ErrorCode.NOT_LEADER, True, RefusedForNow),
        (ErrorCode.INVALID_ARGUMENT, True, FormationRefused),
        (ErrorCode.BUSY, False, FormationRefused),
    ],
)
def test_whether_it_passes_is_the_nodes_word(
    monkeypatch: pytest.MonkeyPatch, code: ErrorCode, is_told: bool, expected: type[FormingError]
) -> None:
    monkeypatch.setattr(calls, "open_channel", refusal_of(code, is_told=is_told))
    with pytest.raises(FormationRefused) as refused:
        asyncio.run(GrpcCalls().list_members("h:1"))
    assert type(refused.value) is expected


def test_what_another_has_undone_is_not_asked_for_again() -> None:
    """It would undo the other one's change in turn, for as long as both wait."""
    with pytest.raises(Superseded):
        persisted("begun", Superseded("n3 is observer"), "done")


def persisted(*answers: str | Exception, wait_s: float = 60.0) -> tuple[str, int]:
    """What is told in the end, and how often it was asked."""
    left, waits = list(answers), list[float]()

    async def attempt(for_s: float) -> str:
        waits.append(for_s)
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    found = asyncio.run(persistently(attempt, lambda each: each == "votes", wait_s, lambda _: None))
    assert waits == sorted(waits, reverse=True)
    assert waits[0] == wait_s
    return found, len(waits)


def test_what_was_begun_is_followed_from_leader_to_leader() -> None:
    """A call that fails in the midst says nothing of the disk: it catches up, or votes by now."""
    assert persisted("votes") == ("votes", 1)
    assert persisted("catches up", NoLeader("elects"), "catches up", "votes") == ("votes", 4)
    refused = FormationRefused("n9 is no member")
    assert persisted("catches up", refused, "votes") == ("votes", 3)


def test_what_isn_t_done_in_time_is_told_as_it_was() -> None:
    """The last thing that is known, and no refusal of what goes on by itself."""
    found, asked = persisted("catches up", NoLeader("elects"), wait_s=0.05)
    assert found == "catches up"
    assert asked > 1
    with pytest.raises(FormationRefused):
        persisted(FormationRefused("n9 is no member"))
