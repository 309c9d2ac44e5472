"""How the log of `tests/fixtures/applied.log.xz` was made: a leader of one, everything that
changes the state, and entries that are void. It is kept as bytes, since a leader may propose
otherwise one day, and what was proposed must be applied as ever; `python -m tests.broker.kept_log
FILE` makes another.
"""

from __future__ import annotations

import lzma
import random
import sys
from pathlib import Path

from dledger.core.types import EntryKind
from dledger.wire.commands_pb2 import (
    Command,
    CommitOffsetsCommand,
    CommittedOffset,
    CreateTopicCommand,
    ForgetProducersCommand,
    RaiseLevelCommand,
)
from tests.broker.leader import Bench, batch
from tests.broker.test_snapshot import do_something

NO_COMMAND = b"no command at all"


def offsets(group: str, topic: str, offset: int, *, reset: bool = False, meant: int = 0) -> Command:
    """A commit of one queue's offset."""
    found = [CommittedOffset(queue_id=0, offset=offset)]
    return Command(
        commit_offsets=CommitOffsetsCommand(
            group=group, topic=topic, offsets=found, reset=reset, topic_incarnation=meant
        )
    )


def made() -> bytes:
    """The frames of the log, from entry 1 on."""
    bench, rng = Bench(), random.Random(38)
    for _ in range(250):
        do_something(bench, rng)
    bench.topic("kept", 3)
    bench.send(batch(0, b"a", b"b", b"c", topic="kept", queue_id=0))
    bench.commit()
    known = bench.replay()
    for body in (b"d", b"late"):
        bench.broken_rule(known, batch(3, body, topic="kept", queue_id=0))
    for offset, reset in ((3, False), (1, False), (2, True), (9, False)):
        bench.submit(offsets("late", "kept", offset, reset=reset))
    bench.submit(offsets("other", "kept", 1, meant=1), offsets("nobody", "missing", 1))
    for number in range(7):
        bench.register(b"named--%d" % number, "one of a name")
    bench.register(b"fenced-1", "one of a name", previous=bytes(15) + b"1")
    bench.register(b"unnamed1")
    bench.register(b"unnamed2", previous=bench.registered[-1])
    for command in (
        Command(create_topic=CreateTopicCommand(name="huge", queue_count=1 << 20)),
        Command(raise_level=RaiseLevelCommand(level=9)),
        Command(),
    ):
        bench.submit(command)
    bench.propose(EntryKind.COMMAND, 0, NO_COMMAND, None)
    forgotten = ForgetProducersCommand(producer_ids=bench.registered)
    bench.submit(Command(forget_producers=forgotten))
    for _ in range(50):
        do_something(bench, rng)
    return bench.log.read(1, bench.log.last_index)


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(lzma.compress(made()))
