"""The page names what nodes log: an operator who sees a warning finds what it means."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "operations.md"
LEVELS = {"info", "warning", "error", "critical", "exception"}
# Of programs and of libraries, and what is built from a variable.
OF_NODES = ("broker", "dledger", "store")
OF_OTHERS = ("client", "spark", "testing", "terminal")


def logged() -> set[str]:
    """Every event that a node logs at `info` or above, by its name in the source."""
    found: set[str] = set()
    for package in OF_NODES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if path.relative_to(ROOT / package).parts[0] in OF_OTHERS:
                continue
            for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if (
                    isinstance(call, ast.Call)
                    and isinstance(call.func, ast.Attribute)
                    and call.func.attr in LEVELS
                    and isinstance(call.func.value, ast.Name)
                    and call.func.value.id in {"log", "_log"}
                    and call.args
                    and isinstance(call.args[0], ast.Constant)
                    and re.fullmatch("[a-z]+(_[a-z]+)*", str(call.args[0].value))
                ):
                    found.add(str(call.args[0].value))
    return found


def test_every_event_of_nodes_is_on_the_page() -> None:
    """Wherever it is spoken of."""
    events, page = logged(), PAGE.read_text(encoding="utf-8")
    assert len(events) > 80
    assert {each for each in events if f"`{each}`" not in page} == set()


def test_what_the_page_lists_is_logged() -> None:
    """By that name, whichever way it comes to the log."""
    section = PAGE.read_text(encoding="utf-8").split("## Logs\n")[1].split("\n## ")[0]
    rows = [line.split(" | ")[0] for line in section.splitlines() if line.startswith("| `")]
    listed = {name for row in rows for name in re.findall(r"`([a-z_]+)`", row)}
    sources = [path for package in OF_NODES for path in (ROOT / package).rglob("*.py")]
    source = "".join(path.read_text(encoding="utf-8") for path in sorted(sources))
    assert {each for each in listed if f'"{each}"' not in source} == set()
