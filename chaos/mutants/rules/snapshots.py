"""Defects in snapshots of state on disk: what they claim, when they count, what a start proves
(docs/adr/0038-snapshots-of-state-on-disk.md)."""

from __future__ import annotations

from chaos.mutants.mutant import Mutant

_KEPT = ("tests/broker/test_snapshots_on_disk.py",)
_FILES = ("tests/store/test_snapshot_files.py",)

SNAPSHOTS = (
    Mutant(
        "snapshot-written-before-it-is-noted",
        "broker/snapshots.py",
        "if self._taken is not None and self.source.noted() >= self._taken[0].applied_index:",
        "if self._taken is not None:",
    ),
    Mutant(
        "note-not-synced-before-a-snapshots-name",
        "broker/snapshots.py",
        "                await self._hand.run(self._sync_note)\n",
        "",
        under="power",
    ),
    Mutant(
        "snapshot-not-synced",
        "store/snapshot_files.py",
        "        self._files.fsync(self._open)\n",
        "",
        under="power",
    ),
    Mutant(
        "snapshot-named-in-the-page-cache-only",
        "store/snapshot_files.py",
        "        self._files.fsync_directory(self._folder)\n",
        "",
        masked="the snapshots before it, or the log, stand for it",
        tests=_KEPT,
    ),
    Mutant(
        "snapshot-says-the-entry-before",
        "broker/snapshots.py",
        "return head_at(self.log, self.disk_id, self.machine.applied_index)",
        "return head_at(self.log, self.disk_id, max(1, self.machine.applied_index - 1))",
    ),
    Mutant(
        "snapshot-of-another-log-restored",
        "store/starting/snapshots.py",
        "        if head != own:\n",
        "        if head.applied_index != own.applied_index:\n",
        masked="logs of one group are alike where they are committed",
        tests=_KEPT,
    ),
    Mutant(
        "snapshot-believed-beyond-the-note",
        "broker/snapshots.py",
        "[index for index in found if 0 < index <= through][:TRIED]",
        "[index for index in found if 0 < index <= source.last_index][:TRIED]",
        masked="there is none as long as it is written behind the note",
        tests=_KEPT,
    ),
    Mutant(
        "damaged-snapshot-ends-the-start",
        "broker/snapshots.py",
        "REFUSALS: Final = (SnapshotRefused, SnapshotOfAnother, CorruptionFound, ",
        "REFUSALS: Final = (SnapshotRefused, SnapshotOfAnother, ",
        under="snapshot-rot",
    ),
    Mutant(
        "sum-over-a-snapshot-not-compared",
        "store/snapshot_files.py",
        "        if crc != expected:\n",
        "        if crc is None:\n",
        masked="each chunk has a sum of its own",
        tests=_FILES,
    ),
    Mutant(
        "full-disk-of-a-snapshot-ends-the-member",
        "broker/snapshots.py",
        "if isinstance(error, OSError) and error.errno in DISK_ERRNOS:",
        "if isinstance(error, OSError):",
        under="disk-full",
    ),
    Mutant(
        "sick-disk-of-a-snapshot-passed-over",
        "broker/snapshots.py",
        "if isinstance(error, OSError) and error.errno in DISK_ERRNOS:",
        "if isinstance(error, OSError) and error.errno == 5:",
        masked="nobody looks whether a member goes on beside a disk that failed once",
        tests=_KEPT,
    ),
    Mutant(
        "checkpoint-synced-under-the-leniency-of-snapshots",
        "broker/snapshots.py",
        "await self._hand.run(self._sync_note)",
        "await self._hand.run(self.source.log.checkpoint.sync)",
        masked="the disk that fills finds room for what is written in place",
        tests=_KEPT,
    ),
    Mutant(
        "checkpoint-synced-again-after-it-failed",
        "store/checkpoint.py",
        "                self._sync_failed = error\n",
        "",
        masked="a member ends at the first failure, and no other thread is simulated",
        tests=_KEPT,
    ),
    Mutant(
        "one-snapshot-kept",
        "broker/snapshots.py",
        "kept = {index} if before is None else {index, before.applied_index}",
        "kept = {index}",
        masked="one is enough until it rots, and then the log is there",
        tests=_KEPT,
    ),
    Mutant(
        "units-before-a-snapshot-not-proved",
        "broker/state/replay.py",
        "    compared.prove_later(machine)\n",
        "",
        under="queue-rot",
    ),
    Mutant(
        "restored-units-are-not-summed",
        "broker/state/topics.py",
        "        topic.units_crcs.extend(part.units_crcs)\n",
        "        topic.units_crcs.extend([0] * len(part.units_crcs))\n",
    ),
    Mutant(
        "units-summed-from-the-last-batch-on",
        "broker/state/topics.py",
        "crc32c(units, topic.units_crcs[queue_id])",
        "crc32c(units)",
        masked="all members alike find their queues wrong, and mend them for nothing",
        tests=("tests/broker/test_machine.py",),
    ),
    Mutant(
        "log-before-a-snapshot-not-verified",
        "broker/recovery.py",
        "        if found.log.recovery.clean_shutdown:  # else the walk has read every byte\n",
        "        if False:\n",
        masked="what rots in the simulator is looked for after unclean stops",
        tests=("tests/starting/test_judgement.py",),
    ),
    Mutant(
        "state-of-an-unknown-level-restored",
        "broker/state/machine.py",
        "        if machine.level.current > known_level:\n",
        "        if machine.level.current < 0:\n",
        masked="no program of a simulated group is ever put back",
        tests=_KEPT,
    ),
)
