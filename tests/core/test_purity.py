"""The core (ADR 2), the links and the log's clock stay pure: a test reads what they import."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import dledger.core
import dledger.links
import dledger.log_clock

PACKAGES = [Path(package.__path__[0]) for package in (dledger.core, dledger.links)]
MODULES = [*(path for package in PACKAGES for path in package.glob("*.py"))]
MODULES.append(Path(dledger.log_clock.__file__))
# Modules without a clock, a file, a socket, a thread or hidden state.
PURE = {
    "__future__",
    "bisect",
    "collections",
    "collections.abc",
    "dataclasses",
    "enum",
    "itertools",
    "math",
    "random",  # for the type of the generator that the driver passes in; see below
    "typing",
}
FORBIDDEN_CALLS = {"open", "print", "input", "exec", "eval", "__import__", "breakpoint"}


def impurities(source: str) -> list[str]:
    """What a module of the core may not do, as `line: what`."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.stmt | ast.expr):
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
            if node.module == "random" or node.level:
                found.append(f"{node.lineno}: from {'.' * node.level}{node.module}")
        else:
            names = []
        for name in names:
            if name not in PURE and not name.startswith(("dledger.core.", "dledger.links.")):
                found.append(f"{node.lineno}: import {name}")
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "random" and node.attr != "Random":
                found.append(f"{node.lineno}: random.{node.attr} uses the global generator")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in FORBIDDEN_CALLS:
                found.append(f"{node.lineno}: {node.func.id}()")
        elif isinstance(node, ast.Assert):
            found.append(f"{node.lineno}: assert vanishes under python -O")
    return found


@pytest.mark.parametrize(
    "path",
    sorted(MODULES),
    ids=lambda path: f"{path.parent.name}/{path.name}",
)
def test_module_is_pure(path: Path) -> None:
    """No clock, socket, file, thread, logger or global randomness (ADR 2)."""
    assert impurities(path.read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "import asyncio",
        "from os import path",
        "import logging",
        "import structlog",
        "import dledger.transport",
        "from dledger import driver",
        "from . import x",
        "import random\nrandom.random()",
        "from random import randint",
        "open('x')",
        "assert x",
    ],
)
def test_impurities_are_found(source: str) -> None:
    """The check above can fail."""
    assert impurities(source) != []
