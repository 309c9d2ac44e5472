"""The passes of an audit that reads what isn't kept, and keeps account of what it read.

It answers for a block or a segment from what is kept where the question is the same, and notes that
it did (`used`). It judges nothing: whether a kept result may be believed was decided before
(`audit.keeping.remembering`), and what is read is judged by the audit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from audit.engines.engine import Engine, Progress, no_progress
from audit.keeping.kept import Kept
from audit.keeping.stamps import Place
from audit.proof.chain import Chain, ChainTask, ReadTask
from audit.proof.digest import PartDigests
from audit.proof.passes import digested, walked
from audit.proof.plan import DigestPart, DigestTask
from audit.proof.scope import Believed
from audit.proof.unit_runs import RunsTask, UnitRun, differing_runs


class Recalling:
    """See `audit.proof.passes.Passes`.

    Args:
        bytes_per_s: how fast to read; 0: no limit.
        kept: what may be believed.
    """

    def __init__(self, bytes_per_s: float, kept: Mapping[Place, Kept]) -> None:
        self.used: set[Place] = set()
        self.hashed: dict[Place, list[tuple[DigestPart, PartDigests]]] = {}
        self.walked: dict[Place, tuple[ChainTask, Chain]] = {}
        self._bytes_per_s = bytes_per_s
        self._kept = kept

    def digests(
        self, engine: Engine, tasks: Sequence[DigestTask], progress: Progress
    ) -> list[list[PartDigests]]:
        """See `Passes.digests`."""
        known: list[PartDigests] = []
        left: list[DigestTask] = []
        for task in tasks:
            found = [(part, self._digests_of(task.replica, part)) for part in task.parts]
            known += [digests for _, digests in found if digests is not None]
            fresh = tuple(part for part, digests in found if digests is None)
            if fresh:
                left.append(replace(task, parts=fresh))
        progress(sum(task.weight for task in tasks) - sum(task.weight for task in left))
        read = digested(engine, left, self._bytes_per_s, progress)
        for task, digests_ in zip(left, read, strict=True):
            for part, each in zip(task.parts, digests_, strict=True):
                self.hashed.setdefault((task.replica, part.base), []).append((part, each))
        return [known, *read]

    def chains(self, engine: Engine, tasks: Sequence[ReadTask], progress: Progress) -> list[Chain]:
        """See `Passes.chains`."""
        members = [member for task in tasks for member in task.members]
        known = {_place(each): chain for each in members if (chain := self._chain_of(each))}
        unknown = {_place(each) for each in members} - known.keys()
        left = _those(tasks, unknown)
        progress(sum(task.weight for task in tasks) - sum(task.weight for task in left))
        self._walk(engine, left, progress)
        # What the segments that were just read delete is known now: their queues may be gone.
        wrong = self._other_units(engine, members, known)
        self._walk(engine, _those(tasks, wrong), progress)
        self.used |= known.keys() - wrong
        found = {place: chain for place, (_, chain) in self.walked.items()}
        return [found.get(_place(each)) or known[_place(each)] for each in members]

    def believed(self) -> Believed | None:
        """See `Passes.believed`."""
        if not self.used:
            return None
        return Believed(
            segments=len(self.used),
            size=sum(self._kept[place].stamp.size for place in self.used),
            read=self.read_bytes,
            since=min(self._kept[place].proved for place in self.used),
        )

    @property
    def read_bytes(self) -> int:
        """How much of the log was read, by the pass that read more of it; what was believed by one
        of them aside."""
        return sum(
            max(
                sum(part.size for part, _ in self.hashed.get(place, ())),
                self.walked[place][0].weight if place in self.walked else 0,
            )
            for place in (self.hashed.keys() | self.walked.keys()) - self.used
        )

    def is_of(self, place: Place, file: str) -> bool:
        """Whether that file was read for the place, and no other, as on a machine where another
        replica lies; or what was believed of it was. (What is kept has the stamp of its file.)"""
        return all(digests.file == file for _, digests in self.hashed.get(place, ()))

    def _digests_of(self, replica: str, part: DigestPart) -> PartDigests | None:
        """The part's digests, if its blocks are cut where they were."""
        kept = self._kept.get((replica, part.base))
        if kept is None or kept.digests is None:
            return None
        edges, first = kept.digests.edges, part.first_block
        if edges[first : first + len(part.edges)] != part.edges:
            return None
        self.used.add((replica, part.base))
        digests = kept.digests.digests[8 * first : 8 * (first + len(part.edges) - 1)]
        end, file = part.edges[-1], kept.stamp.file
        return PartDigests(replica, part.base, first, digests, end, file=file)

    def _chain_of(self, task: ChainTask) -> Chain | None:
        """What the segment holds, if the task asks nothing else of it than was asked."""
        kept = self._kept.get(_place(task))
        chain = kept.chain if kept is not None else None
        return chain if chain is not None and asks_of_whole(task, chain) else None

    def _walk(self, engine: Engine, tasks: Sequence[ReadTask], progress: Progress) -> None:
        chains = walked(engine, tasks, self._bytes_per_s, progress)
        members = [member for task in tasks for member in task.members]
        self.walked |= {_place(each): (each, c) for each, c in zip(members, chains, strict=True)}

    def _other_units(
        self, engine: Engine, tasks: Sequence[ChainTask], known: Mapping[Place, Chain]
    ) -> set[Place]:
        """The known segments whose units in the queues are others than they were."""
        gone: dict[str, set[str]] = {}
        wanted: dict[str, list[tuple[int, tuple[UnitRun, ...]]]] = {}
        asked: dict[str, ChainTask] = {}
        for task in sorted(tasks, key=lambda each: -each.base):
            place, later = _place(task), gone.setdefault(task.replica, set())
            if place in known:
                runs = tuple(r for r in known[place].units or () if not _is_gone(r, later))
                wanted.setdefault(task.replica, []).append((task.base, runs))
                asked[task.replica] = task
            chain = known[place] if place in known else self.walked[place][1]
            later.update(name for name, _ in chain.deleted)
        checks = [
            RunsTask(
                replica,
                task.queues_root,
                tuple(reversed(wanted[replica])),
                self._bytes_per_s / max(len(asked), 1),
                task.host,
            )
            for replica, task in asked.items()
        ]
        differing = engine.run(differing_runs, checks, no_progress)
        return {
            (check.replica, base)
            for check, bases in zip(checks, differing, strict=True)
            for base in bases
        }


def asks_of_whole(task: ChainTask, chain: Chain) -> bool:
    """Whether the task asks for all of a sealed segment and all of its units, and no node said
    what its digest is somewhere within it."""
    last = chain.ends.last
    return (
        last is not None
        and task.end - task.base >= task.segment_size
        and task.derived_index >= last.index
        and not 0 < task.said[0] <= last.index
    )


def _those(tasks: Sequence[ReadTask], places: set[Place]) -> list[ReadTask]:
    """The same tasks with those members only."""
    kept = (tuple(each for each in task.members if _place(each) in places) for task in tasks)
    return [ReadTask(members) for members in kept if members]


def _is_gone(run: UnitRun, deleted: set[str]) -> bool:
    """As `audit.proof.queue_files.is_deleted`, of folders that name their incarnation."""
    folder = run.queue[0]
    return folder in deleted or folder.partition("@")[0] in deleted


def _place(task: ChainTask) -> Place:
    return task.replica, task.base
