"""Groups whose disks are all at hand: formed by the members' own steps, without a network.

A member writes what it would write when it is told to over the network, in the same order and as
durably (`broker.forming.member`); all prepare before any commits. No node may run on the disks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from broker.config import ConfigError, NodeConfig, load_config
from broker.forming.member import Member
from broker.forming.planning import Description, founding_of, prepared_beside_joined
from broker.recovery import StoreMachinery, log_options, open_directory
from store.errors import StoreError
from store.files import FileSystem, OsFiles

REAL_MACHINERY = StoreMachinery()

RunAll = Callable[[Sequence[Callable[[], None]]], None]


def one_by_one(steps: Sequence[Callable[[], None]]) -> None:
    """In their order."""
    for step in steps:
        step()


def at_once(steps: Sequence[Callable[[], None]]) -> None:
    """Each on a thread of its own: disks take several fsyncs in little more than the time of one.
    None is under way afterwards; then the first error, if there was one."""
    with ThreadPoolExecutor(max(1, len(steps))) as threads:
        done = [threads.submit(step) for step in steps]
    for each in done:
        each.result()


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
    run_all: RunAll = one_by_one,
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
        described = [each.describe() for each in members]
        founding = founding_of(described, adopt=adopt)
        if founding is None:
            return
        if late := prepared_beside_joined(described):
            for each, name in late:
                members[described.index(each)].commit(name)
            return
        run_all([partial(each.prepare, founding) for each in members])
        run_all([partial(each.commit, founding.name) for each in members])


def form_configured(config_files: Sequence[Path]) -> None:
    """The disks of the nodes that are configured so are formed, several at a time. With what is
    wrong in a file, or with a disk, a node can't start, and tells it.

    Raises:
        FormationRefused: they can't be.
    """
    files = OsFiles()
    with contextlib.suppress(ConfigError, StoreError, OSError):
        configs = [load_config(each) for each in config_files]
        form_disks(configs, lambda _: files, run_all=at_once)
