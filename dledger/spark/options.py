"""Options of the tables: text into values, and one sentence where that can't be done.

Every refusal names the option. A name that nobody reads is refused too: of a misspelt option that
is passed over, nobody hears.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Final

from dledger.reading.schema import COLUMNS
from dledger.spark.errors import BadOption

# What Spark itself puts among a source's options; of a table in its catalog, the table's own
# properties, and each option a second time under a longer name.
SPARKS_OWN: Final = frozenset(
    (
        *("checkpointlocation", "path", "queryname", "provider", "location", "owner", "comment"),
        *("external", "is_managed_location", "serialization.format", "collation"),
    )
)
_AGAIN: Final = "option."


def check_names(options: Mapping[str, str], known: Collection[str]) -> None:
    """Nothing else is asked for than `known`.

    Raises:
        BadOption: something is.
    """
    lowered = {name.lower() for name in known}
    for name in options:
        known_name = name.lower().removeprefix(_AGAIN)
        if known_name not in lowered | SPARKS_OWN:
            raise BadOption(f"no option {name!r}; there are {', '.join(known)}")


def count(options: Mapping[str, str], name: str, default: int) -> int:
    """A number from 1 on.

    Raises:
        BadOption: it is none.
    """
    text = options.get(name, str(default))
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 1 << 63:
        raise BadOption(f"{name} is {text!r}: a number from 1 on is wanted")
    return int(text)


def seconds(options: Mapping[str, str], name: str, default: float) -> float:
    """A time above 0, an hour at most.

    Raises:
        BadOption: it is none.
    """
    text = options.get(name, str(default))
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found <= 3600:
        raise BadOption(f"{name} is {text!r}: seconds are wanted, above 0, 3600 at most")
    return found


def is_true(options: Mapping[str, str], name: str, default: str = "true") -> bool:
    """Whether it says so.

    Raises:
        BadOption: it says neither true nor false.
    """
    text = options.get(name, default).lower()
    if text not in ("true", "false"):
        raise BadOption(f"{name} is {text!r}: true or false is wanted")
    return text == "true"


def names(options: Mapping[str, str], name: str) -> tuple[str, ...]:
    """A comma-separated list, each name once; empty if it isn't given.

    Raises:
        BadOption: a name in it is empty or stands twice.
    """
    text = options.get(name, "").strip()
    if not text:
        return ()
    found = tuple(part.strip() for part in text.split(","))
    if not all(found) or len(set(found)) < len(found):
        raise BadOption(f"{name} is {text!r}: names are wanted, each once, with commas between")
    return found


def columns(options: Mapping[str, str], known: tuple[str, ...] = COLUMNS) -> tuple[str, ...]:
    """The choice of columns; all that are known, if there is none.

    Raises:
        BadOption: one isn't known.
    """
    chosen = names(options, "columns")
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise BadOption(f"no column {unknown[0]!r} (columns); there are {', '.join(known)}")
    return chosen or known


def milliseconds(options: Mapping[str, str], name: str) -> int | None:
    """A time since the epoch; None if it isn't given.

    Raises:
        BadOption: it is no time.
    """
    text = options.get(name)
    if not text:
        return None
    try:
        found = int(text)
    except ValueError:
        found = -1
    if not 0 <= found < 1 << 63:
        raise BadOption(f"{name} is {text!r}: milliseconds since the epoch are wanted")
    return found


def by_queue(text: str, name: str) -> dict[str, dict[int, int]]:
    """JSON as Spark's Kafka source has it, `{"topic": {"0": 23, "1": -2}}`.

    Raises:
        BadOption: it is something else.
    """
    wanted = 'JSON is wanted, {"topic": {"queue": number}}'
    try:
        given = json.loads(text)
        return {
            str(topic): {_queue_id(queue): _number(value) for queue, value in queues.items()}
            for topic, queues in given.items()
        }
    except (ValueError, AttributeError, RecursionError) as error:
        raise BadOption(f"{name} is {text[:200]!r}: {wanted}") from error


def _queue_id(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise ValueError(text)
    return int(text)


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= 1 << 63:
        raise ValueError(value)
    return value
