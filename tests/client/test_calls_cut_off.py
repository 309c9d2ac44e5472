"""A client ends while other threads' calls are under way: they may have happened, and say so."""

from __future__ import annotations

import asyncio
import time

import pytest

from dledger.client import ClientClosed, Outcome
from dledger.client.blocking import BlockingClient
from dledger.client.loop_thread import LoopThread
from dledger.testing import BlockingFakeGroup
from tests.client.test_blocking_ends import PATIENCE_S, Pool


def test_call_whose_answer_was_lost_is_in_doubt_where_the_client_ends() -> None:
    """It has been heard, and waits to be made again: as not carried out it would be done twice."""
    with BlockingFakeGroup() as group:
        topic = group.topic()
        client = BlockingClient.connect(group.addresses).__enter__()
        client.producer().send(topic, b"x").result(PATIENCE_S)
        group.lose_answer("CommitOffsets", times=1_000_000)
        committing = Pool().submit(client.commit_offsets, "g", topic, {0: 1})
        while group.calls("CommitOffsets") < 2 and not committing.done():
            time.sleep(0.001)
        client.close()
        with pytest.raises(ClientClosed, match="may have been") as told:
            committing.result(PATIENCE_S)
        assert told.value.outcome is Outcome.MAY_HAVE_HAPPENED
        with BlockingClient.connect(group.addresses) as other:
            assert other.fetch_offsets("g", topic) == {0: 1}


def test_call_that_comes_too_late_was_not_made() -> None:
    """Nobody has to doubt that."""
    thread = LoopThread()
    waiting = Pool().submit(lambda: thread.call(asyncio.sleep(PATIENCE_S)))
    while not (thread._calls or waiting.done()):
        time.sleep(0.001)
    thread.stop()
    with pytest.raises(ClientClosed) as told:
        waiting.result(PATIENCE_S)
    assert told.value.outcome is Outcome.MAY_HAVE_HAPPENED
    with pytest.raises(ClientClosed) as told:
        thread.call(asyncio.sleep(0))
    assert told.value.outcome is Outcome.DID_NOT_HAPPEN
