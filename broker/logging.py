"""Structured logs: console on a terminal, JSON lines otherwise.

Events are past-tense snake_case, facts are fields, payloads never appear. This configures
structlog once per process; modules take their loggers with `structlog.get_logger(__name__)`.

A line that can't be written must never end who writes it, nor keep it from what it was about to do:
a full disk is one that a node lives with (ADR 28), and its log often lies on that very disk.
"""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any, Protocol

import structlog

from dledger.sparing import Sparing

log = structlog.get_logger(__name__)

KEY_LENGTH = 64  # of a text by which one complaint is known from another
TEXT_LENGTH = 2_000
# What gRPC raises where a caller went away while it was being answered: no traceback is of use.
CALLER_GONE = frozenset({"ExecuteBatchError"})
LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


class Stream(Protocol):
    """Where lines go. It may raise OSError, or ValueError once it is closed."""

    def write(self, text: str, /) -> int: ...
    def flush(self) -> None: ...


class Lines:
    """A stream of lines that never raises: those that it can't take are counted, and the first one
    that it takes again is followed by how many were lost."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._lost = 0

    def write(self, text: str) -> int:
        """The line is written, or counted."""
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            self._lost += 1
            return len(text)
        lost, self._lost = self._lost, 0
        if lost:
            log.warning("log_lines_lost", count=lost)
        return len(text)

    def flush(self) -> None:
        """`write` has done it."""


class LogFile:
    """A file to which lines are appended, and which can be opened anew under its name. Nothing is
    kept back in memory, so that a line is in the file or it is lost."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stream = self._open()
        self._is_torn = _ends_within_a_line(path)

    def reopen(self) -> None:
        """What is written from now on goes to the file that has the name now: the old one was
        renamed by who rotates logs. Where it can't be opened, the old one stays in use."""
        try:
            fresh = self._open()
        except OSError as error:
            log.error("log_file_not_reopened", path=str(self._path), error=str(error))
            return
        old, self._stream = self._stream, fresh
        self._is_torn = _ends_within_a_line(self._path)
        old.close()

    def write(self, text: str) -> int:
        """All of it is in the file.

        Raises:
            OSError: it isn't; what is there of it will not run into the next line.
        """
        rest = memoryview(("\n" + text if self._is_torn else text).encode())
        while rest:
            written = self._stream.write(rest)
            if not written:
                raise BlockingIOError(f"{self._path} takes nothing now")
            self._is_torn = True
            rest = rest[written:]
        self._is_torn = False
        return len(text)

    def flush(self) -> None:
        """`write` has done it."""

    def close(self) -> None:
        """Nothing more is written."""
        self._stream.close()

    def isatty(self) -> bool:
        """As a text stream does."""
        return self._stream.isatty()

    def _open(self) -> FileIO:
        return self._path.open("ab", buffering=0)


def _ends_within_a_line(path: Path) -> bool:
    """Whether the file does, as a process leaves it that found no more space; as far as it may be
    read, and if it is one: a pipe would have to be waited for."""
    with suppress(OSError):
        if path.is_file():
            with path.open("rb") as file:
                return (
                    bool(file.seek(0, os.SEEK_END))
                    and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n"
                )
    return False


def configure_logging(
    level: str, style: str, file: Path | None = None, **facts: str
) -> LogFile | None:
    """Every later log line goes to `file`, or standard error, with `facts` bound to it; the file.

    Args:
        level: debug, info, warning or error.
        style: console, json, or auto (console on a terminal).
        file: is appended to and kept open; None: standard error.
        facts: fields of every line, e.g. the node's id.
    """
    log_file = None if file is None else LogFile(file)
    stream: Any = sys.stderr if log_file is None else log_file
    console = style == "console" or (style == "auto" and stream.isatty())
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer(colors=stream.isatty())
        if console
        else structlog.processors.JSONRenderer()
    )

    def add_facts(
        logger: object, method: str, event: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        # Not context variables: callbacks of the flusher's thread would come without them.
        return {**facts, **event}

    structlog.configure(
        processors=[
            add_facts,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(_lines(stream)),
        cache_logger_on_first_use=False,
    )
    # grpc and asyncio log to the standard library: warnings and worse belong to our stream too.
    logging.basicConfig(level=logging.WARNING, handlers=[LibraryComplaints()], force=True)
    return log_file


def _lines(stream: Stream) -> Any:
    """For structlog, which writes and flushes, and asks for a whole text stream."""
    return Lines(stream)


class LibraryComplaints(logging.Handler):
    """What libraries log, as events of ours: one line each, and the same one once in a while.
    What a stranger does may make a library complain as often as the stranger likes."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._sparing = Sparing()

    def emit(self, record: logging.LogRecord) -> None:
        # By the text before what is put into it: the rest differs from one to the next.
        kind = record.exc_info[0].__name__ if record.exc_info and record.exc_info[0] else ""
        unreported = self._sparing.due((record.name, str(record.msg)[:KEY_LENGTH], kind))
        if unreported is None:
            return
        try:
            text = record.getMessage()
        except (TypeError, ValueError):
            text = str(record.msg)
        log.log(
            record.levelno,
            "library_complained",
            library=record.name,
            text=text[:TEXT_LENGTH],
            unreported=unreported,
            **({"exc_info": record.exc_info} if kind and kind not in CALLER_GONE else {}),
        )
