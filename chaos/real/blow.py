"""One strike of a nemesis: whom it hits, with what, and where it may draw from."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from random import Random

from chaos.real.arena import Arena
from chaos.real.crew import Crew
from chaos.real.scenario import Option
from dledger.client import Client


@dataclass(frozen=True, slots=True)
class Blow:
    """One strike: whom it hits, with which options, under which label.

    `witness` reads what clients can read of the log's first so many bytes into the history, and
    says in a few words how that ended. `crew`: the members of consumer groups, if there are any.
    """

    arena: Arena
    client: Client
    label: str
    victims: tuple[str, ...]
    options: Mapping[str, Option]
    chance: Random
    witness: Callable[[int], Awaitable[str]]
    crew: Crew | None = None

    def number(self, name: str) -> float:
        """An option that is a number."""
        return float(self.options[name])

    @property
    def others(self) -> tuple[str, ...]:
        """The nodes that aren't hit."""
        return tuple(each for each in self.arena.node_ids if each not in self.victims)


# Gives a few words on what was done; may be empty. A strike that does nothing raises NothingStruck.
Act = Callable[[Blow], Awaitable[str]]
