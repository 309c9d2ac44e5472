"""Where a benchmark takes place: a group of its own, a local group that exists, or any group.

A group of its own lives in a fresh temporary directory and is gone when the block ends, however
it ends: nodes killed, files removed, a second Ctrl-C ignored meanwhile. From a group that exists
only the benchmark's topics are deleted; the bytes they took in its log stay.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from broker.local_group import GROUP_FILE, GroupOptions, LocalGroup, LocalGroupError
from dledger.client import Client, ClientError, ClientOptions
from dledger.credentials.tls import TlsFiles
from dledger.terminal.loops import uninterrupted
from dledger.terminal.tls import chosen_files, forget

QUEUES = 8  # of a benchmark's topic, as in the demo
PREFIX = "dledger-bench-"


@dataclass(frozen=True, slots=True)
class Arena:
    """What a benchmark may use. `group` and `directory` are None for a group known by address;
    `tls` is what a client of it shows, None: what the environment says."""

    addresses: tuple[str, ...]
    group: LocalGroup | None
    directory: Path | None  # on the file system of the nodes' data
    temporary: bool  # the group ends with the benchmark
    tls: TlsFiles | None = None

    def local_group(self) -> LocalGroup:
        """The group, for benchmarks that need its processes.

        Raises:
            LocalGroupError: it is known by its addresses only.
        """
        if self.group is None:
            raise LocalGroupError("this benchmark needs a local group: leave --bootstrap out")
        return self.group


@contextlib.contextmanager
def arena(
    *, bootstrap: Sequence[str] | None, directory: Path | None, options: GroupOptions
) -> Iterator[Arena]:
    """The group to measure: `bootstrap` if given, else the one in `directory`, else a new one.

    A new group is put beside `directory` (into its parent), or where temporary files go.
    `options` are for a new group only.

    Raises:
        LocalGroupError: the group can't be made or read.
    """
    if bootstrap is not None:
        yield Arena(tuple(bootstrap), None, None, temporary=False)
        return
    forget()
    if directory is not None and (directory / GROUP_FILE).exists():
        group = LocalGroup.open(directory)
        yield Arena(tuple(group.addresses), group, directory, temporary=False)
    else:
        with group_of_its_own(directory and directory.absolute().parent, options) as group:
            yield Arena(tuple(group.addresses), group, group.directory, temporary=True)


@contextlib.asynccontextmanager
async def connected(place: Arena) -> AsyncIterator[Client]:
    """A client of the arena's group; a local group is brought up first.

    Raises:
        LocalGroupError: a node doesn't start.
        ClientError: the broker group can't be reached.
    """
    if place.group is not None:
        await place.group.up()
    options = ClientOptions(tls=place.tls or chosen_files())
    async with Client.connect(place.addresses, options=options) as client:
        yield client


@contextlib.asynccontextmanager
async def fresh_topic(place: Arena, client: Client, queues: int = QUEUES) -> AsyncIterator[str]:
    """The name of a new topic, deleted at the end of the block if the group goes on."""
    topic = f"bench-{uuid4().hex[:12]}"
    await client.create_topic(topic, queues=queues)
    try:
        yield topic
    finally:
        if not place.temporary:
            # A topic that stays does no harm; the error that ended the block matters more.
            with contextlib.suppress(ClientError):
                await client.delete_topic(topic)


@contextlib.contextmanager
def group_of_its_own(parent: Path | None, options: GroupOptions) -> Iterator[LocalGroup]:
    """A new group in a fresh folder; neither is left afterwards."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    group: LocalGroup | None = None
    try:
        group = LocalGroup.create(folder, options)
        yield group
    finally:
        with uninterrupted():
            if group is not None:
                group.kill_all()
            shutil.rmtree(folder)
