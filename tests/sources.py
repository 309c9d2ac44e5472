"""The project's own sources, as tests of its house read them: each file once in a process."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent


@cache
def text_of(path: Path) -> str:
    """What the file says."""
    return path.read_text(encoding="utf-8")


@cache
def tree_of(path: Path) -> ast.Module:
    """The syntax tree of a module; nobody changes it."""
    return ast.parse(text_of(path))


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Every node of its tree, as `ast.walk` gives them."""
    return tuple(ast.walk(tree_of(path)))


@cache
def modules_below(folder: Path) -> tuple[Path, ...]:
    """Every Python file in the folder and below, in order."""
    return tuple(sorted(folder.rglob("*.py")))
