"""The import picture of docs/architecture.md, held against the code.

Imports are read from the syntax tree, so an import inside a function counts too; imports for
type checking only do not, as they don't exist when the program runs.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("dledger", "dledger_cli", "store", "broker", "chaos", "audit")

# Unit -> the project's units it may import. A unit is a package or a part of one; the longest
# prefix decides which unit a module is in.
FORMATS = {"dledger.outcome", "dledger.records", "dledger.reading"}
FLOOR = {"dledger.addresses", "dledger.outcome"}
RAFT = {"dledger", "dledger.core", "dledger.wire"}
ALLOWED: dict[str, set[str]] = {
    "dledger.addresses": set(),
    "dledger.outcome": set(),
    "dledger.core": set(),
    "dledger.wire": set(),
    "dledger.records": {"dledger.outcome"},
    "dledger.reading": {"dledger.outcome", "dledger.records"},
    "dledger.spark": {"dledger.outcome", "dledger.reading"},
    "dledger.client": FLOOR | {"dledger.wire", "dledger.records"},
    "dledger.terminal": FLOOR,
    "dledger": {"dledger.core", "dledger.outcome", "dledger.records", "dledger.wire"},
    "store": FORMATS,
    "chaos.faults": {"store"},  # a disk that fails on order: loaded by nodes under test only
    "broker": FORMATS | FLOOR | RAFT | {"dledger.client", "store", "chaos.faults"},
    "audit": FORMATS | {"dledger.wire", "dledger.spark", "store"},
    "chaos": FORMATS
    | FLOOR
    | RAFT
    | {"dledger.client", "dledger.terminal", "store", "broker", "chaos.faults"},
    # The program: every package's commands. Nobody imports it.
    "dledger_cli": FORMATS
    | FLOOR
    | RAFT
    | {"dledger.client", "dledger.terminal", "store", "broker", "chaos", "audit"},
}

# Within `audit`: room -> the rooms it may import; `audit.errors` is everybody's. Drawn in
# docs/audit.md.
ROOMS: dict[str, set[str]] = {
    "reading": set(),
    "engines": set(),
    "proof": {"reading", "engines"},
    "delivery": {"reading", "engines"},
    "contents": {"reading", "engines"},
    "showing": {"engines", "proof", "contents"},
    "measuring": {"reading", "engines", "proof"},
    "commands": {
        *("reading", "engines", "proof", "delivery"),
        *("contents", "showing", "measuring"),
    },
}


def unit_of(module: str) -> str:
    """The unit that `module` belongs to."""
    candidates = [unit for unit in ALLOWED if module == unit or module.startswith(unit + ".")]
    return max(candidates, key=len)


def modules() -> Iterator[tuple[str, Path]]:
    """Every module of the project with its file."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            yield name, path


MODULE_NAMES = {name for name, _ in modules()}


def imports_at_run_time(tree: ast.AST) -> Iterator[str]:
    """The modules that running the code imports; `from a import b` gives `a.b`, and `a` too
    unless `a.b` is a module of the project."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for other in node.orelse:
                yield from imports_at_run_time(other)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide where they lead"
            assert node.module is not None
            parts = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from parts
            if not all(part in MODULE_NAMES for part in parts):
                yield node.module
        else:
            yield from imports_at_run_time(node)


def project_imports() -> dict[str, set[str]]:
    """Module -> modules of the project that it imports."""
    found: dict[str, set[str]] = {}
    for name, path in modules():
        targets = set(imports_at_run_time(ast.parse(path.read_text(encoding="utf-8"))))
        found[name] = {target for target in targets if target in MODULE_NAMES and target != name}
    return found


def test_every_import_is_in_the_picture() -> None:
    """Nobody imports what the import picture doesn't allow."""
    wrong = [
        f"{module} imports {target}"
        for module, targets in project_imports().items()
        for target in targets
        if unit_of(target) != unit_of(module)
        and unit_of(target) not in ALLOWED[unit_of(module)]
        # Importing a package's part runs its __init__ first; that is no dependency on the rest.
        and not (target in PACKAGES and (ROOT / target / "__init__.py").stat().st_size == 0)
    ]
    assert not wrong, "\n".join(wrong)


def room_of(module: str) -> str:
    """The room of `audit` that `module` is in; empty for the modules beside the rooms."""
    return module.split(".")[1] if module.startswith("audit.") and module.count(".") > 1 else ""


def test_the_rooms_of_audits_open_one_way() -> None:
    """Each room imports only those that the table lets it, in functions too, and the table has no
    circle: each room stands behind all that it imports."""
    imports = {
        (room_of(module), room_of(target))
        for module, targets in project_imports().items()
        for target in targets
        if module.startswith("audit.") and target.startswith("audit.")
    }
    allowed = {(room, other) for room, others in ROOMS.items() for other in others}
    crossing = {(room, other) for room, other in imports if room != other and other}
    assert crossing == allowed
    assert {room_of(name) for name, _ in modules() if room_of(name)} == set(ROOMS)
    order = list(ROOMS)
    assert all(order.index(other) < order.index(room) for room, other in allowed)


def test_the_rooms_of_audits_are_drawn() -> None:
    """docs/audit.md draws exactly the arrows between rooms that the table permits."""
    text = (ROOT / "docs" / "audit.md").read_text(encoding="utf-8")
    drawn = set(re.findall(r"^\s*([a-z]+) --> ([a-z]+)$", text, flags=re.MULTILINE))
    assert drawn == {(room, other) for room, others in ROOMS.items() for other in others}


def test_no_import_cycles() -> None:
    """The import graph of modules is a tree of layers: nothing imports itself in the end."""
    graph = project_imports()
    state: dict[str, int] = {}

    def visit(module: str, trail: tuple[str, ...]) -> None:
        if state.get(module) == 2:
            return
        assert state.get(module) != 1, "cycle: " + " -> ".join((*trail, module))
        state[module] = 1
        for target in sorted(graph[module]):
            visit(target, (*trail, module))
        state[module] = 2

    for module in graph:
        visit(module, ())


@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_opens_with_its_reason(package: str) -> None:
    """Each module that has code says what it owns before anything else."""
    bare = [
        name
        for name, path in modules()
        if name.split(".")[0] == package
        and not re.search(r"_pb2$", name)
        and path.stat().st_size > 0
        and not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not bare, f"without a docstring: {bare}"


def test_the_picture_is_the_one_in_the_documents() -> None:
    """docs/architecture.md draws exactly the edges that ALLOWED permits."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    drawn = set(re.findall(r"^\s*([a-z._]+) --> ([a-z._]+)$", text, flags=re.MULTILINE))
    allowed = {(unit, target) for unit, targets in ALLOWED.items() for target in targets}
    assert drawn == allowed
