"""Breaks the client once, at a chosen await or in a chosen function, while it is at work.

Awaits: tasks whose coroutine is the client's are driven by hand; at the n-th time that one of them
is to go on, the exception is thrown into it instead, wherever it waits (inside of gRPC, too, as if
gRPC had raised it). Functions: one is replaced by one that raises at its n-th call. Either happens
once; what is thrown says so, and whether it was reached at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

import dledger.client

FOLDER = dledger.client.__path__[0]


class Broken(RuntimeError):
    """What is thrown: nothing in the client expects it."""


class Once:
    """Says when it is time: at the `at`-th chance, counted from 1, and never again."""

    def __init__(self, at: int) -> None:
        self._at = at
        self.chances = 0
        self.where = ""

    def now(self, where: str) -> bool:
        """Whether this chance is the one; `where` is remembered then."""
        self.chances += 1
        if self.chances == self._at:
            self.where = where
            return True
        return False

    @property
    def was_reached(self) -> bool:
        return self.chances >= self._at


class _Driven:
    """An awaitable that runs a coroutine and throws into it when it is time."""

    def __init__(self, work: Coroutine[Any, Any, Any], once: Once) -> None:
        self._work = work
        self._once = once

    def __await__(self) -> Generator[Any, Any, Any]:
        waited: Any = None
        thrown: BaseException | None = None
        while True:
            try:
                if thrown is not None:
                    wanted = self._work.throw(thrown)
                else:
                    wanted = self._work.send(waited)
            except StopIteration as done:
                return done.value
            waited = thrown = None
            try:
                waited = yield wanted
                if self._once.now(_place(self._work)):
                    thrown = Broken(self._once.where)
            except BaseException as error:  # noqa: BLE001 - handed on: a cancellation, mostly
                thrown = error


def _place(work: Any) -> str:
    """Where in the client the coroutine waits: its innermost frame there."""
    place = "?"
    while work is not None:
        frame = getattr(work, "cr_frame", None) or getattr(work, "ag_frame", None)
        if frame is not None and frame.f_code.co_filename.startswith(FOLDER):
            place = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
        work = getattr(work, "cr_await", None) or getattr(work, "ag_await", None)
    return place


@contextmanager
def broken_await(once: Once) -> Iterator[None]:
    """Within it the client's tasks are driven by hand; those made in the test count as its own
    if they run the client's code."""
    loop = asyncio.get_running_loop()

    def make(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        code: CodeType | None = getattr(work, "cr_code", None)
        if code is not None and code.co_filename.startswith(FOLDER):

            async def dledger_driven() -> Any:
                return await _Driven(work, once)

            return asyncio.Task(dledger_driven(), loop=loop, **options)
        return asyncio.Task(work, loop=loop, **options)

    loop.set_task_factory(make)
    try:
        yield
    finally:
        loop.set_task_factory(None)


@contextmanager
def broken_function(owner: Any, name: str, once: Once) -> Iterator[None]:
    """Within it `owner.name` raises when it is time, before it has done anything."""
    whole: Callable[..., Any] = getattr(owner, name)

    def breaking(*args: Any, **kwargs: Any) -> Any:
        if once.now(f"{owner.__name__}.{name}"):
            raise Broken(once.where)
        return whole(*args, **kwargs)

    setattr(owner, name, breaking)
    try:
        yield
    finally:
        setattr(owner, name, whole)
