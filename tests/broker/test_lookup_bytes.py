"""What is looked up counts until its client has read it, as what is pulled does."""

from __future__ import annotations

import pytest

from broker.errors import BrokerError, ErrorCode
from broker.state.topics import TopicRef
from dledger.records.record import decode_records
from tests.broker.asked import EndlessCall
from tests.broker.test_held_back import Shop


@pytest.mark.parametrize("is_by_id", [True, False])
def test_answers_that_nobody_reads_are_bounded(*, is_by_id: bool) -> None:
    shop = Shop()
    shop.send(0, b"x" * 10_000)
    node = shop.room.leader
    services, budget = node.replica.services, node.replica.services.pulls.budget
    budget._limit = 25_000
    (record,) = decode_records(node.replica.reader.pull(TopicRef("t"), 0, 0, 1, 1 << 20).records)
    call = EndlessCall()

    def look() -> None:
        question = (
            services.lookups.by_id(record.message_id, call)
            if is_by_id
            else services.lookups.by_position(TopicRef("t"), 0, 0, call)
        )
        shop.room.world.run(node, question)

    look()
    look()
    with pytest.raises(BrokerError) as refused:
        look()
    assert refused.value.code is ErrorCode.BUSY
    call.end()
    assert budget.used_bytes == 0
    look()
