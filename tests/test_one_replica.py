"""A member of a group is made in one place, whoever runs it: a process, the simulator or a test.

Calls are read from the syntax tree and followed to the modules that the names come from.
"""

from __future__ import annotations

import ast
import re
from functools import cache

from tests.test_architecture import ROOT, modules

# What decides behaviour in a member of a group, and the modules that make it.
PARTS = {
    "broker.announcing.Announcer",
    "broker.housekeeping.Housekeeping",
    "broker.leader.append.Appender",
    "broker.leader.commands.Commands",
    "broker.leader.leadership.Leadership",
    "broker.leader.levels.LevelKeeper",
    "broker.leader.membership.Membership",
    "broker.mending.Mender",
    "broker.probes.CommitProbe",
    "broker.reading.committed.CommittedLog",
    "broker.reading.held.HeldPulls",
    "broker.reading.queues.QueueReader",
    "broker.services.audit.Audit",
    "broker.services.cluster.Cluster",
    "broker.services.gate.Gate",
    "broker.services.messages.Lookups",
    "broker.services.messages.Pulls",
    "broker.services.messages.Sends",
    "broker.services.offsets.Offsets",
    "broker.services.producers.Producers",
    "broker.services.services.Services",
    "broker.services.soundness.Soundness",
    "broker.services.topics.Topics",
    "broker.ticker.Ticker",
    "dledger.driver.RaftDriver",
}
MAKERS = {"broker.assembly", "broker.noting", "broker.replication", "broker.wiring"}
# Tests of a part by itself: one that owes nothing to what it is joined to.
ALONE = {
    "tests.audit.test_odd_names": {"broker.services.audit.Audit"},
    "tests.broker.test_denials": {"broker.services.gate.Gate"},
    "tests.broker.test_desk": {"broker.services.soundness.Soundness"},
    "tests.broker.test_first_handouts": {"broker.leader.commands.Commands"},
    "tests.broker.test_held_back": {"broker.leader.commands.Commands"},
    "tests.broker.test_housekeeping": {"broker.housekeeping.Housekeeping"},
    "tests.broker.test_loop_watch": {"broker.ticker.Ticker"},
    "tests.broker.test_queues_that_go": {"broker.leader.commands.Commands"},
    "tests.broker.test_reads": {"broker.reading.held.HeldPulls"},
    "tests.broker.test_topic_retention": {"broker.leader.commands.Commands"},
    "tests.broker.test_watches": {"broker.services.cluster.Cluster"},
    "tests.core.test_changes": {"broker.leader.membership.Membership"},
    "tests.core.test_membership": {"broker.leader.membership.Membership"},
    "tests.core.test_newcomers": {"broker.leader.membership.Membership"},
}
# Who has a world to hand in: docs/architecture.md, "A replica and its ports".
PORTS = "broker.ports.ReplicaPorts"
WORLDS = {
    "broker.node",
    "chaos.sim.node",
    "tests.node.machine",
    "tests.node.members",
    "tests.starting.members",
}


def made_in(tree: ast.AST) -> set[str]:
    """What of other modules the code calls, by full names: among it what it makes."""
    homes: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            homes |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom):
            homes |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    calls = (dotted(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call))
    names = (call.partition(".") for call in calls)
    return {homes.get(first, first) + dot + rest for first, dot, rest in names}


def dotted(called: ast.expr) -> str:
    """What is called, as far as it is a name."""
    if isinstance(called, ast.Name):
        return called.id
    if isinstance(called, ast.Attribute):
        return f"{dotted(called.value)}.{called.attr}"
    return ""


@cache
def makers() -> dict[str, set[str]]:
    """Module, tests included -> what it makes, of those that name a part at all."""
    tests = sorted((ROOT / "tests").rglob("*.py"))
    named = [(".".join(path.relative_to(ROOT).with_suffix("").parts), path) for path in tests]
    words = "|".join(part.rpartition(".")[2] for part in {*PARTS, PORTS})
    texts = {name: path.read_text(encoding="utf-8") for name, path in (*modules(), *named)}
    return {
        name: made_in(ast.parse(text))
        for name, text in texts.items()
        if re.search(rf"\b({words})\b", text)
    }


def test_a_replica_is_made_in_one_place() -> None:
    """Whoever made a part of it elsewhere, a simulator or a test above all, would test or run a
    copy."""
    made = {name: found & PARTS for name, found in makers().items()}
    by_product = {name: made.pop(name) for name in MAKERS}
    assert {name: parts for name, parts in made.items() if parts} == ALONE
    assert set().union(*by_product.values()) == PARTS


def test_a_replicas_ports_are_handed_in_by_worlds() -> None:
    """A process, the simulator, and what belongs to tests."""
    made = {name for name, found in makers().items() if PORTS in found}
    assert made == WORLDS


def test_what_is_made_is_found_however_it_is_called() -> None:
    """By its name, by another one, or by its module's."""
    part = "broker.housekeeping.Housekeeping"
    for code in (
        "from broker.housekeeping import Housekeeping\nself.kept = Housekeeping(1)",
        "from broker.housekeeping import Housekeeping as Kept\nKept()",
        "from broker import housekeeping\nhousekeeping.Housekeeping(1)",
        "import broker.housekeeping as kept\nkept.Housekeeping()",
        "import broker.housekeeping\nbroker.housekeeping.Housekeeping()",
    ):
        assert part in made_in(ast.parse(code)), code
