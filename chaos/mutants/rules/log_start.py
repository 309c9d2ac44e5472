"""Defects in logs that begin later than entry 1: what may go, in which order, and what stands for
it (docs/adr/0043-a-log-that-begins-later.md)."""

from __future__ import annotations

from chaos.mutants.mutant import Mutant

_STORE = ("tests/store/test_log_start.py",)
_CORE = ("tests/core/test_snapshots.py",)
_STATE = ("tests/broker/test_log_start.py",)
_MOVES = "move-start"

LOG_START = (
    Mutant(
        "front-dropped-before-the-note-says-so",
        "broker/log_start.py",
        "            await self._hand.run(partial(front.note.replace, start))\n",
        "            pass\n",
        under=_MOVES,
    ),
    Mutant(
        "front-dropped-beyond-what-is-noted",
        "broker/log_start.py",
        "last = min(wanted - 1, front.snapshots.covered_index, noted)",
        "last = wanted - 1",
        under=_MOVES,
    ),
    Mutant(
        "base-removed-with-old-snapshots",
        "broker/snapshots.py",
        "kept = {index, self.covered_index, *self.bases()}",
        "kept = {index, self.covered_index}",
        under=_MOVES,
    ),
    Mutant(
        "snapshot-of-now-for-the-base",
        "broker/log_start.py",
        "write_base(head, machine.snapshot(), BaseOf.OWN)",
        "write_base(head, self._front.machine.snapshot(), BaseOf.OWN)",
        under=_MOVES,
    ),
    Mutant(
        "files-of-a-drop-left-for-the-log",
        "store/recovery.py",
        "        return bases[len(dropped) :]\n",
        "        return bases\n",
        masked="files are there only if a crash left them",
        tests=_STORE,
    ),
    Mutant(
        "log-start-note-not-missed",
        "store/segment_files.py",
        "    if state.first_offset > begins_at:\n",
        "    if state.first_offset > begins_at + state.watermark:\n",
        masked="nobody takes the note away",
        tests=_STORE,
    ),
    Mutant(
        "installed-over-the-old-log",
        "store/log_start.py",
        "        self._clear(file_name(start.index))\n        StartNote",
        "        StartNote",
        under=_MOVES,
        tests=_STORE,
    ),
    Mutant(
        "intent-gone-before-it-is-done",
        "store/log_start.py",
        "        self._clear(file_name(start.index))\n",
        "        self._file.remove()\n        self._clear(file_name(start.index))\n",
        masked="few crashes meet these few operations",
        tests=_STORE,
    ),
    Mutant(
        "checkpoint-of-the-old-log-kept",
        "store/log_start.py",
        "checkpoint.begin_at(start.offset(segment_size), start.index, start.append_time_ms)",
        "checkpoint.sync()",
        under=_MOVES,
        tests=_STORE,
    ),
    Mutant(
        "base-acknowledged-unseen",
        "dledger/core/follower.py",
        "    elif log.matches(base.index, base.term):\n",
        "    elif base.index <= log.last_index:\n",
        masked="few logs reach beyond a base and differ from it",
        tests=_CORE,
    ),
    Mutant(
        "entries-sent-that-are-gone",
        "dledger/core/replication.py",
        "PeerState.SNAPSHOT and progress.next_index <= state.log.base.index:",
        "PeerState.SNAPSHOT and progress.next_index < state.log.base.index:",
        under=_MOVES,
        tests=_CORE,
    ),
    Mutant(
        "begins-anew-with-what-it-has",
        "dledger/core/raft.py",
        "return state.role is Role.FOLLOWER and is_safe and not is_here and not state.has_failed",
        "return state.role is Role.FOLLOWER and is_safe and not state.has_failed",
        masked="it is offered what it lacks, and seldom gets that meanwhile",
        tests=_CORE,
    ),
    Mutant(
        "begins-anew-in-a-term-that-may-be-lost",
        "dledger/core/raft.py",
        "is_safe = state.persists.hard_state_is_durable and base.term <= state.term",
        "is_safe = base.term <= state.term",
        masked="a crash would have to come within one sync",
        tests=_CORE,
    ),
    Mutant(
        "core-forgets-what-isnt-settled",
        "dledger/core/log.py",
        "        settled = min(self.commit_index, self.durable_index)\n",
        "        settled = self.last_index\n",
        masked="whoever asks has looked",
        tests=_CORE,
    ),
    Mutant(
        "log-start-beyond-what-is-applied",
        "broker/state/log_start.py",
        "        if not self.first_index < wanted <= applied_index:\n",
        "        if not self.first_index < wanted:\n",
        masked="no leader proposes it",
        tests=_STATE,
    ),
    Mutant(
        "log-start-goes-back",
        "broker/state/log_start.py",
        "        if not self.first_index < wanted <= applied_index:\n",
        "        if wanted > applied_index:\n",
        under=_MOVES,
        tests=_STATE,
    ),
    Mutant(
        "scrub-goes-on-in-what-is-gone",
        "store/commitlog.py",
        "        self.scrub.begin_at()\n",
        "",
        under=_MOVES,
        tests=_STORE,
    ),
)
