"""Which replicas are to be compared, and how far each of them claims to be final.

Values only. A replica is a directory, perhaps on another host; its *position* is what its node
said of itself before anything was read. Positions must be taken first: bytes below a position
that was true once never change again, so the audit of a running group needs no lock.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from audit.errors import UsageMistake
from dledger.reading.objects import is_object, plain
from dledger.reading.survey import Position

_SPECIFICATION = re.compile(r"(?P<id>[A-Za-z0-9_.-]{1,64})=(?P<path>.+?)(?:@(?P<host>[^@/]+))?")


@dataclass(frozen=True, slots=True)
class Seat:
    """What a node that runs said of its place in the group. `serves`: it leads and is ready, and
    knows to be committed whatever any leader before it has acknowledged; `voters`: who votes by its
    log, of each configuration that is in force; none where it doesn't say."""

    term: int
    serves: bool = False
    voters: tuple[frozenset[str], ...] = ()


@dataclass(frozen=True, slots=True)
class Replica:
    """One copy of the log. `path` is a data directory or its `commitlog`; `host`: where it lies,
    for engines that run beside the nodes; `position`: None for a copy nobody was asked about;
    `address`: its node is asked for its log there, over gRPC, instead of its files; `silence`: why
    nothing of it can be read, empty for all but members that don't answer; `standing`: what is
    wrong with it by its node's word, or with whoever answers in its place; empty for all others;
    `is_member`: nothing says that its group's log doesn't name it; `seat`: as its node said, with
    the position."""

    id: str
    path: str
    host: str | None = None
    position: Position | None = None
    address: str | None = None
    silence: str = ""
    standing: str = ""
    is_member: bool = True
    seat: Seat | None = None


def parse_replica(text: str) -> Replica:
    """`NAME=PATH` or `NAME=PATH@HOST`; `PATH` may be an object store's address.

    Raises:
        UsageMistake: it is neither.
        CredentialsShown: it is an object store's address with credentials in it.
    """
    stored = plain(text.strip().partition("=")[2])  # First, as what is wrong is repeated.
    match = _SPECIFICATION.fullmatch(text.strip())
    if match is None:
        raise UsageMistake(f"{text!r} is no replica; wanted: NAME=PATH or NAME=PATH@HOST")
    if is_object(stored):
        return Replica(match["id"], stored)  # Which may have an @ in it: nobody is its host.
    path = plain(match["path"])
    if match["host"] is None:
        path = str(Path(path).absolute())
    elif not Path(path).is_absolute():
        raise UsageMistake(f"the path of {match['id']} on {match['host']} must be absolute")
    return Replica(match["id"], path, match["host"])


def check_replicas(replicas: list[Replica]) -> None:
    """The replicas can be told apart.

    Raises:
        UsageMistake: none are given, or two have one name or one place.
    """
    if not replicas:
        raise UsageMistake("no replica is given: use --replica NAME=PATH, --dir or --bootstrap")
    read = [each for each in replicas if not each.silence]  # of the others nothing is, anywhere
    for what, values in (
        ("name", [replica.id for replica in replicas]),
        ("place", [f"{each.path}@{each.address or each.host or 'here'}" for each in read]),
    ):
        twice = next((value for value in values if values.count(value) > 1), None)
        if twice is not None:
            raise UsageMistake(f"two replicas have the {what} {twice}")
