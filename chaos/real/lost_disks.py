"""The nemesis of whole directories: one that is emptied, and a mount that isn't there.

A node that finds its directory empty, or none, must not come up as a member: with one such disk
and one node that lags, messages that a majority had acknowledged would be gone (ADR 22). It waits,
says for what, and is taken in by `dledger group replace`; or, where it was the mount, it is a
member again on the directory that it had. Clients go on meanwhile.
"""

from __future__ import annotations

from typing import Final

from broker.local_group import LocalGroupError
from chaos.real.blow import Blow
from chaos.real.processes import kill

WAYS: Final = ("emptied", "unmounted")


async def lose(blow: Blow) -> str:
    """The victims' directories are emptied below their processes, or gone when those have died;
    then they are started on what there is.

    Raises:
        LocalGroupError: one comes up as a member all the same.
    """
    is_mount = blow.options["how"] == "unmounted"
    if not is_mount:
        for victim in blow.victims:
            blow.arena.meant_to_be_down.add(victim)  # it may end by itself before it is killed
            blow.arena.empty(victim)
    await kill(blow)
    for victim in blow.victims:
        if is_mount:
            blow.arena.unmount(victim)
        else:
            blow.arena.empty(victim)  # of what it wrote since
        await blow.arena.start(victim)
        if not await blow.arena.waits(victim):
            raise LocalGroupError(f"{victim} is a member on a directory that was empty")
    return f"{', '.join(blow.victims)} came up as no member"


async def make_good(blow: Blow) -> str:
    """An empty directory takes the place of the lost one, as `group replace` does it; a mount is
    there again.

    Raises:
        LocalGroupError: a node doesn't come up as a member again.
    """
    is_mount = blow.options["how"] == "unmounted"
    for victim in blow.victims:
        if is_mount:
            blow.arena.kill(victim)
            await blow.arena.gone(victim)
            blow.arena.mount_again(victim)
            await blow.arena.start(victim)
        else:
            await blow.arena.take_in(victim)
        if await blow.arena.waits(victim):
            raise LocalGroupError(f"{victim} is no member again")
    return "mounted again" if is_mount else "replaced"
