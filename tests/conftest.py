"""What holds for every test.

Nothing fails in the dark: what asyncio only logs (an exception of a task or future that nobody
looked at, a callback that raised, a task destroyed while it waited) is an error of the test in
which it came to light, which may be a later one than the one that caused it.
"""

from __future__ import annotations

import gc
import logging
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import structlog
from hypothesis import settings

from tests.grpc_noise import is_grpcs_own

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Tests interrupt programs. Started in the background of a script this process ignores SIGINT, and
# so would what it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A machine that does other things too makes any example slow now and then; that is no defect.
settings.register_profile("any-machine", deadline=None)
settings.load_profile("any-machine")

# A traceback in colours, with every variable, takes longer than most tests that make one.
_PLAIN = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
structlog.configure(processors=[*structlog.get_config()["processors"][:-1], _PLAIN])


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


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One session for all tests, on two threads; where it can't be had, its tests are skipped."""
    pytest.importorskip("pyspark", reason="pyspark isn't installed: pip install '.[audit]'")
    from dledger.spark import SparkUnavailable, start_session

    try:
        session = start_session("local[2]")
    except SparkUnavailable as error:
        pytest.skip(str(error))
    yield session
    session.stop()
