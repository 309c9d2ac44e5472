"""A founding's name is its digest: two foundings that differ in anything have two names."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from dledger.core.types import DiskId
from store.starting.founding import Founding, configuration_bytes


def founding(disk: bytes) -> Founding:
    members = {"n1": DiskId(disk * 16)}
    return Founding("orders", 1 << 20, 1_000, configuration_bytes(members, {"n1": "h:1"}), True)


OTHERS: dict[str, Any] = {
    "broker_group": "bills",
    "segment_size_bytes": 2 << 20,
    "time_ms": 1_001,
    "configuration": founding(b"b").configuration,
    "is_adopted": False,
}


@pytest.mark.parametrize("field", [each.name for each in fields(Founding)])
def test_its_name_covers_every_field(field: str) -> None:
    one = founding(b"a")
    assert one.name == founding(b"a").name
    assert replace(one, **{field: OTHERS[field]}).name != one.name
