"""Groups whose disks are all at hand: formed by the product's own steps, without a network."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator

from broker.config import NodeConfig
from broker.forming.member import Member
from broker.forming.planning import Description, founding_of
from broker.recovery import StoreMachinery, log_options, open_directory
from store.files import FileSystem

REAL_MACHINERY = StoreMachinery()


def describe_disk(
    config: NodeConfig, files: FileSystem, machinery: StoreMachinery = REAL_MACHINERY
) -> Description:
    """What the member says of itself whose disk it is; one that was never used is given its
    identity."""
    with _member(config, files, machinery) as member:
        return member.describe()


def join_disk(
    config: NodeConfig, files: FileSystem, machinery: StoreMachinery = REAL_MACHINERY
) -> None:
    """The disk takes the place of one that was lost: the group's log names it."""
    with _member(config, files, machinery) as member:
        member.join(member.describe().disk_id)


@contextlib.contextmanager
def _member(config: NodeConfig, files: FileSystem, machinery: StoreMachinery) -> Iterator[Member]:
    with contextlib.closing(open_directory(config, files, machinery)) as directory:
        options = machinery.log_options or log_options(config)
        yield Member(directory, files, options, config.peers)


def form_disks(
    configs: Iterable[NodeConfig],
    files_of: Callable[[str], FileSystem],
    machinery_of: Callable[[str], StoreMachinery] = lambda _: REAL_MACHINERY,
    *,
    adopt: bool = False,
) -> None:
    """The directories of `configs`, by node id on `files_of` it, are those of a formed group; those
    that were before stay as they are.

    Raises:
        FormationRefused: they can't be.
    """
    with contextlib.ExitStack() as opened:
        members: list[Member] = []
        for config in configs:
            files, machinery = files_of(config.node_id), machinery_of(config.node_id)
            members.append(opened.enter_context(_member(config, files, machinery)))
        founding = founding_of([each.describe() for each in members], adopt=adopt)
        if founding is None:
            return
        for each in members:
            each.prepare(founding)
        for each in members:
            each.commit(founding.name)
