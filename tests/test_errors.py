"""One family of errors a package, held against the code: root, drawing, retriable, outcome."""

from __future__ import annotations

import ast
import builtins
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("audit", "broker", "chaos", "dledger", "dledger_cli", "store")

# Not errors of the world but assertions of ours, or what ends a simulated process: they stand
# where they are raised, so that nobody is tempted to handle them as a family.
ASSERTIONS = {
    "InvariantBroken",  # chaos.invariants
    "Defect",  # chaos.sim
    "Livelock",
    "ActorDied",
    "MachineDied",
}
# What stands outside of an errors.py for a reason.
ELSEWHERE = {
    "ConfigError": "broker.config validates itself, before there is a broker",
    "Refusal": "what a fake node of dledger.testing is told to answer, and only its door sees",
    "TooFewDescriptors": "an OSError of this process alone, told by its start",
    "_Ended": "never leaves audit.commands.watch: SIGTERM, which is no error",
    "Terminated": "never leaves dledger.terminal.outcome: SIGTERM, which is no error",
    "NotGiven": "never leaves who pulls a state: it asks again, or somebody else",
    "_NotAlike": "never leaves audit.proof.reading: each replica is read by itself then",
    "_NotOffered": "never leaves broker.forming.calls: it asks elsewhere",
    "_FoundOut": "never leaves chaos.sim.node: it ends a start that is only tried",
    "StrategyUnknown": "never leaves broker.leader.groups: who joins is told by a BrokerError",
    "ReadFailed": "never leaves chaos.sim.links: the stream ends",
    "LostSector": "an OSError of a simulated disk, which raises nothing else",
    "LevelUnknown": "never leaves broker.state: the machine's `apply` ends in front of it",
    "HandlerFailed": "never leaves chaos.real.member: a handler fails on purpose",
    "Reject": "a user's handler raises it, and the member that called that takes it",
    "Slip": "a defect that chaos.sim puts into the client library, which nobody may foresee",
    "OrdersBroken": "chaos.faults is loaded into nodes and knows nothing of chaos",
}
# Roots without `retriable` and `outcome`.
BARE = {
    "CoreError": "the core imports nothing, and its errors are our own caller's to avoid",
    "BrokerError": "a table decides for each code: `broker.errors.TRAITS`",
}


def classes() -> Iterator[tuple[Path, ast.ClassDef, list[str]]]:
    """Every class of the product, its file and its bases' names."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in _classes_in(ast.parse(path.read_text(encoding="utf-8"))):
                yield path, node, [ast.unparse(base).split(".")[-1] for base in node.bases]


def _classes_in(tree: ast.AST) -> Iterator[ast.ClassDef]:
    """Wherever they stand; no expression holds one."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield node
        if isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from _classes_in(node)


@functools.cache
def exceptions() -> dict[str, tuple[Path, ast.ClassDef, list[str]]]:
    """The classes that are exceptions, by way of others of the project or at once. Not looked up
    when this is imported: every process that shares the tests imports it, and one needs it."""
    found: dict[str, tuple[Path, ast.ClassDef, list[str]]] = {}
    everything = list(classes())
    while True:
        more = {
            node.name: (path, node, bases)
            for path, node, bases in everything
            if any(base in found or _is_builtin(base) for base in bases)
        }
        if more.keys() == found.keys():
            return found
        found = more


def _is_builtin(name: str) -> bool:
    kind = getattr(builtins, name, None)
    return isinstance(kind, type) and issubclass(kind, BaseException)


FAMILIES = sorted(
    path
    for package in PACKAGES
    for path in (ROOT / package).rglob("errors.py")
    if "\nclass " in path.read_text(encoding="utf-8")  # one only translates those of others
)


def test_errors_stand_in_their_packages_errors_module() -> None:
    """A stray has to be moved, or to say here why it stands elsewhere."""
    strays = {name for name, (path, _, _) in exceptions().items() if path.name != "errors.py"}
    assert strays == ASSERTIONS | ELSEWHERE.keys()


@pytest.mark.parametrize("path", FAMILIES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_family_has_one_root_and_is_drawn(path: Path) -> None:
    """Everything in an errors.py comes from one root, and the docstring draws the tree."""
    family = {name: each for name, each in exceptions().items() if each[0] == path}
    roots = [name for name, (_, _, bases) in family.items() if not family.keys() & set(bases)]
    assert len(roots) == 1
    drawing = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    assert [name for name in family if name not in drawing] == []
    stated = {
        node.id if isinstance(node, ast.Name) else node.attr
        for node in ast.walk(family[roots[0]][1])
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    assert roots[0] in BARE or {"retriable", "outcome"} <= stated
