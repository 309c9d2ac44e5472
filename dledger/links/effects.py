"""What a link asks for: each is carried out once, in the order in which it was handed out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Why(Enum):
    """Why a call is ended from this side."""

    TOO_LATE = "it took too long"
    LOST = "another attempt won"
    SILENT = "nothing was heard on it"
    REPLACED = "a newer stream took its place"
    CROWDED = "too many streams of this peer are in use"
    REFUSED = "the peer refuses this node"
    OTHER_DISK = "the group knows that peer on another disk now"
    STOPPED = "the node stops"


@dataclass(frozen=True, slots=True)
class Dial:
    """Start a call to the peer; its Hello goes out first."""

    generation: int


@dataclass(frozen=True, slots=True)
class End:
    """End that call, dialed or accepted. Nothing that it still says matters."""

    generation: int
    why: Why


@dataclass(frozen=True, slots=True)
class Ping:
    """Say something on that stream that has to be answered."""

    generation: int


@dataclass(frozen=True, slots=True)
class Adopted:
    """A stream that the peer dialed is in use: the peer lives and reaches this node."""

    generation: int


@dataclass(frozen=True, slots=True)
class Broken:
    """There is no stream in this direction any more: what was under way may be lost."""


Effect = Dial | End | Ping | Adopted | Broken
