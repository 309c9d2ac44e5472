"""Groups whose disks are all at hand: formed by the product's own steps, without a network."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

from broker.config import NodeConfig
from broker.forming.member import Member
from broker.forming.planning import founding_of
from broker.recovery import StoreMachinery, log_options, open_directory
from store.files import FileSystem

REAL_MACHINERY = StoreMachinery()


def form_disks(
    configs: Iterable[NodeConfig],
    files_of: Callable[[str], FileSystem],
    machinery_of: Callable[[str], StoreMachinery] = lambda _: REAL_MACHINERY,
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
            directory = open_directory(config, files, machinery.birth)
            opened.enter_context(contextlib.closing(directory))
            options = machinery.log_options or log_options(config)
            members.append(Member(directory, files, options, config.peers))
        founding = founding_of([each.describe() for each in members], adopt=False)
        if founding is None:
            return
        for each in members:
            each.prepare(founding)
        for each in members:
            each.commit(founding.name)
