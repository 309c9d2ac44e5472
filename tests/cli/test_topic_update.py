"""`dledger topic update` with several wishes, of which one fails."""

from __future__ import annotations

from typing import Any

import pytest

from dledger.client import Client, Permission, TopicNotFound
from dledger.testing.fake_nodes import FakeGroup
from dledger_cli.topic import _update, _Wish
from tests.client.loops import async_test

WHOLE = _Wish("t", 4, 2, 6.0, Permission.READ)


@async_test
async def test_each_wish_takes_effect_and_nothing_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with FakeGroup() as group:
        group.model.create("t", 2)
        info = await _update(group.bootstrap.split(","), WHOLE, drop=False)
        assert (info.queue_count, info.write_queues, info.permission) == (4, 2, Permission.READ)
        assert info.retention_hours == 6
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("failing", "half"),
    [
        ("update_topic", ""),
        ("retain_topic", "--read-queues 4 --write-queues 2 took effect; --retention-hours 6, "),
        ("permit_topic", "--read-queues 4 --write-queues 2, --retention-hours 6 took effect; "),
    ],
)
@async_test
async def test_what_took_effect_before_one_failed_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], failing: str, half: str
) -> None:
    """And giving the whole again is what makes it whole."""

    async def fail(*_: Any, **__: Any) -> Any:
        raise TopicNotFound("gone")

    async with FakeGroup() as group:
        group.model.create("t", 2)
        with monkeypatch.context() as broken:
            broken.setattr(Client, failing, fail)
            with pytest.raises(TopicNotFound):
                await _update(group.bootstrap.split(","), WHOLE, drop=False)
        told = capsys.readouterr().err
        assert half in told
        assert bool(told) == bool(half)
        assert "--perm r didn't" in told or not half
        info = await _update(group.bootstrap.split(","), WHOLE, drop=False)
        assert (info.queue_count, info.permission) == (4, Permission.READ)
