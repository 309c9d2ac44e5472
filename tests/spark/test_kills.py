"""From topic to topic while leaders and drivers are killed: each message is there once, in order.

`DRIVERS=9 LEADERS=6 pytest -s tests/spark/test_kills.py` (`make spark-kills`) is the long form; its
kills come at any moment, and it tells how many found rows stored that no batch had committed.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="pyspark isn't installed: pip install '.[audit]'")

from dledger.client.blocking import BlockingClient
from dledger.spark import register
from dledger.testing import BrokerGroup
from tests.spark.group import stored
from tests.spark.stream_driver import BATCH, Places, finished, start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parent.parent.parent
QUEUES = 4
PATIENCE_S = 600.0  # for anything to go on, however busy the machine
LOOK_S = 0.02
DRIVERS, LEADERS = int(os.environ.get("DRIVERS", "0")), int(os.environ.get("LEADERS", "0"))
LONG_S = float(os.environ.get("SECONDS_AT_MOST", "1500"))

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def fill(bootstrap: str, topic: str, count: int) -> dict[int, list[bytes]]:
    """So many messages in each queue, numbered; what is in the topic then."""
    with BlockingClient.connect(bootstrap) as client, client.producer() as producer:
        for number in range(count):
            for queue_id in range(QUEUES):
                producer.send(topic, b"%d" % number, queue_id=queue_id)
        producer.flush()
    return {queue_id: [b"%d" % number for number in range(count)] for queue_id in range(QUEUES)}


def count(client: BlockingClient, topic: str) -> int:
    """Messages in the topic."""
    return sum(queue.max_offset for queue in client.describe_topic(topic).queues)


@contextmanager
def driver(places: Places) -> Iterator[subprocess.Popen[bytes]]:
    """Of the stream from topic to topic; see `running`."""
    with running(["-m", "tests.spark.stream_driver", *places], log_of(places)) as process:
        yield process


@contextmanager
def running(program: list[str], log_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """In a process group of its own, with its JVM and its workers; none of it is left behind."""
    with (
        log_path.open("ab") as log,
        subprocess.Popen(
            [sys.executable, *program], cwd=ROOT, stderr=log, stdout=log, start_new_session=True
        ) as process,
    ):
        try:
            yield process
        finally:
            kill(process)


def log_of(places: Places) -> Path:
    """What the drivers say."""
    return Path(places.checkpoint).with_suffix(".log")


def kill(process: subprocess.Popen[bytes]) -> None:
    """The driver, its JVM and its tasks, all at once."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(PATIENCE_S)


def wait_for(is_so: Callable[[], bool], is_running: Callable[[], bool]) -> None:
    """Looks again until it is so, as long as somebody works at it."""
    until = time.monotonic() + PATIENCE_S
    while not is_so():
        assert is_running(), "the driver has ended"
        assert time.monotonic() < until, "nothing goes on"
        time.sleep(LOOK_S)


@pytest.mark.skipif(not DRIVERS, reason="the long form: make spark-kills")
def test_driver_and_leader_are_killed_and_each_message_is_there_once(
    spark: SparkSession, dledger_three: BrokerGroup, tmp_path: Path
) -> None:
    """The driver when a batch is stored in part and so not committed; the leader in the middle of
    the run that goes on from there."""
    bootstrap = dledger_three.addresses
    one, other = dledger_three.topic(QUEUES), dledger_three.topic(QUEUES)
    wanted = fill(bootstrap, one, 6 * BATCH // QUEUES)
    places = Places(bootstrap, one, other, str(tmp_path / "checkpoint"))
    with BlockingClient.connect(bootstrap) as client:
        there = 0
        while there % BATCH == 0:  # As a rule once: the kill comes before the batch's next task.
            assert there < 4 * BATCH
            with driver(places) as process:
                wait_for(lambda: count(client, other) % BATCH != 0, lambda: process.poll() is None)
                kill(process)
            there = count(client, other)
        register(spark)
        query = start(spark, places)
        wait_for(lambda: count(client, other) > there or not query.isActive, lambda: True)
        dledger_three.kill()
        finished(lambda: start(spark, places), query)
    assert stored(bootstrap, other) == wanted


@dataclass
class Tally:
    """What was killed, and how many drivers left rows of a batch that nobody had committed."""

    drivers: int = 0
    leaders: int = 0
    uncommitted: int = 0
    dead: list[str] = field(default_factory=list)


class Killer:
    """Kills drivers and leaders at random moments, seeded; a dead node comes back before the next
    one is killed, so that a majority lives."""

    def __init__(self, group: BrokerGroup, places: Places, client: BlockingClient) -> None:
        self._group = group
        self._places = places
        self._client = client
        self._random = random.Random(20)
        self.tally = Tally()

    def there(self) -> int:
        """Messages that were written so far."""
        return count(self._client, self._places.target)

    def more(self, messages: int, process: subprocess.Popen[bytes]) -> None:
        """So many more are written."""
        target = self.there() + messages
        wait_for(lambda: self.there() >= target, lambda: process.poll() is None)

    def kill_leader(self) -> None:
        while self.tally.dead:
            self._group.restart(self.tally.dead.pop())
        self.tally.dead.append(self._group.kill())
        self.tally.leaders += 1

    def run(self, *, kills_leader: bool) -> None:
        """A driver, which is killed; a leader before it, if wanted."""
        with driver(self._places) as process:
            self.more(1, process)
            if kills_leader:
                self.kill_leader()
                self.more(1, process)
            self.more(self._random.randrange(1, 2 * BATCH), process)
            time.sleep(self._random.random() * 0.2)
            kill(process)
        self.tally.drivers += 1
        commits = Path(self._places.checkpoint) / "commits"
        committed = len([each for each in commits.glob("*") if each.name.isdigit()])
        self.tally.uncommitted += self.there() > committed * BATCH


@pytest.fixture
def patient_three() -> Iterator[BrokerGroup]:
    """Three nodes of the test's own."""
    with BrokerGroup(nodes=3) as group:
        yield group


@pytest.mark.skipif(not DRIVERS, reason="the long form: make spark-kills")
@pytest.mark.timeout(LONG_S + 4 * PATIENCE_S)
def test_many_drivers_and_leaders_are_killed(patient_three: BrokerGroup, tmp_path: Path) -> None:
    """The last driver is left alone and ends by itself. Where the time is over before all were
    killed, what was killed is told and everything else holds."""
    bootstrap = patient_three.addresses
    one, other = patient_three.topic(QUEUES), patient_three.topic(QUEUES)
    wanted = fill(bootstrap, one, (DRIVERS + LEADERS + 2) * 4 * BATCH // QUEUES)
    places = Places(bootstrap, one, other, str(tmp_path / "checkpoint"))
    until = time.monotonic() + LONG_S
    with BlockingClient.connect(bootstrap) as client:
        killer = Killer(patient_three, places, client)
        tally = killer.tally
        while tally.drivers < DRIVERS and time.monotonic() < until:
            killer.run(kills_leader=tally.leaders < LEADERS)
            print(f"\n{tally}, {killer.there()} messages", flush=True)
        with driver(places) as process:
            assert process.wait(LONG_S) == 0
    found = stored(bootstrap, other)
    print(f"\n{tally}; {sum(map(len, found.values()))} messages in {len(found)} queues")
    assert found == wanted
    if time.monotonic() < until:
        assert (tally.drivers, tally.leaders) == (DRIVERS, min(LEADERS, DRIVERS))
