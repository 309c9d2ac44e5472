"""Who reads the log's bytes for an audit: the port of its two passes over all of them.

An audit says which blocks it wants digests of, and which segments are to be walked; what comes back
is judged in the same way wherever it comes from. `Reading` reads all of it. A watch has proved
most of it before, and reads what its port doesn't believe (`audit.keeping`, ADR 35); what it did
believe the verdict's scope says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from audit.engines.engine import Engine, Progress
from audit.proof.chain import Chain, ChainTask, read_chain
from audit.proof.digest import PartDigests, digest_blocks
from audit.proof.plan import DigestTask
from audit.proof.scope import Believed


class Passes(Protocol):
    """Reads, or knows."""

    def digests(
        self, engine: Engine, tasks: Sequence[DigestTask], progress: Progress
    ) -> list[list[PartDigests]]:
        """The digests of all parts of all tasks; parts that have a problem in the tasks' order."""
        ...

    def chains(self, engine: Engine, tasks: Sequence[ChainTask], progress: Progress) -> list[Chain]:
        """What each segment holds, in the tasks' order."""
        ...

    def believed(self) -> Believed | None:
        """How much of what was given wasn't read now; None if everything was."""
        ...


P = TypeVar("P", DigestTask, ChainTask)


def paced(engine: Engine, tasks: Sequence[P], bytes_per_s: float) -> list[P]:
    """The same tasks, which together read so fast. It is divided by how many run at once, which
    for a small audit is one, whatever the engine could."""
    rate = bytes_per_s / engine.width(tasks)
    return [replace(task, bytes_per_s=rate) for task in tasks]


@dataclass(frozen=True, slots=True)
class Reading:
    """Reads everything, at `bytes_per_s`; 0: as fast as it goes."""

    bytes_per_s: float = 0

    def digests(
        self, engine: Engine, tasks: Sequence[DigestTask], progress: Progress
    ) -> list[list[PartDigests]]:
        """See `Passes.digests`."""
        return engine.run(digest_blocks, paced(engine, tasks, self.bytes_per_s), progress)

    def chains(self, engine: Engine, tasks: Sequence[ChainTask], progress: Progress) -> list[Chain]:
        """See `Passes.chains`."""
        return engine.run(read_chain, paced(engine, tasks, self.bytes_per_s), progress)

    def believed(self) -> Believed | None:
        """See `Passes.believed`."""
        return None
