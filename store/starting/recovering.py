"""The last resort: a group whose majority is lost for ever goes on from one survivor's directory.

    a start's checks, on a rehearsal ─▶ shown ─▶ (confirmed) ─▶ the same, in earnest ─▶ term,
    durable ─▶ forced entry, durable ─▶ closed

The forced entry is a configuration that nobody proposed: it makes the survivor the only voter,
begins another epoch of the group, and says by which recovery, when, from where and whom it gave up
(docs/adr/0052-the-last-resort.md). It is one frame behind the last one: whole, or cut off by the
next start. Its term is written first, as no log is ahead of its term; a term that nothing follows
harms nobody. Nothing else in the directory changes.

What this must never do is judge by itself whether a start would succeed: it lets one happen.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dledger.codec import configuration_bytes
from dledger.core.group_epoch import (
    MAX_RECOVERIES,
    RECOVERY_ID_BYTES,
    GroupEpoch,
    Recovery,
)
from dledger.core.types import (
    MAX_INDEX,
    MAX_TERM,
    Configuration,
    DiskId,
    EntryKind,
    HardState,
    NodeId,
    Term,
)
from dledger.reading.entry import EPOCH_TERM_GAP, HEADER_SIZE
from store.directory import DirectoryState, Identity, lock_directory
from store.doubt import DoubtNote
from store.errors import OutOfRange, RecoveryRefused, StorageFailed
from store.files import FileSystem
from store.starting.derived import trusted_index
from store.starting.judging import identity_of, rehearsed
from store.starting.opening import Opened, Site, open_member

HOLDER: Final = "dledger member recover"


@dataclass(frozen=True, slots=True)
class Other:
    """A member that a recovery would give up. `address`: where the log says that it is found."""

    node_id: str
    disk_id: bytes
    address: str
    is_voter: bool


@dataclass(frozen=True, slots=True)
class Survivor:
    """What a member's directory holds, as its next start will find it.

    Attributes:
        term: the newest that it knows of.
        last_term, last_index, end_offset: of its last entry, and the byte behind that.
        committed_index, committed_digest: up to here it knows its log to be committed; what follows
            may be, or not. The running digest there.
        configuration, configuration_index: in force there; 0 where no entry says it.
        configuration_before: the one before, which counts as long as that entry isn't known to be
            committed, as it does in elections (ADR 41); None: it is known to be.
        last_time_ms: when its last entry was appended, by the log's clock.
    """

    path: Path
    broker_group: str
    node_id: str
    disk_id: bytes
    term: int
    first_index: int
    last_term: int
    last_index: int
    end_offset: int
    committed_index: int
    committed_digest: int
    last_time_ms: int
    configuration: Configuration
    configuration_index: int
    configuration_before: Configuration | None = None

    @property
    def end(self) -> tuple[int, int]:
        """Of two survivors the one whose end is greater has what the other may lack."""
        return self.last_term, self.last_index

    @property
    def address(self) -> str:
        """Where the log says that it is found."""
        before = self.configuration_before
        addresses = dict(before.addresses if before is not None else ())
        addresses |= dict(self.configuration.addresses)
        return addresses.get(NodeId(self.node_id), "")

    @property
    def is_voter(self) -> bool:
        """Whether it votes by the configuration in force too, and not by the one before alone."""
        return _votes(self.configuration, NodeId(self.node_id), self.disk_id)

    @property
    def is_alone(self) -> bool:
        """Whether it decides alone already: there is no majority to lose."""
        configuration = self.configuration
        return configuration.voters == {self.node_id} and not configuration.voters_outgoing

    @property
    def recovery(self) -> Recovery | None:
        """The recovery that its configuration in force is; None: another one is in force."""
        last = self.configuration.epoch.last
        return last if last is not None and last.index == self.configuration_index else None

    @property
    def others(self) -> tuple[Other, ...]:
        """The members that would be given up; of two configurations that may count, all of both."""
        found: dict[NodeId, Other] = {}
        for known in filter(None, (self.configuration, self.configuration_before)):
            addresses = dict(known.addresses)
            for node in known.members() - {NodeId(self.node_id)} - found.keys():
                at, votes = addresses.get(node, ""), known.is_voter(node)
                found[node] = Other(node, known.disk_of(node), at, votes)
        return tuple(found[node] for node in sorted(found))


@dataclass(frozen=True, slots=True)
class Recovered:
    """What was written: `survivor` as it was before, and the epoch that it is the first member of,
    from the forced entry on."""

    survivor: Survivor
    epoch: GroupEpoch
    term: int
    index: int


def identity_at(path: Path) -> Identity:
    """Whose the directory says it is.

    Raises:
        RecoveryRefused: it doesn't say.
    """
    stated = identity_of(path) if path.is_dir() else None
    if stated is None:
        raise RecoveryRefused(str(path), "it isn't a member's: no identity.json says whose it is")
    return stated


def examine(path: Path, identity: Identity, files: FileSystem) -> Survivor:
    """What a recovery would begin with. Nothing changes but the lock's holder.

    Raises:
        RecoveryRefused: this directory is none to recover from.
        StartRefused, StoreError, HardStateCorrupt, OSError: a node wouldn't start on it.
    """
    lock = lock_directory(files, path, HOLDER)
    try:
        with rehearsed(path, identity) as site:
            return survivor_of(site, open_member(site))
    finally:
        files.close(lock)


def same_up_to(one: Survivor, other: Survivor, files: FileSystem) -> int | None:
    """The entry up to which both directories know their logs to be committed, and hold the same;
    None if there is none such, or one of the logs begins behind it: nothing can be compared then.

    Raises:
        RecoveryRefused: they hold different entries there.
        OSError, StoreError: as `examine`.
    """
    less, more = sorted((one, other), key=lambda each: each.committed_index)
    index, identity = less.committed_index, identity_at(more.path)
    lock = lock_directory(files, more.path, HOLDER)
    try:
        with rehearsed(more.path, identity) as site, suppress(OutOfRange):
            if open_member(site).log.digest_at(index) != less.committed_digest:
                raise RecoveryRefused(
                    str(one.path),
                    f"{other.path} holds other entries at or before entry {index}, which both know "
                    "to be committed: one of them isn't what the group had. Compare them: `dledger "
                    f"audit replicas --replica {one.node_id}={one.path} "
                    f"--replica {other.node_id}={other.path}`",
                )
            return index or None
    finally:
        files.close(lock)
    return None


def survivor_of(site: Site, opened: Opened) -> Survivor:
    """The survivor whose directory is open.

    Raises:
        RecoveryRefused: it can't go on alone.
    """
    log, disk, node = opened.log, opened.directory.disk, NodeId(site.identity.node_id)
    committed = trusted_index(log)
    (index, configuration), before = _in_force(opened, committed)
    _check_able(site, opened, (index, configuration), before)
    return Survivor(
        path=site.path,
        broker_group=site.identity.broker_group,
        node_id=node,
        disk_id=disk.disk_id,
        term=max(opened.hard_state.term, log.last_term),
        first_index=log.first_index,
        last_term=log.last_term,
        last_index=log.last_index,
        end_offset=log.end_offset,
        committed_index=committed,
        committed_digest=log.digest_at(committed),
        last_time_ms=log.last_append_time_ms,
        configuration=configuration,
        configuration_index=index,
        configuration_before=before,
    )


def _in_force(
    opened: Opened, committed: int
) -> tuple[tuple[int, Configuration], Configuration | None]:
    """The newest configuration, where it stands, and the one before, if that may count still. What
    a recovery forced is decided, whoever knows of it."""
    base, known = opened.summary.base, [(0, opened.base)]
    if base.configuration is not None:
        known = [(base.place.at, base.configuration)]
    known += opened.summary.configurations
    (index, configuration), earlier = known[-1], known[:-1]
    if index <= committed or not earlier or earlier[-1][1].epoch != configuration.epoch:
        return (index, configuration), None
    return (index, configuration), earlier[-1][1]


def _votes(configuration: Configuration, node: NodeId, disk: bytes) -> bool:
    return configuration.is_voter(node) and configuration.disk_of(node) == disk


def _check_able(
    site: Site,
    opened: Opened,
    in_force: tuple[int, Configuration],
    before: Configuration | None,
) -> None:
    """Raises:
    RecoveryRefused: as a voter it would lack what it has to have.
    """
    path, node, disk = str(site.path), NodeId(site.identity.node_id), opened.directory.disk
    index, configuration = in_force
    is_joining = disk.state is not DirectoryState.FORMED
    if before is not None and not is_joining and _votes(before, node, disk.disk_id):
        configuration = before  # it has all that a voter has, and may vote still
    if configuration.disk_of(node) != disk.disk_id:
        unnamed = "it is joining: it was being taken in, and its log doesn't name its disk yet"
        gone = f"its log names {node} as a member no more"
        raise RecoveryRefused(path, unnamed if is_joining else gone)
    if not configuration.is_voter(node):
        raise RecoveryRefused(
            path, f"{node} learns and doesn't vote: it may lack what voters had acknowledged"
        )
    if is_joining:
        raise RecoveryRefused(path, _why_joining(node, index, trusted_index(opened.log)))
    if places := DoubtNote(site.files, site.path).read():
        raise RecoveryRefused(
            path,
            f"committed entries have rotted there, in {places[0][0]} and {len(places) - 1} other "
            "places, and nobody would be left to give them back: `dledger log repair` first, with "
            "--from whatever is left of the others' directories",
        )
    if configuration.epoch.number >= MAX_RECOVERIES:
        raise RecoveryRefused(
            path, f"the group was recovered {MAX_RECOVERIES} times, and can't be any more"
        )


def _why_joining(node: NodeId, index: int, trusted: int) -> str:
    """Of a directory whose log says that it votes: what the directory itself doesn't say, and what
    can be done about it."""
    by = f"it is joining: entry {index} of its log says that {node} votes on this disk"
    if index <= trusted:
        return (
            f"{by}, which it hadn't noted when it ended: start it, so that it does, and ask again"
        )
    return (
        f"{by}, which it doesn't know to be committed: it may have become a member just before, or "
        "not, and then it lacks what voters had acknowledged"
    )


# --- writing ------------------------------------------------------------------------------------


def force(
    site: Site,
    shown: Survivor,
    *,
    seen_term: int = 0,
    recovery_id: Callable[[], bytes] = lambda: os.urandom(RECOVERY_ID_BYTES),
    now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
) -> Recovered:
    """The group goes on from this directory, and all other members are given up.

    Args:
        site: with `InlineWorker`s, as nothing runs beside this.
        shown: what was agreed to.
        seen_term: the newest that any other member was seen to know.

    Raises:
        RecoveryRefused: it isn't as it was shown, or nothing has to be recovered.
        StartRefused, StoreError, HardStateCorrupt, OSError: a node wouldn't start on it, or it
            can't be written. What StorageFailed ends may have happened: ask again.
    """
    opened = open_member(site)
    with contextlib.closing(opened.directory):
        try:
            survivor = survivor_of(site, opened)
            if survivor != shown:
                raise RecoveryRefused(str(site.path), "it has changed since it was looked at")
            if survivor.is_alone:
                raise RecoveryRefused(
                    str(site.path), f"{survivor.node_id} decides alone: no majority is lost"
                )
            term = max(survivor.term, seen_term) + EPOCH_TERM_GAP
            if term > MAX_TERM or survivor.last_index >= MAX_INDEX:
                raise RecoveryRefused(str(site.path), f"no term is left above {survivor.term}")
            index = survivor.last_index + 1
            epoch = _epoch_after(survivor, term, index, recovery_id(), now_ms())
            opened.hard_state_store.save(HardState(Term(term)))
            _append(opened, survivor, epoch)
        finally:
            # Whatever a start would have verified it verifies still.
            opened.log.close(is_clean=False)
    return Recovered(survivor, epoch, term, index)


def _epoch_after(
    survivor: Survivor, term: int, index: int, recovery_id: bytes, now_ms: int
) -> GroupEpoch:
    recovery = Recovery(
        survivor=survivor.node_id,
        time_ms=max(0, now_ms),
        term=term,
        index=index,
        committed_index=survivor.committed_index,
        given_up=tuple((each.node_id, each.disk_id) for each in survivor.others),
    )
    return GroupEpoch((*survivor.configuration.epoch.recoveries, recovery_id), recovery)


def _append(opened: Opened, survivor: Survivor, epoch: GroupEpoch) -> None:
    """The forced entry follows the last one, durably.

    Raises:
        StorageFull: there is no room for it.
        StorageFailed: it may be there, or not.
    """
    node, log, last = NodeId(survivor.node_id), opened.log, epoch.last
    if last is None:
        raise AssertionError("an epoch that a recovery begins has one")
    address = survivor.address
    forced = Configuration(
        voters=frozenset({node}),
        disks=((node, DiskId(survivor.disk_id)),),
        addresses=((node, address),) if address else (),
        epoch=epoch,
    )
    body = configuration_bytes(forced)
    # The log's clock goes on when somebody leads; nobody does.
    log.has_room(HEADER_SIZE + len(body))  # a segment is made for it, if the last one is full
    log.append(EntryKind.CONFIGURATION, last.index, Term(last.term), survivor.last_time_ms, 0, body)
    log.submit(1)
    if log.synced_index < last.index:
        raise StorageFailed("the forced entry", OSError("it isn't durable"))
