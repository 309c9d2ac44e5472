"""Codecs of bodies as parameters of tests. Where a codec's library isn't installed, what needs it
is skipped; the tests of the wheel hold that an installation brings them all."""

from __future__ import annotations

from typing import Any

import pytest

from dledger.records.compression import Codec, check_installed
from dledger.records.errors import CodecMissing


def is_installed(codec: Codec) -> bool:
    """Whether its library can be loaded here."""
    try:
        check_installed(codec)
    except CodecMissing:
        return False
    return True


HERE = [codec for codec in Codec if is_installed(codec)]
EACH: list[Any] = [
    pytest.param(
        codec,
        id=codec.name.lower(),
        marks=pytest.mark.skipif(codec not in HERE, reason="its library isn't installed"),
    )
    for codec in Codec
]
