"""What is to fail now: one small JSON file, replaced as a whole by the tester, read by the node.

The node looks at the file's identity before each operation that may fail (a stat, about a
microsecond) and reads it only when it was replaced. A file that can't be understood stops the
node: a fault that was silently not injected would make a test pass that tested nothing.
"""

from __future__ import annotations

import errno
import json
import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Final

ORDERS_FILE: Final = "orders.json"
UNDO_FOLDER: Final = "undo"
FAILABLE: Final = ("pread", "pwritev", "fdatasync", "fsync", "fsync_directory", "fallocate")


class OrdersBroken(Exception):
    """The orders file isn't what it should be."""

    def __init__(self, file: Path, reason: str) -> None:
        super().__init__(f"{file}: {reason}")
        self.file = file
        self.reason = reason


@dataclass(frozen=True, slots=True)
class ClockFault:
    """How the wall clock is wrong; see `chaos.faults.clock`.

    Attributes:
        offset_ms: it is off by so much, all the time.
        rate: how many of its seconds pass in one, counted from `since_ms` on.
        since_ms: real milliseconds since the epoch.
        strobe_ms: it is off by so much more in every other period
        strobe_period_ms: of this length.
    """

    offset_ms: int = 0
    rate: float = 1.0
    since_ms: float = 0.0
    strobe_ms: int = 0
    strobe_period_ms: int = 1


@dataclass(frozen=True, slots=True)
class FaultOrders:
    """What fails.

    Attributes:
        failing: operation (one of `FAILABLE`) to the name of the errno it fails with.
        sync_delay_ms: how much longer each sync takes.
        free_bytes: how much more the disk takes from the moment of the order on, to the byte;
            None: all that fits. What is deleted meanwhile can be taken again.
        clock: how the wall clock is wrong; several errors add up.
    """

    failing: dict[str, str] = field(default_factory=dict)
    sync_delay_ms: int = 0
    free_bytes: int | None = None
    clock: tuple[ClockFault, ...] = ()

    def and_also(self, other: FaultOrders) -> FaultOrders:
        """Both at once: where only one can hold, `other`'s failures and limit, the longer delay."""
        return FaultOrders(
            failing={**self.failing, **other.failing},
            sync_delay_ms=max(self.sync_delay_ms, other.sync_delay_ms),
            free_bytes=self.free_bytes if other.free_bytes is None else other.free_bytes,
            clock=(*self.clock, *other.clock),
        )

    def errno_of(self, operation: str) -> int | None:
        """What `operation` fails with; None if it doesn't."""
        name = self.failing.get(operation)
        return None if name is None else int(getattr(errno, name))


NO_FAULTS: Final = FaultOrders()


def give_orders(directory: Path, orders: FaultOrders) -> None:
    """Nodes whose faults folder is `directory` follow `orders` from their next operation on.

    Raises:
        OrdersBroken: an operation or an errno that doesn't exist.
    """
    _check(orders, directory / ORDERS_FILE)
    new = directory / (ORDERS_FILE + ".new")
    new.write_text(json.dumps(asdict(orders)), encoding="utf-8")
    os.replace(new, directory / ORDERS_FILE)


class Orders:
    """The node's view of its orders; any thread may ask.

    Raises:
        OSError: the folder can't be made.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.undo_folder = directory / UNDO_FOLDER
        self.undo_folder.mkdir(parents=True, exist_ok=True)
        self._file = str(directory / ORDERS_FILE)
        self._known: tuple[tuple[int, int] | None, FaultOrders] = (None, NO_FAULTS)

    def current(self) -> FaultOrders:
        """What fails now.

        Raises:
            OrdersBroken: the file makes no sense.
        """
        try:
            stat = os.stat(self._file)
        except FileNotFoundError:
            return NO_FAULTS
        identity = (stat.st_ino, stat.st_mtime_ns)
        known, orders = self._known
        if identity != known:
            orders = _read(Path(self._file))
            self._known = (identity, orders)
        return orders


def _read(file: Path) -> FaultOrders:
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise OrdersBroken(file, f"is no JSON: {error}") from error
    names = {each.name for each in fields(FaultOrders)}
    if not isinstance(document, dict) or not document.keys() <= names:
        raise OrdersBroken(file, f"is no object of {', '.join(sorted(names))}")
    try:
        clock = tuple(ClockFault(**each) for each in document.pop("clock", ()))
    except TypeError as error:
        raise OrdersBroken(file, f"clock: {error}") from error
    orders = FaultOrders(**document, clock=clock)
    _check(orders, file)
    return orders


def _check(orders: FaultOrders, file: Path) -> None:
    for operation, name in orders.failing.items():
        if operation not in FAILABLE:
            raise OrdersBroken(file, f"{operation!r} is none of {', '.join(FAILABLE)}")
        if name not in errno.errorcode.values():
            raise OrdersBroken(file, f"{name!r} is no errno")
    for fault in orders.clock:
        if fault.rate <= 0 or fault.strobe_period_ms < 1:
            raise OrdersBroken(file, f"no clock runs so: {fault}")
