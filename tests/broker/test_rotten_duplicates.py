"""A batch that comes again, whose stored entry has rotted meanwhile: it is stored, and told so."""

from __future__ import annotations

from broker.leader.batches import Placed
from broker.reading.queues import Found
from broker.state.topics import TopicRef
from dledger.records.layout import file_name
from dledger.records.record import decode_records
from tests.broker.leader import batch
from tests.broker.test_held_back import Shop


def test_what_has_rotted_is_stored_and_those_who_mend_hear_of_it() -> None:
    """The other batches of its Send are stored as well, and nobody sends anything anew."""
    shop = Shop(3)
    world = shop.room.world
    shop.send(0, b"one")
    node = shop.room.leader
    found = node.replica.reader.pull(TopicRef("t"), 0, 0, 1, 1 << 20)
    assert isinstance(found, Found)
    (record,) = decode_records(found.records)
    world.crash(node.name)
    world.restart(node.name)  # nothing is cached
    node = world.lead(node.name)
    at = record.physical_offset
    node.disk.flip(node.config.data_directory / "commitlog" / file_name(0), at + 40, 0)
    wanted = [batch(0, b"one"), batch(0, b"two", queue_id=1)]
    again, other = world.run(node, node.replica.services.sends.send(shop.producer, wanted))
    assert isinstance(again, Placed)
    assert again.is_duplicate
    assert again.base_physical_offset == at
    assert isinstance(other, Placed)
    assert node.replica.repairs.statistics().found
    assert node.replica.archiver._times_forgotten, "what was archived may be rotten"
    assert node.failure is None
