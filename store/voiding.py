"""Void units: what a ConsumeQueue holds of records that were refused with their unit (ADR 54).

Queue offsets are dense, so a refused record keeps its own, and no reader returns it. Its unit says
where the record lies, has no size, and carries a mark over both its place in the queue and in the
log: no unit turns into a void one by a flipped bit, nor does one that strayed from elsewhere. A
unit of zeros was never written and is none. The bytes are `dledger.records.layout.VOID_UNIT`.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from xxhash import xxh3_64_intdigest

from dledger.records import layout

_VOID: Final = layout.VOID_UNIT.struct()
_UNIT_SIZE: Final = layout.UNIT.size
_SIZE_AT: Final = layout.UNIT.at("size")
_NO_SIZE: Final = bytes(layout.UNIT["size"].size)
_PLACE: Final = Struct(">QQ")


def void_unit(queue_offset: int, physical_offset: int) -> bytes:
    """The void unit of the record at `physical_offset`."""
    mark = xxh3_64_intdigest(_PLACE.pack(queue_offset, physical_offset))
    return _VOID.pack(physical_offset, 0, mark)


def voided(units: bytes, base: int) -> bytes:
    """The void units of the same records; `base`: queue offset of the first."""
    physical = (
        int.from_bytes(units[at : at + 8], "big") for at in range(0, len(units), _UNIT_SIZE)
    )
    return b"".join(void_unit(base + number, each) for number, each in enumerate(physical))


def is_void(unit: bytes, queue_offset: int) -> bool:
    """Whether the unit is a void one, and of that place."""
    if unit[_SIZE_AT : _SIZE_AT + len(_NO_SIZE)] != _NO_SIZE:
        return False
    return unit == void_unit(queue_offset, int.from_bytes(unit[:_SIZE_AT], "big"))


def leading_voids(units: bytes, base: int) -> int:
    """How many of the units, from the first on, are void; `base`: queue offset of the first."""
    count = len(units) // _UNIT_SIZE
    for number in range(count):
        at = number * _UNIT_SIZE
        if not is_void(units[at : at + _UNIT_SIZE], base + number):
            return number
    return count
