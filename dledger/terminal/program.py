"""A program of commands, as all of ours are: plain texts, and no traceback drawn as a picture."""

from __future__ import annotations

from collections.abc import Callable

import typer


def new_program(help_text: str, *, name: str | None = None, completes: bool = False) -> typer.Typer:
    """Without commands yet. Help reads the same in a pipe. `completes`: it offers to be completed
    by the shell; only what is called by its own name can be."""
    return typer.Typer(
        name=name,
        no_args_is_help=True,
        add_completion=completes,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        help=help_text,
    )


def program_of(command: Callable[..., None]) -> typer.Typer:
    """One command, which is all of the program: no word leads to it."""
    program = typer.Typer(
        add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
    )
    program.command()(command)
    return program
