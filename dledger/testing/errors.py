"""What can go wrong with a group under test."""

from __future__ import annotations


class GroupFailed(Exception):
    """The program `dledger` could not do what the test asked for; the text is its own."""
