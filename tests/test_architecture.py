"""The import picture of docs/architecture.md, held against the code.

Imports are read from the syntax tree, so an import inside a function counts too; imports for
type checking only do not, as they don't exist when the program runs.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
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
    "dledger.history": {"dledger.records"},
    "dledger.outcome": set(),
    "dledger.limits": set(),
    "dledger.core": set(),
    "dledger.wire": set(),
    "dledger.records": {"dledger.outcome"},
    "dledger.reading": {"dledger.outcome", "dledger.records"},
    "dledger.spark": {"dledger.outcome", "dledger.reading"},
    "dledger.client": FLOOR | {"dledger.limits", "dledger.wire", "dledger.records"},
    "dledger.terminal": FLOOR,
    "dledger": {
        *("dledger.core", "dledger.limits", "dledger.outcome", "dledger.records", "dledger.wire")
    },
    "store": FORMATS,
    "chaos.faults": {"store"},  # a disk that fails on order: loaded by nodes under test only
    "broker": FORMATS
    | FLOOR
    | RAFT
    | {"dledger.client", "dledger.limits", "store", "chaos.faults"},
    "audit": FORMATS
    | FLOOR
    | {
        "dledger.history",
        "dledger.limits",
        "dledger.spark",
        "dledger.terminal",
        "dledger.wire",
        "store",
    },
    "chaos": FORMATS
    | FLOOR
    | RAFT
    | {"dledger.client", "dledger.history", "dledger.terminal", "store", "broker", "chaos.faults"},
    # The program: every package's commands. Nobody imports it.
    "dledger_cli": FORMATS
    | FLOOR
    | RAFT
    | {"dledger.client", "dledger.terminal", "store", "broker", "chaos", "audit"},
}

# Inside a package: room -> the rooms it may import. What lies in no room may import them all (the
# node, how it is put together), and no room may import it, but for what is `EVERYBODYS`.
ROOMS: dict[str, dict[str, set[str]]] = {
    "audit": {
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
    },
    "broker": {
        "errors": set(),
        "state": set(),
        "reading": {"errors", "state"},
        "leader": {"errors", "state", "reading"},
        "services": {"errors", "state", "reading", "leader"},
        "doors": {"errors", "state", "reading", "leader", "services"},
    },
}
EVERYBODYS = {"audit.errors"}
# Where the rooms are drawn, and by which arrow.
DRAWN = {"audit": ("docs/audit.md", "-->"), "broker": ("docs/architecture.md", "==>")}
# What carries calls and what they look like on the way: doors know it, services don't.
WIRES = ("grpc", "grpc_health", "grpc_reflection", "google.protobuf", "dledger.wire")


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


def room_of(module: str) -> str:
    """The room that `module` lies in; empty if it lies beside the rooms of its package."""
    package, _, rest = module.partition(".")
    room = rest.split(".")[0]
    return room if room in ROOMS.get(package, {}) else ""


@pytest.mark.parametrize("package", ROOMS)
def test_rooms_open_one_way(package: str) -> None:
    """Each room imports only those that the table lets it, in functions too; the table allows
    nothing that nobody needs, and each room stands behind all that it imports."""
    rooms = ROOMS[package]
    imports = {
        (room_of(module), room_of(target) or target)
        for module, targets in project_imports().items()
        for target in targets
        if f"{module}.".startswith(f"{package}.") and f"{target}.".startswith(f"{package}.")
        if room_of(module) and target not in EVERYBODYS and target != package
    }
    crossing = {(room, other) for room, other in imports if room != other}
    allowed = {(room, other) for room, others in rooms.items() for other in others}
    assert crossing == allowed
    order = list(rooms)
    assert all(order.index(other) < order.index(room) for room, other in allowed)


@pytest.mark.parametrize("package", ROOMS)
def test_rooms_are_drawn_in_the_documents(package: str) -> None:
    """The page draws exactly the arrows between rooms that the table permits."""
    page, arrow = DRAWN[package]
    text = (ROOT / page).read_text(encoding="utf-8")
    drawn = set(re.findall(rf"^\s*([a-z]+) {arrow} ([a-z]+)$", text, flags=re.MULTILINE))
    assert drawn == {(room, other) for room, others in ROOMS[package].items() for other in others}


def test_every_folder_of_an_audit_is_a_room() -> None:
    """A folder that the table doesn't know could import whatever it likes."""
    folders = {name.split(".")[1] for name, _ in modules() if re.match(r"audit\.\w+\.", name)}
    assert folders == set(ROOMS["audit"])


def test_services_know_no_wire() -> None:
    """What a broker can be asked is plain values: a second door needs no change of a service."""
    wrong = [
        f"{name} imports {target}"
        for name, path in modules()
        if name.startswith("broker.") and room_of(name) in ("services", "reading", "errors")
        for target in imports_at_run_time(ast.parse(path.read_text(encoding="utf-8")))
        if target.startswith(WIRES)
    ]
    assert not wrong, "\n".join(wrong)


def test_nothing_of_a_service_needs_grpc() -> None:
    """The services with all that they stand on are imported without it."""
    code = "import sys, broker.services.services; sys.exit('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


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
