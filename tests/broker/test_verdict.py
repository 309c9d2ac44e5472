"""Whose log differs, by what members say: with one, two, three and five voters, and in between."""

from __future__ import annotations

import pytest

from broker.verdict import Place, Standing, judge
from dledger.core.types import Configuration, NodeId

OWN = Place(9, 2, 100)
OTHER = Place(9, 2, 200)
THIRD = Place(9, 2, 300)
CUT_OFF = Place(9, 1, 400)  # another entry, of another term


def voters(*names: str) -> frozenset[NodeId]:
    return frozenset(map(NodeId, names))


def told(**places: Place) -> dict[NodeId, Place]:
    return {NodeId(name): place for name, place in places.items()}


THREE, FIVE = voters("n1", "n2", "n3"), voters("n1", "n2", "n3", "n4", "n5")


@pytest.mark.parametrize(
    ("names", "said", "standing", "others"),
    [
        (THREE, {}, Standing.OPEN, ""),
        (THREE, {"n2": OWN}, Standing.SOUND, ""),
        (THREE, {"n2": OTHER}, Standing.OPEN, "n2"),
        (THREE, {"n2": OTHER, "n3": OWN}, Standing.SOUND, "n2"),
        (THREE, {"n2": OTHER, "n3": OTHER}, Standing.OUTVOTED, "n2 n3"),
        (THREE, {"n2": OTHER, "n3": THIRD}, Standing.OPEN, "n2 n3"),
        (THREE, {"n2": CUT_OFF, "n3": CUT_OFF}, Standing.OPEN, ""),
        (THREE, {"n2": OTHER, "n4": OTHER, "n5": OTHER}, Standing.OPEN, "n2 n4 n5"),
        (FIVE, {"n2": OTHER, "n3": OTHER}, Standing.OPEN, "n2 n3"),
        (FIVE, {"n2": OTHER, "n3": OTHER, "n4": OTHER}, Standing.OUTVOTED, "n2 n3 n4"),
        (FIVE, {"n2": OTHER, "n3": OTHER, "n4": OWN, "n5": OWN}, Standing.SOUND, "n2 n3"),
        (voters("n1", "n2"), {"n2": OTHER}, Standing.OPEN, "n2"),
        (voters("n1"), {"n2": OTHER}, Standing.SOUND, "n2"),
    ],
)
def test_majority_of_voters_decides(
    names: frozenset[NodeId], said: dict[str, Place], standing: Standing, others: str
) -> None:
    """One that says something else is one that says so; and where there are two, nobody knows."""
    found = judge(Configuration(names), NodeId("n1"), OWN, told(**said))
    assert found.standing is standing
    assert found.others == voters(*others.split())


def test_learner_is_judged_by_voters_and_judges_nobody() -> None:
    configuration = Configuration(voters("n2", "n3"), learners=voters("n1", "n4"))
    learner = NodeId("n1")
    both = judge(configuration, learner, OWN, told(n2=OTHER, n3=OTHER))
    assert both.standing is Standing.OUTVOTED
    assert judge(configuration, learner, OWN, told(n4=OTHER)).standing is Standing.OPEN
    assert judge(configuration, learner, OWN, told(n2=OWN, n3=OWN)).standing is Standing.SOUND


def test_joint_configuration_needs_a_majority_of_each() -> None:
    configuration = Configuration(THREE, voters_outgoing=voters("n1", "n4", "n5"))
    said = told(n2=OTHER, n3=OTHER, n4=OTHER)
    assert judge(configuration, NodeId("n1"), OWN, said).standing is Standing.OPEN
    said |= told(n5=OTHER)
    assert judge(configuration, NodeId("n1"), OWN, said).standing is Standing.OUTVOTED
