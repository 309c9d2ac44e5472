"""The newest frames, in memory.

Reading what was just appended should cost no system call, and what the flusher hasn't written yet
can be read from nowhere else. This holds both: a frame leaves when it is among the oldest beyond
the capacity *and* has been written. It must never drop an unwritten frame, so its size is bounded
by the capacity plus what is waiting for the flusher, which the log's user bounds.

Frames are kept in blocks, so that cutting a hundred thousand of them off moves a few hundred
blocks; their memory is given back a block at a time, with each append that follows.
"""

from __future__ import annotations

from typing import Final

from store.files import Buffer

BLOCK_FRAMES: Final = 256

Frame = tuple[tuple[Buffer, ...], int, int]  # its buffers, its size, its write's number
_NOTHING: Final[Frame] = ((), 0, 0)


class _Block:
    """The frames whose indexes agree but for the lowest bits. `size` is of those held."""

    __slots__ = ("frames", "size")

    def __init__(self, missing: int) -> None:
        self.frames: list[Frame] = [_NOTHING] * missing
        self.size = 0


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
        self._blocks: dict[int, _Block] = {}
        self._dropped: list[_Block] = []  # cut off, and not given back yet

    def add(self, parts: tuple[Buffer, ...], size: int, sequence: int) -> None:
        """The next frame is `parts`, `size` bytes in all; `sequence` is its write's number."""
        number, slot = divmod(self.next_index, BLOCK_FRAMES)
        block = self._blocks.get(number)
        if block is None:
            block = self._blocks[number] = _Block(slot)
        block.frames.append((parts, size, sequence))
        block.size += size
        self.next_index += 1
        self.size_bytes += size

    def evict(self, written_sequence: int) -> None:
        """The oldest frames beyond the capacity are gone if their write number is
        `written_sequence` at most. Amortised: each frame is evicted once."""
        if self._dropped:
            self._dropped.pop()
        while self.size_bytes > self._capacity_bytes and self.first_index < self.next_index:
            number, slot = divmod(self.first_index, BLOCK_FRAMES)
            block = self._blocks[number]
            _, size, sequence = block.frames[slot]
            if sequence > written_sequence:
                return
            block.frames[slot] = _NOTHING
            block.size -= size
            self.first_index += 1
            self.size_bytes -= size
            if slot + 1 == BLOCK_FRAMES:
                del self._blocks[number]

    def truncate_from(self, index: int) -> None:
        """`index` and everything after it are forgotten; `index` is added next."""
        first = max(index, self.first_index)
        number, slot = divmod(first, BLOCK_FRAMES)
        last = (self.next_index - 1) // BLOCK_FRAMES
        for each in range(number if slot == 0 else number + 1, last + 1):
            block = self._blocks.pop(each)
            self.size_bytes -= block.size
            self._dropped.append(block)
        cut = self._blocks.get(number)
        if slot and cut is not None:
            size = sum(frame[1] for frame in cut.frames[slot:])
            del cut.frames[slot:]
            cut.size -= size
            self.size_bytes -= size
        if index < self.first_index:
            self._dropped += self._blocks.values()
            self._blocks.clear()
            self.first_index = index
        self.next_index = index

    def collect(self, first: int, last: int, into: list[Buffer]) -> None:
        """The buffers of frames `[first, last]`, all of which are held, are appended to `into`."""
        at = first
        while at <= last:
            number, slot = divmod(at, BLOCK_FRAMES)
            for frame in self._blocks[number].frames[slot : slot + last + 1 - at]:
                into.extend(frame[0])
            at += BLOCK_FRAMES - slot

    def head(self, index: int) -> Buffer:
        """The first buffer of a frame that is held: its header at least."""
        return self._parts(index)[0]

    def copy(self, index: int, skip: int, size: int) -> bytes:
        """`size` bytes from byte `skip` of a frame that is held, on into the next ones."""
        pieces: list[Buffer] = []
        while size > 0:
            for part in self._parts(index):
                if skip >= len(part):
                    skip -= len(part)
                    continue
                piece = memoryview(part)[skip : skip + size]
                pieces.append(piece)
                size -= len(piece)
                skip = 0
            index += 1
        return b"".join(pieces)

    def _parts(self, index: int) -> tuple[Buffer, ...]:
        number, slot = divmod(index, BLOCK_FRAMES)
        return self._blocks[number].frames[slot][0]
