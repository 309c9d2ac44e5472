"""What the simulator compares of two machines: all of the replicated state, whoever owns it."""

from __future__ import annotations

from dataclasses import dataclass

from broker.state.machine import StateMachine
from broker.state.replicated import SECTION, SECTIONS
from chaos.sim.snapshots import NoQueues, picture


@dataclass(slots=True)
class Owner:
    """An owner of state that is added one day."""

    due: int = 0


def test_every_owner_is_in_the_picture() -> None:
    """Each section of a snapshot is somebody's state, and is compared field by field."""
    compared = {name.split(".")[0] for name in picture(StateMachine(NoQueues()))}
    assert {name.replace("-", "_") for name in {*SECTIONS} - {SECTION}} <= compared
    assert {"applied_index", "append_time_ms", "messages_applied"} <= compared


def test_a_new_owner_is_compared_without_being_named() -> None:
    """Nobody has to remember the simulator when state is added."""
    one, other = StateMachine(NoQueues()), StateMachine(NoQueues())
    assert picture(one) == picture(other)
    for due, machine in enumerate((one, other)):
        setattr(machine.state, "timers", Owner(due))  # noqa: B010  no state has it yet
    wrong = [name for name, value in picture(one).items() if picture(other)[name] != value]
    assert wrong == ["timers.due"]
