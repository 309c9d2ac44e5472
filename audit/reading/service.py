"""Whether a replica's log is its group's, by its own word.

A member whose log parted from the others' takes itself out of service and says so, as does one that
was given up in a recovery by force; a mark in its directory says it where no node runs. Its log may
be longer than the group's, and all the longer the more of it was lost. Nobody asks such a log what
the group holds.
"""

from __future__ import annotations

import os
from pathlib import Path

from audit.reading.replica import Replica
from dledger.reading.files import names_in
from dledger.reading.objects import is_object
from dledger.reading.survey import commitlog_of
from store.files import OsFiles
from store.out_of_service import FILE_NAME, mark_of


def not_the_groups(replica: Replica) -> str:
    """Why the replica's log isn't its group's, in words; empty where nothing says so.

    What stands in the way of one whose node wasn't asked, as another one answers in its place, says
    nothing about its files: it is a copy like others.
    """
    if replica.standing and replica.position is not None:
        return replica.standing
    if not replica.is_member:
        return f"{replica.id} is no member of its group, by the group's log"
    if replica.silence or replica.address is not None:
        return ""
    if is_object(replica.path):
        return _marked_in_store(replica)
    found = mark_of(OsFiles(), Path(os.path.dirname(commitlog_of(replica.path))))
    return "" if found is None else f"{replica.id} is out of service: {found}"


def _marked_in_store(replica: Replica) -> str:
    """What a mark beside the log says where it is no file; whoever reads the log is told of a store
    that doesn't answer."""
    try:
        folder = os.path.dirname(commitlog_of(replica.path))
        is_marked = FILE_NAME in names_in(folder)
    except OSError:
        return ""
    return f"{replica.id} is out of service: {folder} holds {FILE_NAME}" if is_marked else ""
