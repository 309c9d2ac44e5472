"""The tables as Spark uses them: queries, tables of the catalog, streams from topic to topic."""

from __future__ import annotations

import runpy
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="pyspark isn't installed: pip install '.[audit]'")

from dledger.spark import register
from dledger.testing import BrokerGroup
from tests.spark.group import fill, renewed, stored

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]
BODIES = [f"m{number:03}".encode() for number in range(60)]
EXAMPLE = Path(__file__).parents[2] / "examples" / "topics_with_spark.py"


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


def test_queries_and_tables_of_the_catalog(
    session: SparkSession, dledger_group: BrokerGroup
) -> None:
    """A table is made with the options once; what is written to another is read back."""
    bootstrap, one, other = dledger_group.addresses, dledger_group.topic(2), dledger_group.topic(2)
    for queue_id in (0, 1):
        fill(bootstrap, one, queue_id, BODIES[queue_id::2], key=f"k{queue_id}")
    session.sql(
        f"create table orders using dledger options (bootstrap '{bootstrap}', topics '{one}', "
        "columns 'queue_id,queue_offset,keys,body', maxOffsetsPerPartition '20')"
    )
    try:
        counts = session.sql(
            "select keys, count(*) as messages from orders where queue_offset < 25 group by keys"
        ).collect()
        assert {row["keys"]: row["messages"] for row in counts} == {"k0": 25, "k1": 25}
        assert session.table("orders").where("queue_id = 7").count() == 0
        rows = session.table("orders").where("queue_id = 1").selectExpr("keys", "body")
        rows.write.format("dledger").mode("append").options(
            bootstrap=bootstrap, topic=other, producer=f"{other}-job"
        ).save()
        written = stored(bootstrap, other)
        assert sorted(body for bodies in written.values() for body in bodies) == BODIES[1::2]
        # The program is run again: what it writes is there.
        rows.write.format("dledger").mode("append").options(
            bootstrap=bootstrap, topic=other, producer=f"{other}-job"
        ).save()
        assert stored(bootstrap, other) == written
    finally:
        session.sql("drop table orders")


def test_stream_from_topic_to_topic(
    session: SparkSession, dledger_group: BrokerGroup, tmp_path: Path
) -> None:
    """Run by run, a few messages a batch, each of them once; a topic made anew ends it."""
    bootstrap, one, other = dledger_group.addresses, dledger_group.topic(2), dledger_group.topic(2)

    def run(**options: Any) -> None:
        stream = session.readStream.format("dledger").options(
            bootstrap=bootstrap, topics=one, startingOffsets="earliest",
            maxOffsetsPerTrigger="25", **options,
        ).load()  # fmt: skip
        query = (
            stream.selectExpr("keys", "concat(cast(body as string), '!') as body")
            .writeStream.format("dledger")
            .options(bootstrap=bootstrap, topic=other, checkpointLocation=str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    for bodies in (BODIES[:40], BODIES[40:]):
        fill(bootstrap, one, 1, bodies, key="k")
        run()
    wanted = [body + b"!" for body in BODIES]
    assert [*stored(bootstrap, other).values()] == [wanted]
    renewed(bootstrap, one, queues=2)
    fill(bootstrap, one, 0, [b"new"])
    with pytest.raises(Exception, match="was deleted and made anew"):
        run()
    run(failOnDataLoss="false")
    found = Counter(body for bodies in stored(bootstrap, other).values() for body in bodies)
    assert found == Counter([*wanted, b"new!"])


def test_example_runs_as_it_stands(
    session: SparkSession,
    dledger_group: BrokerGroup,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With this session, which it may not end: another would take most of the test's time."""
    one, other = dledger_group.topic(2), f"{dledger_group.topic()}-shouted"
    fill(dledger_group.addresses, one, 1, BODIES)
    monkeypatch.setattr(type(session), "stop", lambda _: None)
    monkeypatch.setattr(sys, "argv", [EXAMPLE.name, str(dledger_group._directory), one, other])
    runpy.run_path(str(EXAMPLE))
    assert f"in {other}: {len(BODIES)}\n" in capsys.readouterr().out
    found = [body for bodies in stored(dledger_group.addresses, other).values() for body in bodies]
    assert sorted(found) == [body.upper() for body in BODIES]
