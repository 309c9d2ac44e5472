"""docs/mapping.md: every name of ours that it mentions is there, with the default that it says."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import typer
from pydantic import BaseModel

import dledger.client
from broker.config import NodeConfig
from dledger.client.delivery import Delivery
from dledger_cli.app import PROGRAMS

PAGE: Final = Path(__file__).parents[2] / "docs" / "mapping.md"
OURS: Final = 2  # the column, where there are four; the last one of two
UNITS: Final = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
SECONDS: Final = {"ms": 0.001, "s": 1, "min": 60, "h": 3_600}
NOT_SAID: Final = object()
CLICK_EXCEPTION: Final = typer.BadParameter.__mro__[2]  # of click, or of typer's own copy of it
NOT_OURS: Final = {"await", "async with", "rw", "r", "w"}  # what is shown, and no name


class Row(NamedTuple):
    line: int
    names: list[str]
    defaults: list[str]


def rows() -> Iterator[Row]:
    """What the page says of ours, a line of a table each."""
    for number, line in enumerate(PAGE.read_text().splitlines(), 1):
        cells = [each.strip() for each in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) not in (2, 4) or set(cells[0]) <= {"-"} or cells[0] == "there":
            continue
        ours = cells[OURS if len(cells) == 4 else 1]
        said = cells[3] if len(cells) == 4 else ""
        names = [each for each in re.findall(r"`([^`]+)`", ours) if each not in NOT_OURS]
        yield Row(number, names, [each for each in said.split("; ") if each])


def test_every_line_says_what_is_here_or_that_nothing_is() -> None:
    lines = PAGE.read_text().splitlines()
    found = list(rows())
    assert len(found) > 120
    for row in found:
        said = lines[row.line - 1]
        assert row.names or "| –" in said or "raising" in said, said


@pytest.mark.parametrize("row", list(rows()), ids=lambda row: f"line {row.line}")
def test_names_exist_and_defaults_are_the_real_ones(row: Row) -> None:
    values = [value for value in map(value_of, row.names) if value is not NOT_SAID]
    for said in row.defaults:
        assert any(is_shown_as(value, name, said) for name, value in _named(row)), (
            f"line {row.line} says {said}, and {row.names} are {values}"
        )


def _named(row: Row) -> list[tuple[str, Any]]:
    return [(name, value) for name in row.names if (value := value_of(name)) is not NOT_SAID]


def value_of(name: str) -> Any:
    """The default of an option, an argument or a key; `NOT_SAID` of what has none."""
    if name.startswith("dledger "):
        check_command(name)
        return NOT_SAID
    if re.fullmatch(r"[a-z_]+(\.[a-z_]+)?", name) and not hasattr(dledger.client, name):
        return of_configuration(name)
    match = re.fullmatch(r"([A-Za-z_]+)(?:\.([a-z_]+))?(?:\(([a-z_]+)=\))?", name)
    assert match, name
    holder, member, argument = match.groups()
    kind: Any = Delivery if holder == "Delivery" else getattr(dledger.client, holder)
    if member is None:
        return NOT_SAID
    if is_dataclass(kind) and member in {each.name for each in fields(kind)}:
        options: Any = kind
        return getattr(options(), member)
    found = getattr(kind, member, None)
    if found is None:  # what `__init__` makes
        assert re.search(rf"\b{member}\b", inspect.getsource(kind)), name
        return NOT_SAID
    if argument is None:
        return NOT_SAID
    default = inspect.signature(found).parameters[argument].default
    return NOT_SAID if default is inspect.Parameter.empty else default


def of_configuration(name: str) -> Any:
    model: type[BaseModel] = NodeConfig
    *sections, key = name.split(".")
    for section in sections:
        field = model.model_fields[section]
        model = type(field.default)
    field = model.model_fields[key]
    return NOT_SAID if field.is_required() else field.default


def check_command(text: str) -> None:
    """There is such a command, and it has these options."""
    words = [word for word in text.split()[1:] if not word.startswith("-")]
    program = PROGRAMS[words[0]].load()
    if program.registered_callback is None and len(program.registered_commands) == 1:
        command: Any = typer.main.get_command(program)
    else:
        command = typer.main.get_command(program)
        for word in words[1:]:
            command = command.commands[word]
    options = {option for each in command.params for option in each.opts}
    assert set(re.findall(r"--[a-z-]+", text)) <= options, text


def is_shown_as(value: Any, name: str, said: str) -> bool:
    """Whether that is how the page shows the value."""
    if value is None or value in ("", ()):
        return said == "none"
    if isinstance(value, bool):
        return said == str(value).lower()
    if isinstance(value, Enum):
        return bool(said == value.name)
    if isinstance(value, str):
        return bool(said == value)
    number, _, unit = said.replace(",", "").partition(" ")
    if unit in UNITS:
        return bool(float(number) * UNITS[unit] == value)
    if unit in SECONDS:
        seconds = float(number) * SECONDS[unit]
        in_ms = name.rstrip("=)").endswith("_ms")
        return bool(abs(seconds - (value / 1000 if in_ms else value)) < 1e-9)
    shown: str = f"{value:g}" if value < 1e6 else str(value)
    return not unit and number == shown


def test_the_judge_of_defaults_judges() -> None:
    """A wrong one is told from the right one, of each kind."""
    right: list[tuple[Any, str, str]] = [
        (None, "x", "none"),
        (False, "x", "false"),
        (4 << 10, "x_bytes", "4 KiB"),
    ]
    right += [(15_000, "hold_ms", "15 s"), (900.0, "x_s", "15 min"), (100_000, "x", "100,000")]
    for value, name, said in right:
        assert is_shown_as(value, name, said)
        others = {other for _, _, other in right} - {said}
        assert not any(is_shown_as(value, name, other) for other in others)
    for wrong in ("`ProducerOptions.nope`", "`Client.nope`", "`retention.nope`"):
        with pytest.raises((AssertionError, AttributeError, KeyError)):
            value_of(wrong.strip("`"))
    with pytest.raises((AssertionError, KeyError, CLICK_EXCEPTION)):
        check_command("dledger topic nope")
    with pytest.raises(AssertionError):
        check_command("dledger topic list --nope")
