"""What holds for every test.

Nothing fails in the dark: what asyncio only logs (an exception of a task or future that nobody
looked at, a callback that raised, a task destroyed while it waited) is an error of the test in
which it came to light, which may be a later one than the one that caused it.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import json
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import structlog
import typer.main
import typer.testing
from hypothesis import settings

from broker.local_group.process import use_spawner
from tests.grpc_noise import is_grpcs_own
from tests.scale import examples
from tests.warm import spawn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A program's commands are what its functions' signatures say, which Typer looks up for every call:
# half the time of a test that calls many.
typer.main.get_command = functools.cache(typer.main.get_command)
vars(typer.testing)["_get_command"] = typer.main.get_command

# What takes longest, begun first: it would run alone at the end. A name that is missing here, or
# too many, costs a little time and nothing else.
LONGEST = (
    "tests/audit/test_cluster.py",
    "tests/integration/test_namespaces.py",
    "tests/chaos/test_kept_seeds.py",
    "tests/audit/test_stream.py",
    "tests/chaos/test_sim.py",
    "tests/audit/test_table.py",
    "tests/bench/test_delivery.py",
    "tests/integration/test_rolling_upgrade.py",
    "tests/packaging/test_wheel.py",
    "tests/bench/test_lasting.py",
    "tests/chaos_real/test_runs.py",
    "tests/cli/test_demo.py",
    "tests/bench/test_cli.py",
    "tests/node/test_later_logs.py",
    "tests/audit/test_any_change.py",
    "tests/chaos_real/test_sick_disks.py",
    "tests/chaos_real/test_doctor.py",
    "tests/cli/test_members.py",
    "tests/cli/test_priority.py",
    "tests/hostile/test_fuzz.py",
    "tests/cli/test_group_commands.py",
)

# Nodes of local groups that tests make here are forked, not started: see `tests.warm`.
use_spawner(spawn)

# Tests interrupt programs. Started in the background of a script this process ignores SIGINT, and
# so would what it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A machine that does other things too makes any example slow now and then; that is no defect.
settings.register_profile("any-machine", deadline=None, max_examples=examples(100))
settings.load_profile("any-machine")

# A traceback in colours, with every variable, takes longer than most tests that make one.
_PLAIN = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
# What nodes of this process say is no part of what a command beside them prints.
structlog.configure(
    processors=[*structlog.get_config()["processors"][:-1], _PLAIN],
    logger_factory=structlog.PrintLoggerFactory(sys.__stderr__),
)


class Complaints(logging.Handler):
    """What event loops without a handler of their own have complained about."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if not is_grpcs_own(record.getMessage(), error):
            self.told.append(self.format(record))

    def check(self) -> None:
        """Fails if there were any, and forgets them."""
        told, self.told = self.told, []
        assert not told, "asyncio complained:\n" + "\n".join(told)


@pytest.fixture(scope="session")
def _complaints() -> Iterator[Complaints]:
    complaints = Complaints()
    logging.getLogger("asyncio").addHandler(complaints)
    yield complaints
    gc.collect()  # what was dropped last
    logging.getLogger("asyncio").removeHandler(complaints)
    complaints.check()


@pytest.fixture(autouse=True)
def _nothing_fails_in_the_dark(_complaints: Complaints) -> Iterator[None]:
    yield
    _complaints.check()


@pytest.hookimpl(tryfirst=True)  # where warnings are errors already, as for all that is collected
def pytest_collection(session: pytest.Session) -> None:
    """Where several processes share all tests, each begins with its share of the test modules: on
    a clean checkout these are compiled, asserts rewritten, which takes longer than all that is
    left of collecting. By the time it comes to the others' shares, they are there."""
    worker = getattr(session.config, "workerinput", None)
    if worker is None:
        return
    gc.disable()  # until all is collected (`pytest_collection_finish`): none of it is garbage
    if session.config.args != session.config.getini("testpaths"):
        return
    folder = session.config.rootpath
    names = sorted(
        ".".join(path.relative_to(folder).with_suffix("").parts)
        for path in folder.joinpath("tests").rglob("test_*.py")
    )
    number, count = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
    for name in names[number::count]:
        with contextlib.suppress(Exception, pytest.skip.Exception):  # told where it is collected
            importlib.import_module(name)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where several processes share the tests, those with a Spark session are for one of them, as
    each session is a JVM that starts and warms up (`pytest_xdist_make_scheduler`); they and the
    longest come first."""
    if not hasattr(config, "workerinput"):
        return
    order = {name: number for number, name in enumerate(LONGEST)}
    of_spark: set[str] = set()

    def place(item: pytest.Item) -> int:
        fixtures = {"spark", "engine"} & set(getattr(item, "fixturenames", ()))
        if fixtures and item.get_closest_marker("spark"):
            of_spark.add(item.nodeid)
            return -1
        return order.get(item.nodeid.partition("::")[0], len(order))

    items.sort(key=place)
    told = Path(config.workerinput["of_spark"])
    own = told.with_name(config.workerinput["workerid"])
    own.write_text(json.dumps(sorted(of_spark)))
    own.replace(told)


def pytest_collection_finish() -> None:
    """What ten thousand collected tests consist of is never garbage: it isn't looked at again and
    again while they run."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


OF_SPARK = pytest.StashKey[Path]()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Each process is told where to say which tests need the Spark session. xdist's own way, a mark
    that becomes part of a test's id, is without effect where ids can't be written to (pytest 9.2):
    each process had a session then."""
    if OF_SPARK not in node.config.stash:
        folder = Path(tempfile.mkdtemp(prefix="dledger-tests-"))
        node.config.add_cleanup(lambda: shutil.rmtree(folder))
        node.config.stash[OF_SPARK] = folder / "of_spark"
    node.workerinput["of_spark"] = os.fspath(node.config.stash[OF_SPARK])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """`--dist loadgroup` hands out files, and those tests together that need the Spark session:
    what a module's tests share (a group of processes, as a rule) is set up once."""
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadGroupScheduling

    @functools.cache
    def of_spark() -> frozenset[str]:
        return frozenset(json.loads(config.stash[OF_SPARK].read_text()))

    scheduling = LoadGroupScheduling(config, log)
    scheduling._split_scope = lambda nodeid: (
        "spark" if nodeid in of_spark() else nodeid.partition("::")[0]
    )
    return scheduling


@pytest.fixture(scope="session", autouse=True)
def java_leaves_nothing(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What Spark's processes write where temporary files go is the run's, also of those that are
    killed."""
    folder = str(tmp_path_factory.mktemp("java"))
    os.environ["SPARK_LOCAL_DIRS"] = folder
    os.environ["SPARK_SUBMIT_OPTS"] = f"-Djava.io.tmpdir={folder}"


@pytest.fixture(scope="session")
def spark(pytestconfig: pytest.Config) -> Iterator[SparkSession]:
    """One session for all tests, on two threads; where it can't be had, its tests are skipped."""
    if hasattr(pytestconfig, "workerinput") and pytestconfig.option.loadgroup:
        told = Path(pytestconfig.workerinput["of_spark"])
        told.with_name("session").touch(exist_ok=False)  # one, in one of the processes
    pytest.importorskip("pyspark", reason="pyspark isn't installed: pip install '.[audit]'")
    from dledger.spark import SparkUnavailable, start_session

    try:
        session = start_session("local[2]")
    except SparkUnavailable as error:
        pytest.skip(str(error))
    yield session
    session.stop()
