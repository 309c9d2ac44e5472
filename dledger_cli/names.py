"""Names on the command line: what can be no topic's name is refused before a group is asked.

A group would answer that there is no such topic, which sends people to look for the topic. The
rule is the record's own; the group judges again, and alone says which topics there are.
"""

from __future__ import annotations

import re
from typing import Annotated, Final

import typer

from dledger.records.record import TOPIC_PATTERN
from dledger_cli.errors import CommandError

GROUP_PATTERN: Final = re.compile(r"[A-Za-z0-9_%-]{1,255}")
MEMBERS_PATTERN: Final = re.compile(r"[A-Za-z0-9_%-]{1,119}")
NODE_PATTERN: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


def checked_topic(name: str) -> str:
    """The name, which a topic can have.

    Raises:
        typer.BadParameter: it can't.
    """
    if not TOPIC_PATTERN.fullmatch(name):
        raise typer.BadParameter(f"{name[:80]!r} isn't 1 to 127 characters of A-Z a-z 0-9 _ % -")
    return name


def checked_consumer_group(name: str) -> str:
    """The name, which a consumer group can have.

    Raises:
        typer.BadParameter: it can't.
    """
    if not GROUP_PATTERN.fullmatch(name):
        raise typer.BadParameter(f"{name[:80]!r} isn't 1 to 255 characters of A-Z a-z 0-9 _ % -")
    return name


def checked_group_of_members(name: str) -> str:
    """The name, which a group of members, or of single messages, can have: `%RETRY%` and it, and
    `%DLQ%` and it, are topics.

    Raises:
        typer.BadParameter: it can't.
    """
    if not MEMBERS_PATTERN.fullmatch(name):
        raise typer.BadParameter(f"{name[:80]!r} isn't 1 to 119 characters of A-Z a-z 0-9 _ % -")
    return name


def check_node(name: str) -> None:
    """Returns if a node can be called so, or none is named.

    Raises:
        CommandError: it can't.
    """
    if name and not NODE_PATTERN.fullmatch(name):
        raise CommandError(f"{name[:80]!r} isn't 1 to 64 characters of A-Z a-z 0-9 _ -")


TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", callback=checked_topic)]
