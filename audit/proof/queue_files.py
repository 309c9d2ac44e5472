"""Reading the ConsumeQueues of one replica: which folder is a topic's, and the units in it.

Nothing here judges a unit. A file that is missing or short gives fewer units than were asked for.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from dledger.reading.files import open_to_read, read_at
from dledger.records.layout import UNITS_PER_FILE, file_name, topic_folder
from dledger.records.record import TOPIC_PATTERN
from store.dispatch import UNIT_SIZE

FILE_BYTES: Final = UNITS_PER_FILE * UNIT_SIZE
_OPEN_FILES: Final = 128

QueueKey = tuple[str, int]  # folder of the topic, queue id


class QueueFiles:
    """Reads units of a replica's ConsumeQueues; the last files used stay open."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._open: OrderedDict[str, int] = OrderedDict()
        self._incarnations: dict[str, list[int]] = {}
        for name in _topics_in(root):
            topic, _, incarnation = name.partition("@")
            if incarnation.isdecimal():
                self._incarnations.setdefault(topic, []).append(int(incarnation))

    def folder(self, topic: str, incarnation: int, index: int) -> str:
        """Where the units of entry `index` are. An entry of version 1 doesn't say which topic of
        its name it is for: the one that was created last before it, if its folder tells that."""
        if incarnation:
            return topic_folder(topic, incarnation)
        created = [each for each in self._incarnations.get(topic, ()) if each < index]
        return topic_folder(topic, max(created)) if created else topic

    def units(self, queue: QueueKey, first: int, count: int) -> bytes:
        """The units from offset `first` on; fewer where a file is missing or short."""
        pieces: list[bytes] = []
        at, left = first * UNIT_SIZE, count * UNIT_SIZE
        while left > 0:
            base = at - at % FILE_BYTES
            size = min(left, base + FILE_BYTES - at)
            piece = self._read(queue, base, size, at - base)
            pieces.append(piece)
            if len(piece) < size:
                break
            at, left = at + size, left - size
        return b"".join(pieces)

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])

    def _read(self, queue: QueueKey, base: int, size: int, at: int) -> bytes:
        if TOPIC_PATTERN.fullmatch(queue[0].partition("@")[0]) is None:
            return b""
        path = os.path.join(self._root, queue[0], str(queue[1]), file_name(base))
        descriptor = self._open.get(path)
        try:
            if descriptor is None:
                descriptor = open_to_read(path)
                self._open[path] = descriptor
                if len(self._open) > _OPEN_FILES:
                    os.close(self._open.popitem(last=False)[1])
            else:
                self._open.move_to_end(path)
            return read_at(descriptor, size, at)
        except OSError:
            return b""


def _topics_in(root: str) -> list[str]:
    """What is in the folder; nothing where it can't be listed, which its survey tells."""
    try:
        return os.listdir(root)
    except OSError:
        return []


def is_deleted(folder: str, deleted: Iterable[str]) -> bool:
    """Whether the topic whose queues are in `folder` is among the deleted ones: those that are
    named with their incarnation, and those of older releases by the name alone."""
    name, _, incarnation = folder.partition("@")
    for each in deleted:
        other, _, other_incarnation = each.partition("@")
        same = not incarnation or not other_incarnation or incarnation == other_incarnation
        if name == other and same:
            return True
    return False
