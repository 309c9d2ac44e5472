"""Who reads the log's bytes for an audit: the port of its two passes over all of them.

An audit says which blocks it wants digests of, and which segments are to be walked; what comes back
is judged in the same way wherever it comes from. `Reading` reads all of it. A watch has proved
most of it before, and reads what its port doesn't believe (`audit.keeping`, ADR 35); what it did
believe the verdict's scope says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from audit.engines.engine import Engine, Progress
from audit.proof.chain import Chain, ReadTask
from audit.proof.digest import PartDigests, digest_blocks
from audit.proof.plan import DigestTask
from audit.proof.reading import read_chains
from audit.proof.scope import Believed


class Passes(Protocol):
    """Reads, or knows."""

    def digests(
        self, engine: Engine, tasks: Sequence[DigestTask], progress: Progress
    ) -> list[list[PartDigests]]:
        """The digests of all parts of all tasks; parts that have a problem in the tasks' order."""
        ...

    def chains(self, engine: Engine, tasks: Sequence[ReadTask], progress: Progress) -> list[Chain]:
        """What each segment holds, by each member, in their order."""
        ...

    def believed(self) -> Believed | None:
        """How much of what was given wasn't read now; None if everything was."""
        ...


def digested(
    engine: Engine, tasks: Sequence[DigestTask], bytes_per_s: float, progress: Progress
) -> list[list[PartDigests]]:
    """The digests of the tasks' parts, which together are read so fast. It is divided by how many
    tasks run at once, which for a small audit is one, whatever the engine could."""
    rate = bytes_per_s / engine.width(tasks)
    paced = [replace(task, bytes_per_s=rate) for task in tasks]
    return engine.run(digest_blocks, paced, progress)


def walked(
    engine: Engine, tasks: Sequence[ReadTask], bytes_per_s: float, progress: Progress
) -> list[Chain]:
    """What the tasks' segments hold, by each member in order; the pace as of `digested`."""
    rate = bytes_per_s / engine.width(tasks)
    paced = [
        ReadTask(tuple(replace(member, bytes_per_s=rate) for member in task.members))
        for task in tasks
    ]
    return [chain for chains in engine.run(read_chains, paced, progress) for chain in chains]


@dataclass(frozen=True, slots=True)
class Reading:
    """Reads everything, at `bytes_per_s`; 0: as fast as it goes."""

    bytes_per_s: float = 0

    def digests(
        self, engine: Engine, tasks: Sequence[DigestTask], progress: Progress
    ) -> list[list[PartDigests]]:
        """See `Passes.digests`."""
        return digested(engine, tasks, self.bytes_per_s, progress)

    def chains(self, engine: Engine, tasks: Sequence[ReadTask], progress: Progress) -> list[Chain]:
        """See `Passes.chains`."""
        return walked(engine, tasks, self.bytes_per_s, progress)

    def believed(self) -> Believed | None:
        """See `Passes.believed`."""
        return None
