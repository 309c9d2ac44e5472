"""The newest frames, in memory.

Reading what was just appended should cost no system call, and what the flusher hasn't written yet
can be read from nowhere else. This holds both: a frame leaves when it is among the oldest beyond
the capacity *and* has been written. It must never drop an unwritten frame, so its size is bounded
by the capacity plus what is waiting for the flusher, which the log's user bounds.
"""

from __future__ import annotations

from store.files import Buffer


class TailCache:
    """Frames `[first_index, next_index)` as tuples of buffers. Owner thread only.

    Args:
        capacity_bytes: what is kept of frames that could be read from the file.
        next_index: the index of the first frame that will be added.
    """

    def __init__(self, capacity_bytes: int, next_index: int) -> None:
        self.first_index = next_index
        self.next_index = next_index
        self.size_bytes = 0
        self._capacity_bytes = capacity_bytes
        self._frames: dict[int, tuple[tuple[Buffer, ...], int, int]] = {}

    def add(self, parts: tuple[Buffer, ...], size: int, sequence: int) -> None:
        """The next frame is `parts`, `size` bytes in all; `sequence` is its write's number."""
        self._frames[self.next_index] = (parts, size, sequence)
        self.next_index += 1
        self.size_bytes += size

    def evict(self, written_sequence: int) -> None:
        """The oldest frames beyond the capacity are gone if their write number is
        `written_sequence` at most. Amortised: each frame is evicted once."""
        while self.size_bytes > self._capacity_bytes and self.first_index < self.next_index:
            _, size, sequence = self._frames[self.first_index]
            if sequence > written_sequence:
                return
            del self._frames[self.first_index]
            self.first_index += 1
            self.size_bytes -= size

    def truncate_from(self, index: int) -> None:
        """`index` and everything after it are forgotten; `index` is added next."""
        for each in range(max(index, self.first_index), self.next_index):
            self.size_bytes -= self._frames.pop(each)[1]
        self.first_index = min(self.first_index, index)
        self.next_index = index

    def collect(self, first: int, last: int, into: list[Buffer]) -> None:
        """The buffers of frames `[first, last]`, all of which are held, are appended to `into`."""
        frames = self._frames
        for index in range(first, last + 1):
            into.extend(frames[index][0])

    def head(self, index: int) -> Buffer:
        """The first buffer of a frame that is held: its header at least."""
        return self._frames[index][0][0]

    def copy(self, index: int, skip: int, size: int) -> bytes:
        """`size` bytes from byte `skip` of a frame that is held, on into the next ones."""
        pieces: list[Buffer] = []
        while size > 0:
            for part in self._frames[index][0]:
                if skip >= len(part):
                    skip -= len(part)
                    continue
                piece = memoryview(part)[skip : skip + size]
                pieces.append(piece)
                size -= len(piece)
                skip = 0
            index += 1
        return b"".join(pieces)
