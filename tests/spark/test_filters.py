"""What filters leave of a reading: never less than there is."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="pyspark isn't installed: pip install '.[audit]'")
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    LessThan,
    LessThanOrEqual,
)

from dledger.reading.decode import Wanted
from dledger.spark.filters import Narrowed
from dledger.spark.source import CommitLogReader

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LAST_MS = (datetime.max.replace(tzinfo=UTC) - EPOCH) // timedelta(milliseconds=1)
IN_2038_MS = 2_147_483_648_002  # As a float of seconds it is a little less.


def moments(at_ms: int, beyond_us: int) -> tuple[datetime, datetime]:
    """The moment with its zone, as Spark tells it, and without."""
    moment = EPOCH + timedelta(milliseconds=at_ms, microseconds=beyond_us)
    return moment, moment.replace(tzinfo=None)


@given(at_ms=st.integers(0, LAST_MS), beyond_us=st.integers(0, 999))
@example(at_ms=IN_2038_MS, beyond_us=0)
@example(at_ms=LAST_MS, beyond_us=1)
def test_times_of_any_century_lie_in_their_own_ranges(at_ms: int, beyond_us: int) -> None:
    """Rounded outwards: by the millisecond in which a message was stored."""
    column = ("store_time",)

    def times(given: Filter) -> tuple[int, int]:
        return Narrowed().by(given).times_ms

    for moment in moments(at_ms, beyond_us):
        assert times(EqualTo(column, moment)) == (at_ms, at_ms + 1)
        for kind in (GreaterThan, GreaterThanOrEqual):
            assert times(kind(column, moment))[0] == at_ms
        for kind in (LessThan, LessThanOrEqual):
            assert times(kind(column, moment))[1] == at_ms + 1


@given(at_ms=st.integers(0, LAST_MS - 1), beyond_us=st.integers(0, 999))
@example(at_ms=IN_2038_MS, beyond_us=0)
@example(at_ms=LAST_MS - 1, beyond_us=999)
def test_times_of_a_log_s_files_are_chosen_to_the_millisecond(at_ms: int, beyond_us: int) -> None:
    """Spark doesn't look at these rows again."""
    first = at_ms + bool(beyond_us)
    for moment in moments(at_ms, beyond_us):
        reader = CommitLogReader("somewhere", Wanted())
        since, until = (kind(("store_time",), moment) for kind in (GreaterThanOrEqual, LessThan))
        assert [*reader.pushFilters([since, until])] == []
        assert (reader.wanted.from_ms, reader.wanted.until_ms) == (first, first)
