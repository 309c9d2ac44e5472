"""Errors of the formats: bytes that are not what they were taken for, each with its facts.

    FormatError
    ├── InvalidRecord       bytes that a producer sent as RocketMQ records are not
    ├── InvalidProperties   a property's name or value can't be encoded
    ├── BodyUnreadable      a compressed body can't be decompressed
    │   └── CodecMissing    ... here: the library for it isn't installed
    ├── InvalidFrame        bytes that were taken for an entry frame are not one
    ├── AppendRefused       a frame that doesn't continue the log, or can never fit a segment
    ├── BadEvent            a line is no event of a client's history, or doesn't fit those before it
    └── HistoryCorrupt      a history that can't be used, with the line that says so

None is `retriable` (the same bytes stay wrong), and what raised one did nothing.
"""

from __future__ import annotations

from typing import ClassVar

from dledger.outcome import ExitCode, Outcome


class FormatError(Exception):
    """Root of the formats' errors."""

    retriable: ClassVar[bool] = False
    outcome: ClassVar[Outcome] = Outcome.DID_NOT_HAPPEN
    exit_code: ClassVar[ExitCode] = ExitCode.FAILED


class InvalidRecord(FormatError):
    """A record lies about itself. `position` is the record's first byte in the checked buffer."""

    def __init__(self, position: int, field: str, expected: object, found: object) -> None:
        super().__init__(
            f"invalid record at byte {position}: {field} should be {expected}, is {found}"
        )
        self.position = position
        self.field = field
        self.expected = expected
        self.found = found


class InvalidProperties(FormatError):
    """A property holds a separator byte, or all of them together are too long."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"property {name!r} can't be encoded: {reason}")
        self.name = name
        self.reason = reason


class BodyUnreadable(FormatError):
    """A compressed body is broken, too large, or of a codec that isn't known here."""

    def __init__(self, codec: str, reason: str) -> None:
        super().__init__(f"the body, compressed with {codec}, can't be read: {reason}")
        self.codec = codec
        self.reason = reason


class CodecMissing(BodyUnreadable):
    """The library that reads and writes bodies of this codec isn't installed."""

    exit_code = ExitCode.USAGE

    def __init__(self, codec: str, package: str) -> None:
        super().__init__(codec, f"the package {package!r} isn't installed: pip install {package}")
        self.package = package


class InvalidFrame(FormatError):
    """Not an intact entry frame. `position` is the frame's first byte in the checked buffer."""

    def __init__(self, position: int, field: str, expected: object, found: object) -> None:
        super().__init__(
            f"invalid entry frame at byte {position}: {field} should be {expected}, is {found}"
        )
        self.position = position
        self.field = field
        self.expected = expected
        self.found = found


class AppendRefused(FormatError):
    """The entry doesn't continue this log; nothing was appended."""

    def __init__(self, field: str, expected: object, found: object) -> None:
        super().__init__(f"entry can't be appended: {field} should be {expected}, is {found}")
        self.field = field
        self.expected = expected
        self.found = found


class BadEvent(FormatError):
    """A line of a history is no event, or none that fits those before it; the text says why."""


class HistoryCorrupt(FormatError):
    """A history can't be used: line `line` (from 1) of `file` isn't what it should be."""

    exit_code = ExitCode.USAGE

    def __init__(self, file: str, line: int, reason: str) -> None:
        super().__init__(f"{file}, line {line}: {reason}")
        self.file = file
        self.line = line
        self.reason = reason
