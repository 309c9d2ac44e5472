"""The import picture of docs/architecture.md, held against the code and drawn from here.

Imports are read from the syntax tree, so an import inside a function counts, and so does one for
type checking only: what a module can't be read without, it depends on. `make picture` (this file,
run as a program) writes the pictures into the documents; the tests say whether they are current.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import takewhile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("dledger", "dledger_cli", "store", "broker", "chaos", "audit")
CHOSEN_TOP_LEVEL_NAMES = {"store", "broker", "chaos", "audit"}
VAGUE = {"base", "common", "helper", "helpers", "lib", "misc", "shared", "tools", "util", "utils"}

Graph = Mapping[str, set[str]]

# Unit -> the project's units it may import. A unit is a package or a part of one; the longest
# prefix decides which unit a module is in.
FORMATS = {"dledger.outcome", "dledger.records", "dledger.reading"}
FLOOR = {"dledger.addresses", "dledger.outcome"}
RAFT = {"dledger", "dledger.core", "dledger.wire"}
ALLOWED: dict[str, set[str]] = {
    "dledger.addresses": set(),
    "dledger.endpoint": set(),  # HTTP, and nothing of what it serves
    "dledger.history": {"dledger.records"},
    "dledger.outcome": set(),
    "dledger.level": set(),
    "dledger.limits": set(),
    "dledger.core": set(),
    "dledger.wire": set(),
    "dledger.records": {"dledger.limits", "dledger.outcome"},
    "dledger.reading": {"dledger.level", "dledger.limits", "dledger.outcome"}
    | {"dledger.records", "dledger.wire"},
    "dledger.spark": FLOOR
    | {"dledger.client", "dledger.credentials", "dledger.limits", "dledger.reading"}
    | {"dledger.records", "dledger.wire"},
    "dledger.credentials": {"dledger.outcome"},
    "dledger.client": FLOOR
    | {"dledger.credentials", "dledger.limits", "dledger.wire", "dledger.records"},
    "dledger.terminal": FLOOR | {"dledger.credentials"},
    # What applications test themselves with: below the nodes, which it calls as a program.
    "dledger.testing": {"dledger.client", "dledger.limits", "dledger.outcome"}
    | {"dledger.records", "dledger.wire"},
    "dledger": FLOOR
    | {"dledger.core", "dledger.credentials", "dledger.level", "dledger.limits"}
    | {"dledger.records", "dledger.wire"},
    "store": FORMATS,
    # What every start of a member checks: of the node, and of whoever judges a directory.
    "store.starting": RAFT | FORMATS | {"dledger.level", "store"},
    "chaos.faults": {"store"},  # a disk that fails on order: below nodes under test
    "broker": FORMATS
    | FLOOR
    | RAFT
    | {"dledger.credentials", "dledger.endpoint", "dledger.level", "dledger.limits"}
    | {"store", "store.starting"},
    "audit": FORMATS
    | FLOOR
    | {
        "dledger.credentials",
        "dledger.endpoint",
        "dledger.history",
        "dledger.limits",
        "dledger.spark",
        "dledger.terminal",
        "dledger.wire",
        "store",
        "store.starting",
    },
    "chaos": FORMATS
    | FLOOR
    | RAFT
    | {"dledger.client", "dledger.history", "dledger.level", "dledger.limits"}
    | {"dledger.terminal"}
    | {"store", "store.starting", "broker", "chaos.faults"},
    # The program: every package's commands. Nobody imports it.
    "dledger_cli": FLOOR
    | {"dledger.client", "dledger.credentials", "dledger.reading", "dledger.records"}
    | {"dledger.terminal", "dledger.testing", "dledger.wire", "store", "store.starting"}
    | {"broker", "chaos", "audit"},
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
        "tables": {"reading", "engines"},
        "keeping": {"reading", "engines", "proof"},
        "repairing": {"reading", "proof"},
        "backing": {"reading", "engines", "proof", "repairing"},
        "showing": {"engines", "proof", "contents", "keeping", "repairing"},
        "measuring": {"reading", "engines", "proof"},
        "commands": {
            *("reading", "engines", "proof", "delivery"),
            *("contents", "keeping", "tables", "showing", "measuring", "repairing"),
        },
    },
    "broker": {
        "errors": set(),
        "state": set(),
        "forming": set(),
        "reading": {"errors", "state"},
        "leader": {"errors", "state", "reading"},
        "services": {"errors", "state", "reading", "leader"},
        "doors": {"errors", "state", "forming", "reading", "leader", "services"},
    },
}
EVERYBODYS = {"audit.errors"}
# Page -> the graphs that it draws, in their order.
PICTURES = {"architecture.md": (ALLOWED, ROOMS["broker"]), "audit.md": (ROOMS["audit"],)}
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


@cache
def tree_of(path: Path) -> ast.Module:
    """What the module says, for all who look at it."""
    return ast.parse(path.read_text(encoding="utf-8"))


def imports_of(tree: ast.AST) -> Iterator[str]:
    """Every module that the code imports, wherever it does; `from a import b` gives `a.b`, and
    `a` too unless `a.b` is a module of the project."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide where they lead"
            assert node.module is not None
            parts = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from parts
            if not all(part in MODULE_NAMES for part in parts):
                yield node.module


@cache
def project_imports() -> dict[str, set[str]]:
    """Module -> modules of the project that it imports."""
    found: dict[str, set[str]] = {}
    for name, path in modules():
        targets = set(imports_of(tree_of(path)))
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


def test_the_picture_allows_nothing_that_nobody_needs() -> None:
    """An arrow that is drawn and not there misleads who reads it, and hides the day on which
    somebody first takes that way."""
    used: dict[str, set[str]] = {unit: set() for unit in ALLOWED}
    for module, targets in project_imports().items():
        used[unit_of(module)] |= {unit_of(target) for target in targets}
    idle = {unit: allowed - used[unit] for unit, allowed in ALLOWED.items()}
    assert {unit: sorted(others) for unit, others in idle.items() if others} == {}


def circles(graph: Graph) -> list[set[str]]:
    """The strongly connected parts of more than one node: none of their members can be
    understood, tested or moved without the others. (Tarjan, 1972.)"""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    trail: list[str] = []
    found: list[set[str]] = []

    def visit(node: str) -> None:
        number[node] = lowest[node] = len(number)
        trail.append(node)
        for target in sorted(graph.get(node, ())):
            if target not in number:
                visit(target)
            if target in trail:
                lowest[node] = min(lowest[node], lowest[target])
        if lowest[node] == number[node]:
            part = set(trail[trail.index(node) :])
            del trail[trail.index(node) :]
            if len(part) > 1:
                found.append(part)

    for node in sorted(graph):
        if node not in number:
            visit(node)
    return found


def folders(imports: Graph) -> dict[str, dict[str, set[str]]]:
    """Folder -> the graph of what lies in it, modules and folders alike: an import from
    `a.b.c` to `a.d.e` is one from `b` to `d` in `a`. A folder's own `__init__` shows its parts
    to others and is no part itself."""
    found: dict[str, dict[str, set[str]]] = {}
    for module, targets in imports.items():
        for target in targets:
            one, other = module.split("."), target.split(".")
            same = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
            shared = len(list(same))
            if shared < min(len(one), len(other)):
                inner = found.setdefault(".".join(one[:shared]), {})
                inner.setdefault(one[shared], set()).add(other[shared])
    return found


def test_no_module_imports_itself_in_the_end() -> None:
    """The import graph of modules is a tree of layers."""
    assert circles(project_imports()) == []


def test_no_folder_imports_itself_in_the_end() -> None:
    """Nor do folders: of two rooms that need each other, neither can be read alone."""
    found = {
        folder: circle
        for folder, graph in folders(project_imports()).items()
        if (circle := circles(graph))
    }
    assert found == {}


def test_a_circle_is_found_wherever_it_hides(tmp_path: Path) -> None:
    """In a function, below TYPE_CHECKING, over three modules, between folders only."""
    late = "def f():\n    from store import errors\n"
    typed = "if TYPE_CHECKING:\n    from store.errors import StoreError\n"
    for code in (late, typed):
        assert "store.errors" in {*imports_of(ast.parse(code))}
    ring = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}
    assert circles(ring) == [{"a", "b", "c"}]
    between = {"p.x.one": {"p.y.one"}, "p.y.two": {"p.x.two"}}
    assert circles(between) == []
    assert circles(folders(between)["p"]) == [{"x", "y"}]


def test_no_name_says_nothing() -> None:
    """No module or folder is called what could be anything."""
    vague = [name for name, _ in modules() if name.rsplit(".", 1)[-1] in VAGUE]
    assert vague == []


def test_top_level_names_are_ours() -> None:
    """A wheel's top-level names are taken from everybody's programs: a generic one shadows the
    user's own folder of that name. Those that there are were chosen with open eyes, and are
    imported by processes that never import from the current folder; there shall be no more."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = set(project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
    assert packages == set(PACKAGES)
    generic = {name for name in packages if not name.startswith("dledger")}
    assert generic == CHOSEN_TOP_LEVEL_NAMES
    assert not generic & VAGUE


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
        for target in imports_of(tree_of(path))
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
        and not ast.get_docstring(tree_of(path))
    ]
    assert not bare, f"without a docstring: {bare}"


def drawn(graph: Graph) -> str:
    """The graph as Mermaid draws it, without the arrows that others imply: where A may import B
    and B may import C, that A may import C goes without saying."""
    reach: dict[str, set[str]] = {}

    def reachable(node: str) -> set[str]:
        if node not in reach:
            reach[node] = {*graph[node]}.union(*map(reachable, graph[node]))
        return reach[node]

    arrows = [
        f"    {node} --> {target}"
        for node in graph
        for target in sorted(graph[node])
        if not any(target in reachable(other) for other in graph[node])
    ]
    return "\n".join(["```mermaid", "graph TD", *arrows, "```"])


PICTURE = re.compile(r"```mermaid\ngraph TD\n.*?```", re.DOTALL)


@pytest.mark.parametrize("page", PICTURES)
def test_the_picture_is_the_one_in_the_documents(page: str) -> None:
    """The page shows what `make picture` draws of the table above."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert PICTURE.findall(text) == [drawn(graph) for graph in PICTURES[page]]


def write_pictures() -> None:
    """The documents show the tables above."""
    for page, graphs in PICTURES.items():
        path = ROOT / "docs" / page
        *texts, rest = PICTURE.split(path.read_text(encoding="utf-8"))
        pairs = zip(texts, map(drawn, graphs), strict=True)
        path.write_text("".join(text + picture for text, picture in pairs) + rest, encoding="utf-8")


if __name__ == "__main__":
    write_pictures()
