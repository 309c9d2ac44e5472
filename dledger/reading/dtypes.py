"""Numpy dtypes of the layouts, for those who look at many entries or records at once.

This is the one way from `dledger.records.layout` to numpy, so that a column can't lie elsewhere
than the field it is read from. It stands apart from the layouts because the client needs those
and has no numpy.
"""

from __future__ import annotations

import numpy as np

from dledger.records.layout import Layout


def dtype_of(layout: Layout, *names: str) -> np.dtype[np.void]:
    """A structured dtype as wide as the layout's fixed fields; of the named ones, or of all."""
    fields = [layout[name] for name in names] or layout.fixed
    return np.dtype(
        {
            "names": [field.name for field in fields],
            "formats": [_format(field.code) for field in fields],
            "offsets": [field.offset for field in fields],
            "itemsize": layout.size,
        }
    )


def _format(code: str) -> str:
    """Numpy's name for a code of `struct`, big-endian; bytes as they are, zeros at the end too."""
    return f"V{code[:-1]}" if code.endswith("s") else f">{code}"
