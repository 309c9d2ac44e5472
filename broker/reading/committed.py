"""The CommitLog, as far as it may be told to somebody: what is committed.

Answers come from the entries' own headers; nothing is cached here. An offset that lies in no entry,
or beyond what is committed, has no answer rather than an error: callers ask with offsets that
people typed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from dledger.core.types import CoreStatistics, EntryKind
from dledger.reading.compound import data_in
from dledger.reading.entry import EntryHeader, preamble_of
from dledger.reading.log_start import LogStart
from dledger.records.errors import InvalidFrame
from dledger.records.record import DecodedRecord, decode_records, record_end
from store.errors import StoreError


class EntryLog(Protocol):
    """`store.commitlog.CommitLog`, as far as it is read here."""

    @property
    def start(self) -> LogStart: ...
    @property
    def first_index(self) -> int: ...
    @property
    def last_term(self) -> int: ...
    @property
    def end_offset(self) -> int: ...
    def position_of(self, index: int) -> int: ...
    def header_at(self, index: int) -> EntryHeader: ...
    def index_at(self, physical_offset: int) -> int: ...
    def digest_at(self, index: int) -> int: ...
    def read(self, first: int, last: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class LogEnds:
    """Where a log begins and ends. Offsets are physical, one past the last byte."""

    first_index: int
    last_term: int
    end_offset: int
    committed_offset: int
    committed_digest: int


def _always(record: DecodedRecord, incarnation: int) -> bool:
    return True


class CommittedLog:
    """A replica's log and how far it has come."""

    def __init__(
        self,
        log: EntryLog,
        *,
        applied_index: Callable[[], int],
        core: Callable[[], CoreStatistics],
        took_effect: Callable[[DecodedRecord, int], bool] = _always,
    ) -> None:
        """Args:
        took_effect: whether a record of a unit, of the topic with that incarnation, did so with
            it (ADR 54).
        """
        self._took_effect = took_effect
        self._log = log
        self._applied_index = applied_index
        self._core = core

    @property
    def first_index(self) -> int:
        """The first entry held."""
        return self._log.first_index

    def retired_end(self) -> int:
        """Physical offset behind the last entry before the first that is held, which is the last
        one of its segment; 0 where the log begins with entry 1."""
        return self._log.start.end_offset

    def ends(self) -> LogEnds:
        """A frozen picture, as of now."""
        commit = self._core().commit_index
        return LogEnds(
            first_index=self._log.first_index,
            last_term=self._log.last_term,
            end_offset=self._log.end_offset,
            committed_offset=self.end_of_entry(commit),
            committed_digest=self._log.digest_at(commit) if commit else 0,
        )

    def end_of_entry(self, index: int) -> int:
        """The byte after entry `index`, which is held, or the last one before; 0 for index 0."""
        start = self._log.start
        if index == start.index:
            return start.end_offset
        return self._log.position_of(index) + self._log.header_at(index).total_size

    def durable_end(self) -> int:
        """Bytes that are committed and on this node's disk: a leader may commit by its followers'
        disks before its own write is done, and what isn't written yet would look like zeros."""
        core = self._core()
        return self.end_of_entry(min(core.commit_index, core.durable_index))

    def record_at(self, physical_offset: int) -> bytes | None:
        """The record that begins at `physical_offset`, if it is applied; None otherwise."""
        if not 0 <= physical_offset < self.end_of_entry(self._applied_index()):
            return None
        try:
            index = self._log.index_at(physical_offset)
        except StoreError:
            return None
        header = self._log.header_at(index)
        if not header.is_known or header.kind != EntryKind.DATA:
            return None
        try:
            batches = list(data_in(header, self._log.read(index, index)))
        except InvalidFrame:
            return None  # void, with all that is in it
        for alone, frame in batches:
            record = _record_in(alone, frame, physical_offset - alone.physical_offset)
            if record is not None:
                if header.is_compound:
                    incarnation = preamble_of(alone, frame).incarnation
                    if not self._took_effect(decode_records(record)[0], incarnation):
                        return None
                return record
        return None


def _record_in(header: EntryHeader, frame: bytes, at: int) -> bytes | None:
    """The record that begins at byte `at` of a data entry; None if none does."""
    if not header.first_record_at <= at < len(frame):
        return None
    end = record_end(frame, header.first_record_at, header.record_count, at)
    return None if end is None else frame[at:end]
