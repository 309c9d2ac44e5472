"""What filters leave of a reading, as far as ranges of queues can be chosen by it.

Spark applies every filter to the rows again. So what is left here may be too much and must never be
too little: times are rounded outwards, and a filter that isn't understood narrows nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

FAR: Final = (1 << 63) - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Narrowed:
    """What filters leave of a reading: topics and queues (None: all), offsets and store times in
    `[first, behind)`."""

    topics: frozenset[str] | None = None
    queues: frozenset[int] | None = None
    offsets: tuple[int, int] = (0, FAR)
    times_ms: tuple[int, int] = (0, FAR)

    def by(self, given: Filter) -> Narrowed:
        """Narrowed by one filter more, if that is of a kind that ranges can be chosen by."""
        match given:
            case EqualTo(("topic",), str(topic)):
                return self._of_topics({topic})
            case In(("topic",), topics):
                return self._of_topics({each for each in topics if isinstance(each, str)})
            case EqualTo(("queue_id",), int(queue_id)):
                return self._of_queues({queue_id})
            case In(("queue_id",), queues):
                return self._of_queues({each for each in queues if isinstance(each, int)})
            case _:
                return self._between(given)

    def _of_topics(self, topics: set[str]) -> Narrowed:
        known = self.topics
        return replace(self, topics=frozenset(topics if known is None else topics & known))

    def _of_queues(self, queues: set[int]) -> Narrowed:
        known = self.queues
        return replace(self, queues=frozenset(queues if known is None else queues & known))

    def _between(self, given: Filter) -> Narrowed:
        """By a comparison. Times are rounded outwards: Spark looks at every row again."""
        bounds = _bounds(given)
        if bounds is None:
            return self
        name, low, high = bounds
        known = self.offsets if name == "queue_offset" else self.times_ms
        both = (max(low, known[0]), min(high, known[1]))
        if name == "queue_offset":
            return replace(self, offsets=both)
        return replace(self, times_ms=both)


def _bounds(given: Filter) -> tuple[str, int, int] | None:
    """The column that is compared, and `[first, behind)` of its values."""
    attribute = getattr(given, "attribute", ())
    if attribute not in (("queue_offset",), ("store_time",)):
        return None
    value = getattr(given, "value", None)
    if isinstance(value, datetime):
        value = whole_milliseconds(value)
    if not isinstance(value, int):
        return None
    match given:
        case EqualTo():
            return attribute[0], value, value + 1
        case GreaterThan() | GreaterThanOrEqual():
            return attribute[0], value, FAR
        case LessThan() | LessThanOrEqual():
            return attribute[0], 0, value + 1
        case _:
            return None


def whole_milliseconds(moment: datetime) -> int:
    """Since the epoch, rounded down. By whole numbers: a time in a float isn't exact by 2038."""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (aware - _EPOCH) // _MILLISECOND
