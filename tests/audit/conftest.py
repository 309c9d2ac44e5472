"""Engines and replicas for the audits' tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from audit.engines.engine import Engine, LocalEngine
from tests.audit.replicas import LogBuilder, ReplicaSet, build, usual_entries


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
