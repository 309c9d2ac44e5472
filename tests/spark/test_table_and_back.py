"""The example that goes from a topic into a Delta table and back into a topic, killed at random.

`DRIVERS=6 LEADERS=4 pytest -s tests/spark/test_table_and_back.py` (`make spark-kills`) is the long
form.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pyspark isn't installed: pip install '.[audit]'")
pytest.importorskip("deltalake", reason="deltalake isn't installed: pip install '.[delta]'")

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from dledger.client.blocking import BlockingClient
from dledger.testing import BrokerGroup
from tests.spark.group import stored
from tests.spark.test_kills import (
    DRIVERS,
    LEADERS,
    LONG_S,
    PATIENCE_S,
    QUEUES,
    count,
    fill,
    kill,
    patient_three,
    running,
)

__all__ = ["patient_three"]
EXAMPLE = Path(__file__).parents[2] / "examples" / "topic_to_table_and_back.py"
TOO_SLOW = "failed to connect back"  # Spark gives its Python ten seconds, and has no option for it
ATTEMPTS = 20

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@dataclass(frozen=True)
class Way:
    """From topic to table to topic."""

    group: BrokerGroup
    source: str
    target: str
    lake: Path

    @property
    def program(self) -> list[str]:
        return [str(EXAMPLE), self.group.addresses, self.source, self.target, str(self.lake)]

    @property
    def log(self) -> Path:
        return self.lake.with_suffix(".log")

    def table(self) -> dict[int, list[bytes]]:
        """The bodies in the table by queue, in the order of their offsets."""
        try:
            rows = DeltaTable(str(self.lake / "messages")).to_pyarrow_table().to_pylist()
        except TableNotFoundError:
            return {}
        found: dict[int, list[bytes]] = {}
        for row in sorted(rows, key=lambda row: (row["queue_id"], row["queue_offset"])):
            found.setdefault(row["queue_id"], []).append(row["body"])
        return found

    def size(self, client: BlockingClient) -> int:
        """Messages that have come into table and target so far."""
        return count(client, self.target) + sum(map(len, self.table().values()))


def run_to_its_end(way: Way) -> None:
    """As a supervisor would: begun again where Spark alone was too slow."""
    for _ in range(ATTEMPTS):
        before = way.log.stat().st_size if way.log.exists() else 0
        with running(way.program, way.log) as process:
            code = process.wait(LONG_S)
        said = way.log.read_text(errors="replace")[before:]
        if code == 0:
            return
        assert TOO_SLOW in said, said[-3000:]
    raise AssertionError("Spark was too slow each time")


def more(way: Way, client: BlockingClient, wanted: int, process: subprocess.Popen[bytes]) -> bool:
    """Whether so many more have come before the program ended."""
    target, until = way.size(client) + wanted, time.monotonic() + PATIENCE_S
    while way.size(client) < target:
        assert time.monotonic() < until, "nothing goes on"
        if process.poll() is not None:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.skipif(not DRIVERS, reason="the long form: make spark-kills")
def test_example_moves_each_message_once(dledger_three: BrokerGroup, tmp_path: Path) -> None:
    """From a stream's first batch to the last row of the table."""
    one, other = dledger_three.topic(QUEUES), dledger_three.topic(QUEUES)
    way = Way(dledger_three, one, other, tmp_path / "lake")
    way.lake.mkdir()
    wanted = fill(dledger_three.addresses, one, 60)
    run_to_its_end(way)
    assert way.table() == wanted
    assert stored(dledger_three.addresses, other) == wanted


@pytest.mark.skipif(not DRIVERS, reason="the long form: make spark-kills")
@pytest.mark.timeout(LONG_S + 4 * PATIENCE_S)
def test_each_message_is_moved_once_through_kills(
    patient_three: BrokerGroup, tmp_path: Path
) -> None:
    """Programs are killed whenever some rows have come, leaders before that; a program that comes
    to its end early ends the kills, and is told."""
    one, other = patient_three.topic(QUEUES), patient_three.topic(QUEUES)
    way = Way(patient_three, one, other, tmp_path / "lake")
    way.lake.mkdir()
    each = (DRIVERS + LEADERS) * 300
    step = 2 * QUEUES * each // (DRIVERS + LEADERS)  # of table and topic together
    wanted = fill(patient_three.addresses, one, each)
    drawn, killed, leaders, dead = random.Random(21), 0, 0, ""
    until = time.monotonic() + LONG_S
    with BlockingClient.connect(patient_three.addresses) as client:
        while killed < DRIVERS and time.monotonic() < until:
            with running(way.program, way.log) as process:
                going = more(way, client, drawn.randrange(1, step), process)
                if leaders < LEADERS and going:
                    if dead:
                        patient_three.restart(dead)
                    dead, leaders = patient_three.kill(), leaders + 1
                    going = more(way, client, drawn.randrange(1, step), process)
                time.sleep(drawn.random() * 0.5)
                kill(process)
            killed += 1
            table = sum(map(len, way.table().values()))
            sys.stdout.write(
                f"\n{killed} drivers, {leaders} leaders killed; {table} in the table,"
                f" {count(client, other)} in the topic{'' if going else ', and over'}\n"
            )
    for _ in range(2):  # The second finds nothing to do.
        run_to_its_end(way)
        assert way.table() == wanted
        assert stored(patient_three.addresses, other) == wanted
