"""What a caller may conclude about an operation that raised: one enum for every error tree.

Each package has a family of errors of its own (`dledger.records.errors`, `dledger.client.errors`,
`store.errors`); each error says by this value whether its operation did not happen, or may have.
"""

from __future__ import annotations

from enum import Enum


class Outcome(Enum):
    """What the caller may conclude about the thing that was asked for."""

    DID_NOT_HAPPEN = "did not happen"
    MAY_HAVE_HAPPENED = "may have happened"
