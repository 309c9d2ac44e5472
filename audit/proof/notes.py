"""What is worth knowing beside the findings, and no fault: the notes of a report. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from audit.proof.locate import Located
from audit.proof.plan import Plan
from audit.proof.scope import Files, Scope


def notes_of(plan: Plan, scope: Scope, located: Located) -> Iterator[str]:
    """The notes, those of replicas first."""
    for survey in plan.surveys:
        if survey.silent:
            yield f"{survey.replica}: nothing of it was audited: {survey.problem}"
    for survey in plan.surveys:
        for name in survey.foreign:
            yield f"{survey.replica}: {name} in {survey.commitlog} is no file of the log"
    for survey in plan.surveys if scope.files is Files.LOG else ():  # Else it is a finding.
        if survey.segments and not survey.checkpoint_readable:
            yield (
                f"{survey.replica}: no readable checkpoint; the log is taken to end at {survey.end}"
            )
    yield from _behind(plan, scope)
    if located.unsettled_from is not None:
        yield (
            f"from {located.unsettled_from} on, replicas hold entries of different terms that "
            "are not known to have committed; these were not compared"
        )
    if located.vanished:
        yield f"{len(located.vanished)} blocks differed at first and no longer when read again"


def _behind(plan: Plan, scope: Scope) -> Iterator[str]:
    committed = max((each.settled for each in plan.surveys), default=0)
    for survey in plan.surveys:
        if survey.answered and survey.settled < committed:
            behind = committed - survey.settled
            yield f"{survey.replica}: runs {behind} bytes behind what others know committed"
    if scope.files is Files.ALL:
        for survey in plan.surveys:
            if survey.answered and survey.derived_index < scope.index:
                yield (
                    f"{survey.replica}: runs; its ConsumeQueues were compared up to entry "
                    f"{survey.derived_index}, as far as its checkpoint goes"
                )
