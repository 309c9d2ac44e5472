"""Words lead somewhere: what code and documents cite, a reader of this repository can open."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("audit", "broker", "chaos", "dledger", "dledger_cli", "store", "tests")
FOLDERS = "|".join((*PACKAGES, "docs", "examples", "proto"))

# Numbers of lists that nobody here has, and papers of ours that aren't in the repository.
ELSEWHERE = re.compile(
    r"\b(?:issue|promise|scenario)s? [0-9]+\b|\blater issue\b|\bdecision D[0-9]+|\(D[0-9]+\)"
    r"|\b(?:shared/)?(?:design|durability|house|style)\.md\b",
    re.IGNORECASE,
)
FILE = re.compile(rf"(?<![\w/.])(?:{FOLDERS})(?:/[\w-]+)+\.(?:py|md|proto)\b")
NAME = re.compile(rf"`((?:{'|'.join(PACKAGES)})(?:\.\w+)+)")
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[\w-]+)?\)")


@cache
def texts() -> list[tuple[Path, str]]:
    """Every file that is read by people, with what it says."""
    return list(_texts())


def _texts() -> Iterator[tuple[Path, str]]:
    for folder in (*PACKAGES, "docs", "examples", "proto"):
        for path in sorted((ROOT / folder).rglob("*")):
            is_read = path.suffix in {".py", ".md", ".proto"} and not path.stem.endswith("_pb2")
            if is_read and path != Path(__file__):  # whose examples lead nowhere on purpose
                yield path, path.read_text(encoding="utf-8")
    for path in sorted(ROOT.glob("*.md")):
        if path.name != "CHANGELOG.md":  # tells of what was
            yield path, path.read_text(encoding="utf-8")


def places(pattern: re.Pattern[str]) -> Iterator[tuple[str, Path, str]]:
    """Where the pattern is found: `file:line`, the file, what was found (its group, if any)."""
    for path, text in texts():
        for number, line in enumerate(text.splitlines(), 1):
            for match in pattern.finditer(line):
                found = match.group(1) if pattern.groups else match.group(0)
                yield f"{path.relative_to(ROOT)}:{number}", path, found


def test_no_number_of_a_list_that_is_not_here() -> None:
    """A bare number, of an issue, a promise, a scenario, says nothing to who lacks the list."""
    assert [f"{place}: {found}" for place, _, found in places(ELSEWHERE)] == []


def test_files_that_are_named_exist() -> None:
    """A file that has moved is named where it is now."""
    gone = {
        f"{place}: {found}"
        for place, _, found in places(FILE)
        if not (ROOT / found).exists()
        and not (ROOT / "proto" / found).exists()  # as they import each other
    }
    assert gone == set()


def test_links_lead_to_files() -> None:
    """Links of the documents, read from where they stand."""
    assert [
        f"{place}: {found}"
        for place, path, found in places(LINK)
        if path.suffix == ".md" and not (path.parent / found).exists()
    ] == []


def test_names_in_backticks_are_there() -> None:
    """`package.module.name`, as far as it names modules, and what the last of them defines."""
    assert [f"{place}: {found}" for place, _, found in places(NAME) if not leads(found)] == []


@cache
def leads(name: str) -> bool:
    """Whether the dotted name is a module, or its rest is defined or imported in one; or a gRPC
    service, or a key of the configuration."""
    parts = name.split(".")
    if name.startswith("dledger.v1."):
        return any(f"service {parts[2]} " in text for _, text in texts())
    if len(parts) == 2 and defines(ROOT / "broker" / "config.py", parts[1]):
        return True
    for length in range(len(parts), 0, -1):
        at = ROOT.joinpath(*parts[:length])
        for path in (at.with_suffix(".py"), at / "__init__.py"):
            if path.exists():
                return length == len(parts) or defines(path, parts[length])
    return False


def defines(path: Path, name: str) -> bool:
    """Whether the module has that name at its top level."""
    return name in names_in(path) or path.with_suffix(".pyi").exists()


@cache
def names_in(path: Path) -> set[str]:
    """What the module defines or imports, wherever it does."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                found.add(node.name)
            case ast.Name(ctx=ast.Store()):
                found.add(node.id)
            case ast.alias():
                found.add(node.asname or node.name)
    return found


@pytest.mark.parametrize(
    "words", ["see issue 2", "(Promise 6)", "decision D3", "(D8)", "scenario 57", "durability.md"]
)
def test_a_citation_of_elsewhere_is_seen(words: str) -> None:
    """The pattern finds what it is made for."""
    assert ELSEWHERE.search(words)
