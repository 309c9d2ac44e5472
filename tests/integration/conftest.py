"""One group for the tests that only ask."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.integration.group import Group, make_configs


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """The event loop that the shared group lives on."""
    with asyncio.Runner() as runner:
        yield runner.get_loop()


@pytest.fixture(scope="module")
def shared(
    loop: asyncio.AbstractEventLoop, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Group]:
    """Three nodes with topic `t` of two queues, which stay empty but for queue 0."""
    group = Group(make_configs(tmp_path_factory.mktemp("group")))

    async def start() -> None:
        await group.start()
        await group.create_topic()

    try:
        loop.run_until_complete(start())
        yield group
    finally:
        loop.run_until_complete(group.close())
