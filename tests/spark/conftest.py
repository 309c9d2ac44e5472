"""One real node for the tables' tests, and what they all read and write."""

from __future__ import annotations

from dledger.testing.fixtures import dledger_group, dledger_three

__all__ = ["dledger_group", "dledger_three"]
