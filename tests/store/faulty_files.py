"""The simulator's disk, with what tests of the store look at: every call, and every byte.

It adds to `chaos.sim.disk` and changes nothing of what a power cut, a failed fsync or a full disk
does there.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, MutableSequence, Sequence
from pathlib import Path
from random import Random
from typing import Any

from chaos.sim import disk
from store.files import Handle


class SimulatedDisk(disk.SimulatedDisk):
    """One machine's disk. `calls` lists `(operation, file name)` in order, `before` is called
    before each, `pin_refusal` is what `pin` answers."""

    def __init__(self, capacity_bytes: int = 1 << 40) -> None:
        super().__init__()
        self.capacity_bytes = capacity_bytes
        self.calls: list[tuple[str, str]] = []
        self.before: Callable[[str, str], None] = lambda _operation, _name: None
        self.pin_refusal: str | None = None

    def power_cut(self, chance: Random | None = None) -> None:
        """The machine goes off and on; without a random source nothing unsynced survives."""
        self.power_off(chance or _Unlucky())
        self.power_on()

    def clone(self) -> SimulatedDisk:
        """An independent disk with the same bytes; no file is open on it."""
        other = SimulatedDisk(self.capacity_bytes)
        other._root = copy.deepcopy(self._root)
        return other

    def bytes_of(self, path: Path) -> bytearray:
        """The bytes of a file, to look at or to spoil: a change is on the platter as well."""
        file = self._file(path)
        file.sync()
        file.content.extend(bytes(file.size - len(file.content)))
        file.durable, file.durable_size = file.content, file.size
        return file.content

    def resize(self, path: Path, size: int) -> None:
        """The file has `size` bytes, on the platter as well."""
        self._file(path).resize(size)
        self._file(path).sync()

    def durable_content(self, path: Path) -> bytes:
        """What a power cut now would leave of a file; empty if its name isn't durable."""
        return self.durable(path) or b""

    def open_handles(self) -> list[int]:
        """Handles that nobody has closed."""
        return sorted(self._open)

    def count(self, operation: str, name: str = "") -> int:
        """How often `operation` was called on files whose names hold `name`."""
        return sum(done == operation and name in on for done, on in self.calls)

    def pin(self, handle: Handle) -> str | None:
        super().pin(handle)
        return self.pin_refusal

    def _note(self, operation: str, path: Path) -> None:
        self.calls.append((operation, path.name))
        self.before(operation, path.name)
        super()._note(operation, path)


class _Unlucky(Random):
    """Chance as bad as it can be: whatever may be lost is lost."""

    def random(self) -> float:
        return 1.0

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        return 0

    def choice(self, seq: Any) -> Any:
        return seq[0]

    def shuffle(self, x: MutableSequence[Any]) -> None:
        raise NotImplementedError

    def sample(self, population: Sequence[Any], k: int, **_: Any) -> list[Any]:
        raise NotImplementedError
