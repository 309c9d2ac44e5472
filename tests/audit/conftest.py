"""Engines and replicas for the audits' tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from audit.engines.engine import Engine, LocalEngine
from tests.audit.replicas import LogBuilder, ReplicaSet, build, usual_entries

# An engine carries tasks and their results; what is judged is the same code on each, and
# `test_engines_agree` compares whole reports. So Spark runs some of what these files have, and all
# of it in the long form, make spark-kills.
JUDGED_ALIKE = (
    *("test_faults.py", "test_scope.py", "test_delivery.py", "test_delivery_starts.py"),
    *("test_delivery_lives.py", "test_delivery_claims.py", "test_delivery_growing.py"),
    *("test_deletions.py", "test_delivery_deletions.py"),
)
ON_SPARK_TOO = {
    "test_equal_replicas_are_identical",
    "test_faults_of_two_replicas_in_one_block_are_both_found",
    "test_replicas_that_begin_apart_are_identical",
    "test_flipped_bit_in_a_consume_queue_is_found",
    "test_unreadable_path_is_incomplete",
    "test_running_node_that_is_behind_moves_the_end",
    "test_histories_that_hold_are_delivered",
    "test_what_was_acknowledged_before_is_lost",
    "test_shares_and_files_change_nothing",
    "test_who_ended_at_last_is_excused_whenever_that_was",
    "test_a_queue_that_retention_has_emptied_lost_nothing",
    "test_what_was_acknowledged_of_either_topic_was_there",
    "test_errors_of_tasks_are_the_same_on_each_engine",
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what Spark runs only in the long form."""

    def is_long(item: pytest.Item) -> bool:
        on_spark = item.path.name in JUDGED_ALIKE and item.get_closest_marker("spark") is not None
        return on_spark and getattr(item, "originalname", "") not in ON_SPARK_TOO

    if "DRIVERS" in os.environ:
        return
    config.hook.pytest_deselected(items=[item for item in items if is_long(item)])
    items[:] = [item for item in items if not is_long(item)]


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> LogBuilder:
    """A replica that nobody damages; tests copy it."""
    return build(tmp_path_factory.mktemp("original") / "data", usual_entries())


@pytest.fixture
def three(tmp_path: Path, original: LogBuilder) -> ReplicaSet:
    """Three equal replicas."""
    return ReplicaSet(tmp_path, original)


@pytest.fixture(params=["local", pytest.param("spark", marks=pytest.mark.spark)])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Each engine in turn."""
    if request.param == "local":
        made: Engine = LocalEngine()
    else:
        from audit.engines.spark import SparkEngine

        made = SparkEngine(request.getfixturevalue("spark"), stops_session=False)
    yield made
    made.close()
