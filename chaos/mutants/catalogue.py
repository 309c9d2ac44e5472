"""The defects: where, what is changed into what, and which seed is known to find it.

Each breaks one rule that the project states somewhere: a rule of the Raft paper, of the durability
page, or of the broker's promises. The text to change must occur exactly once in its file, so that
a change of the code that moves it is noticed. Longer than most modules because it is a table.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """One defect. `seed` is where the hunt begins; any later one will do. `masked` says why no
    run shows it: something behind it holds, or it costs time and no truth. Then the unit tests
    have to find it; `tests` names those that are its own."""

    name: str
    file: str
    old: str
    new: str
    seed: int = 0
    masked: str = ""
    tests: tuple[str, ...] = ()


CORE = (
    Mutant(
        "vote-before-fsync",
        "dledger/core/persistence.py",
        "return self._hard_state_sequence <= self._completed",
        "return True",
    ),
    Mutant(
        "acknowledge-before-fsync",
        "dledger/core/follower.py",
        "    log = state.log\n    match_index = min(log.durable_index, "
        "max(state.verified_index, log.commit_index))",
        "    log = state.log\n    match_index = max(state.verified_index, log.commit_index)",
    ),
    Mutant(
        "commit-an-old-term-by-counting",
        "dledger/core/replication.py",
        "if index > state.log.commit_index and index >= state.term_start_index:",
        "if index > state.log.commit_index:",
    ),
    Mutant(
        "leader-counts-itself-before-fsync",
        "dledger/core/state.py",
        "            return self.log.durable_index\n",
        "            return self.log.last_index\n",
    ),
    Mutant(
        "commit-with-one-too-few",
        "dledger/core/quorum.py",
        "return values[len(values) // 2]",
        "return values[len(values) // 2 - 1]",
    ),
    Mutant(
        "two-votes-in-a-term",
        "dledger/core/election.py",
        "    return state.vote == candidate\n",
        "    return True\n",
    ),
    Mutant(
        "vote-for-a-shorter-log",
        "dledger/core/election.py",
        "return (last_term, last_index) >= (state.log.last_term, state.log.last_index)",
        "return True",
    ),
    Mutant(
        "freshness-by-length-only",
        "dledger/core/election.py",
        "return (last_term, last_index) >= (state.log.last_term, state.log.last_index)",
        "return last_index >= state.log.last_index",
    ),
    Mutant(
        "vote-lost-on-stepping-down",
        "dledger/core/roles.py",
        "    if old_role is Role.LEADER:\n        _lay_down_leadership(state)",
        "    state.vote = None\n"
        "    if old_role is Role.LEADER:\n        _lay_down_leadership(state)",
    ),
    Mutant(
        "term-not-persisted",
        "dledger/core/state.py",
        "        self.persists.want_hard_state(HardState(term, None))\n",
        "",
    ),
    Mutant(
        "truncate-a-matching-suffix",
        "dledger/core/follower.py",
        "if log.term_at(entry.index) != entry.term:",
        "if True:",
    ),
    Mutant(
        "keep-a-conflicting-entry",
        "dledger/core/follower.py",
        "if log.term_at(entry.index) != entry.term:",
        "if False:",
    ),
    Mutant(
        "append-without-matching-the-previous-entry",
        "dledger/core/follower.py",
        "elif not log.matches(previous, message.prev_term):",
        "elif previous > log.last_index:",
    ),
    Mutant(
        "commit-what-was-not-verified",
        "dledger/core/follower.py",
        "    index = min(leader_commit, state.verified_index)\n",
        "    index = min(leader_commit, state.log.last_index)\n",
        masked="the leader clamps what heartbeats carry; truncation comes first",
    ),
    Mutant(
        "heartbeat-forgets-to-clamp-the-commit-index",
        "dledger/core/follower.py",
        "    index = min(leader_commit, state.verified_index)\n",
        "    index = leader_commit\n",
    ),
    Mutant(
        "late-fsync-of-an-overwritten-entry-counts",
        "dledger/core/persistence.py",
        "            (sequence, min(last, Index(index - 1))) "
        "for sequence, last in self._outstanding\n",
        "            (sequence, last) for sequence, last in self._outstanding\n",
    ),
    Mutant(
        "conflict-hint-off-by-one",
        "dledger/core/replication.py",
        "return Index(max(1, min(next_index, message.rejected_prev_index)))",
        "return Index(max(1, min(next_index, message.rejected_prev_index) + 1))",
    ),
    Mutant(
        "probe-never-repeated",
        "dledger/core/progress.py",
        "        if not self.probe_paused:\n            return False\n",
        "        return False\n",
    ),
    Mutant(
        "lost-appends-never-noticed",
        "dledger/core/progress.py",
        "return round_number > self.progress_round + patience",
        "return False",
    ),
    Mutant(
        "window-never-reopens",
        "dledger/core/progress.py",
        "        while inflight and inflight[0][0] <= match_index:\n",
        "        while False:\n",
        masked="the window is given up as lost after eight rounds",
    ),
    Mutant(
        "next-index-skips-one",
        "dledger/core/progress.py",
        "        self.next_index = Index(last + 1)\n",
        "        self.next_index = Index(last + 2)\n",
    ),
    Mutant(
        "read-without-a-quorum",
        "dledger/core/heartbeat.py",
        "if has_quorum(state.log.configuration, (state.node,)):",
        "if True:",
    ),
    Mutant(
        "read-confirmed-by-an-older-round",
        "dledger/core/heartbeat.py",
        "state.reads_round = state.heartbeat_round + 1",
        "state.reads_round = state.heartbeat_round",
        masked="an older round's answers are rarely under way",
    ),
    Mutant(
        "transfer-never-ends",
        "dledger/core/transfer.py",
        "if transfer.elapsed_ticks >= state.options.transfer_timeout_ticks:",
        "if False:",
        masked="the target is caught up when peace comes",
    ),
    Mutant(
        "no-election-timeout",
        "dledger/core/election.py",
        "    state.election_elapsed_ticks += 1\n",
        "    state.election_elapsed_ticks += state.suspicion_attempt > 0\n",
    ),
    Mutant(
        "no-noop-after-an-election",
        "dledger/core/roles.py",
        "    index = state.log.append(state.term, state.options.noop_size)\n"
        "    state.persists.want_append(index, index)\n"
        "    state.term_start_index = index\n"
        "    state.noop = Proposed(index, state.term)\n",
        "    state.term_start_index = Index(state.log.last_index + 1)\n",
    ),
    Mutant(
        "leadership-to-a-full-disk",
        "dledger/core/sick_disk.py",
        "        not progress.is_short_of_space\n        and progress.acked_round",
        "        progress.acked_round",
        masked="the full follower refuses honestly and hands over again",
    ),
    Mutant(
        "leadership-to-a-minority-with-room",
        "dledger/core/sick_disk.py",
        "    if not has_quorum(state.log.configuration, with_room):\n        return None\n",
        "",
        masked="nothing can be committed there, and nothing is lost either",
    ),
    Mutant(
        "full-node-stands-for-election-at-once",
        "dledger/core/election.py",
        "state.election_timeout_ticks + yielded_ticks(state)",
        "state.election_timeout_ticks",
        masked="it leads, refuses, and hands over",
    ),
)

DRIVER = (
    Mutant(
        "apply-before-commit",
        "dledger/driver.py",
        "        commit = self._core.commit_index\n        if self._applied >= commit",
        "        commit = self._core.last_index\n        if self._applied >= commit",
    ),
    Mutant(
        "hard-state-never-written",
        "dledger/driver.py",
        "        return lambda: store.save(state)\n",
        "        return None\n",
    ),
    Mutant(
        "durable-before-it-is",
        "dledger/driver.py",
        "self._guarded(lambda: self._core.on_persisted(PersistSequence(ticket)))",
        "self._guarded(\n            lambda: self._core.on_persisted(PersistSequence("
        "self._submitted_ticket))\n        )",
    ),
    Mutant(
        "aborted-read-served",
        "dledger/driver.py",
        "        if isinstance(read, ReadAborted):\n            _finish(waiting, served=False)",
        "        if isinstance(read, ReadAborted):\n            _finish(waiting, served=True)",
        masked="a node that lost leadership refuses before it is asked for the value",
    ),
    Mutant(
        "overlapping-append-written-twice",
        "dledger/driver.py",
        "        skip = self._held_of(headers)\n",
        "        skip = 0\n",
    ),
    Mutant(
        "log-not-told-of-a-truncation",
        "dledger/driver.py",
        "                self._ports.log.truncate_from(persist.truncate_from)\n"
        "            if persist is not None and persist.append_first",
        "                pass\n            if persist is not None and persist.append_first",
    ),
    Mutant(
        "append-time-runs-backwards",
        "dledger/driver.py",
        "return max(self._ports.now_ms(), self._ports.log.last_append_time_ms)",
        "return self._ports.now_ms()",
    ),
    Mutant(
        "hard-state-forgets-the-vote",
        "dledger/hard_state.py",
        '    vote = (state.vote or "").encode()\n',
        '    vote = b""\n',
    ),
    Mutant(
        "no-bound-on-what-waits-for-a-stalled-disk",
        "dledger/driver.py",
        "if log.unwritten_bytes > self._core.options.max_uncommitted_bytes:",
        "if False:",
        masked="memory, and no truth",
    ),
)

STORE = (
    Mutant(
        "no-fdatasync",
        "store/flusher.py",
        "                self._files.fdatasync(handle)\n",
        "                pass\n",
    ),
    Mutant(
        "fsync-error-swallowed",
        "store/flusher.py",
        "                self._files.fdatasync(handle)\n",
        "                try:\n                    self._files.fdatasync(handle)\n"
        "                except OSError:\n                    pass\n",
    ),
    Mutant(
        "directory-not-synced-after-rename",
        "store/files.py",
        "    files.rename(temporary, path)\n    files.fsync_directory(path.parent)\n",
        "    files.rename(temporary, path)\n",
    ),
    Mutant(
        "file-not-synced-before-rename",
        "store/files.py",
        "        write_all(files, handle, [content], 0)\n        files.fsync(handle)\n",
        "        write_all(files, handle, [content], 0)\n",
    ),
    Mutant(
        "segment-name-not-synced",
        "store/preallocation.py",
        "        files.rename(temporary, path)\n        files.fsync_directory(self._directory)\n",
        "        files.rename(temporary, path)\n",
    ),
    Mutant(
        "wrong-crc-and-digest-accepted",
        "dledger/reading/entry.py",
        "    computed = frame_crc(view, at, end)\n",
        "    return header\n    computed = frame_crc(view, at, end)\n",
    ),
    Mutant(
        "watermark-ahead-of-the-log",
        "store/flusher.py",
        "        started = self._clock()\n        if self._unsynced:\n",
        "        started = self._clock()\n"
        "        self._checkpoint.note_log(last.end_offset + 1, last.timestamp_ms)\n"
        "        self._checkpoint.sync()\n        if self._unsynced:\n",
    ),
    Mutant(
        "corruption-cut-like-a-torn-tail",
        "store/recovery.py",
        "            if end < self._watermark:\n",
        "            if False:\n",
    ),
    Mutant(
        "watermark-not-lowered-before-a-cut",
        "store/truncation.py",
        "    checkpoint.lower(cut)\n",
        "",
    ),
    Mutant(
        "page-cache-trusted-after-a-kill",
        "store/recovery.py",
        "            self._rewrite(min(self._watermark, end), end)\n",
        "",
    ),
    Mutant(
        "filler-not-written",
        "store/appending.py",
        "        self._write(full, (filler,), len(filler))\n",
        "",
    ),
    Mutant(
        "unwritten-frames-evicted",
        "store/tail.py",
        "            if sequence > written_sequence:\n                return\n",
        "",
    ),
    Mutant(
        "digest-not-restored-by-a-cut",
        "store/history.py",
        "        self.last_digest = last.digest if last else 0\n",
        "",
    ),
    Mutant(
        "cut-before-the-writes-it-follows",
        "store/flusher.py",
        "        self._write_runs()\n        cut_tail(",
        "        cut_tail(",
        masked="rarely is a write gathered with the cut behind it",
    ),
    Mutant(
        "cut-tail-not-zeroed",
        "store/truncation.py",
        "        zeroed += zero_range(files, each.handle, each.start, each.end)\n",
        "        pass\n",
    ),
    Mutant(
        "starts-read-from-unwritten-files",
        "store/segments.py",
        "            if old.first_index + old.count > written_below:\n                return\n",
        "",
        masked="it takes nine segments that wait for the disk",
    ),
    Mutant(
        "consume-queue-rest-not-zeroed",
        "store/consumequeue.py",
        "            self._files.truncate(handle, at)\n"
        "            self._files.truncate(handle, self._file_size)\n"
        "            self._written[path] = None\n",
        "            pass\n",
        masked="the units are written again in the end",
    ),
    Mutant(
        "consume-queue-unit-of-the-wrong-record",
        "store/dispatch.py",
        "        units.append(UNIT.pack(expected[1], end - start, code))\n",
        "        at = expected[1] + (queue_offset % 97 == 13)\n"
        "        units.append(UNIT.pack(at, end - start, code))\n",
    ),
    Mutant(
        "deleted-topic-keeps-its-queues",
        "broker/state/machine.py",
        "            self._queues.delete_topic(name)\n",
        "            pass\n",
    ),
    Mutant(
        "record-read-by-position-unverified",
        "store/segment_reader.py",
        "        head = self._read_segment(segment, first, last - first + 1)"
        "[skip : skip + from_file]\n",
        "        del last, skip\n        head = read_exactly(\n"
        "            self._files, segment.handle, from_file, start, str(segment.path)\n        )\n",
    ),
    Mutant(
        "spare-renamed-before-fsync",
        "store/files.py",
        "            self._files.truncate(handle, len(stored))\n"
        "            self._files.fsync(handle)\n",
        "            self._files.truncate(handle, len(stored))\n",
    ),
)

BROKER = (
    Mutant(
        "retry-stored-again",
        "broker/leader/append.py",
        "        if is_numbered and batch.base_sequence < expected:\n",
        "        if False:\n",
    ),
    Mutant(
        "sequences-not-remembered",
        "broker/state/machine.py",
        "        if producer != NO_PRODUCER:\n",
        "        if False:\n",
    ),
    Mutant(
        "gap-in-a-sequence-accepted",
        "broker/leader/append.py",
        "        if is_numbered and batch.base_sequence > expected:\n",
        "        if False:\n",
    ),
    Mutant(
        "retry-answered-with-the-newest-batch",
        "broker/leader/append.py",
        "                pending.finish_one(position, self._stored_before(stored))\n",
        "                pending.finish_one(position, self._stored_before(state.recent[-1]))\n",
    ),
    Mutant(
        "answered-before-commit",
        "broker/leader/append.py",
        "        self._waiting.setdefault(index, []).append("
        "Waiting(pending, position, self._result(stored)))\n",
        "        pending.finish_one(position, self._result(stored))\n",
    ),
    Mutant(
        "queue-offset-given-twice",
        "broker/leader/flight.py",
        "        self._ends[lane.place] = index, batch.base_queue_offset + batch.record_count\n",
        "",
    ),
    Mutant(
        "waiting-sends-survive-leadership",
        "broker/leader/leadership.py",
        "self._appender.end(",
        "(lambda _: None)(",
    ),
    Mutant(
        "serving-before-all-is-applied",
        "broker/leader/leadership.py",
        "    def _on_role(self, role: Role) -> None:\n",
        "    def _on_role(self, role: Role) -> None:\n"
        "        if role is Role.LEADER and self._replication is not None:\n"
        "            self._appender.begin(self._replication.applied_index)\n"
        "            self.serving = True\n",
    ),
    Mutant(
        "offset-moved-back",
        "broker/state/offsets.py",
        "if command.is_reset or offset > after.get(queue_id, -1):",
        "if True:",
    ),
    Mutant(
        "gap-told-by-an-unconfirmed-leader",
        "broker/services/messages.py",
        "        if any(_is_absence(each) for each in answers):\n",
        "        if False:\n",
    ),
    Mutant(
        "stale-read-of-the-end",
        "broker/services/offsets.py",
        "        await self._gate.confirm()\n        return QueueBounds(",
        "        self._gate.check_serving()\n        return QueueBounds(",
    ),
    Mutant(
        "stale-read-of-an-offset",
        "broker/services/offsets.py",
        "        await self._gate.confirm()\n        self._reader.topic(topic)\n",
        "        self._gate.check_serving()\n        self._reader.topic(topic)\n",
    ),
    Mutant(
        "existing-topic-created-again",
        "broker/state/topics.py",
        "        if existing is not None:\n",
        "        if False:\n",
    ),
    Mutant(
        "state-from-the-wall-clock",
        "broker/state/topics.py",
        "TopicState(name, incarnation, created_time_ms, [0] * queue_count)",
        "TopicState(name, incarnation, __import__('time').time_ns(), [0] * queue_count)",
    ),
    Mutant(
        "producer-times-differ-after-replay",
        "broker/state/machine.py",
        "            batch = StoredBatch(sequence, count, base, physical, header.append_time_ms)\n",
        "            time_ms = header.append_time_ms * (header.index > self._derived_through)\n"
        "            batch = StoredBatch(sequence, count, base, physical, time_ms)\n",
    ),
    Mutant(
        "pull-skips-a-message",
        "broker/reading/queues.py",
        "        return Found(records, count, offset + count, low, high)\n",
        "        at = _runs(units, 1)[0][0][1] if count > 5 else 0\n"
        "        return Found(records[at:], count - (at > 0), offset + count, low, high)\n",
    ),
)

# Owners of replicated state: what a snapshot keeps, what a deleted topic takes along, who forgets.
STATE = (
    Mutant(
        "deleted-topic-leaves-its-offsets",
        "broker/state/machine.py",
        "        self.offsets.on_topic_deleted(name)\n",
        "",
    ),
    Mutant(
        "deleted-topic-leaves-its-sequences",
        "broker/state/machine.py",
        "        self.sequences.on_topic_deleted(name)\n",
        "",
    ),
    Mutant(
        "deleted-topic-leaves-its-queues-counted",
        "broker/state/topics.py",
        "        self._queue_count -= len(self._topics.pop(name).next_offsets)\n",
        "        del self._topics[name]\n",
    ),
    Mutant(
        "producers-forgotten-by-the-wall-clock",
        "broker/state/sequences.py",
        "        self._forget(batch.store_time_ms)\n",
        "        self._forget(__import__('time').time_ns() // 1_000_000)\n",
    ),
    Mutant(
        "surplus-producers-forgotten-at-the-wrong-end",
        "broker/state/sequences.py",
        "            oldest = next(iter(self._recent))\n",
        "            oldest = next(reversed(self._recent))\n",
        masked="no run has as many producers as are remembered, nor lasts a week",
    ),
    Mutant(
        "snapshot-without-its-last-records",
        "broker/state/snapshot.py",
        '    yield b"".join(gathered)\n\n\ndef pack_text',
        '    yield b""\n\n\ndef pack_text',
    ),
    Mutant(
        "snapshot-of-the-entry-before",
        "broker/state/machine.py",
        "        return seal(self.applied_index, sections)\n",
        "        return seal(max(0, self.applied_index - 1), sections)\n",
    ),
    Mutant(
        "snapshot-shows-what-comes-later",
        "broker/state/topics.py",
        "(t.name, t.incarnation, t.created_time_ms, tuple(t.next_offsets))",
        "(t.name, t.incarnation, t.created_time_ms, t.next_offsets)",
    ),
    Mutant(
        "snapshot-loses-who-was-used-last",
        "broker/state/sequences.py",
        "        keys, values = list(self._recent), list(self._recent.values())\n",
        "        keys = sorted(self._recent)\n"
        "        values = [self._recent[key] for key in keys]\n",
    ),
    Mutant(
        "restored-topic-forgets-its-birth",
        "broker/state/topics.py",
        "TopicState(name, *made, [])",
        "TopicState(name, made[0], 0, [])",
    ),
    Mutant(
        "restored-producer-remembers-one-batch",
        "broker/state/sequences.py",
        "self._recent[key] = tuple(batches)",
        "self._recent[key] = tuple(batches[-1:])",
    ),
    Mutant(
        "restored-offsets-are-not-counted",
        "broker/state/offsets.py",
        "        self._put(topic, group, offsets, is_new=before is None)\n",
        "        self._put(topic, group, offsets, is_new=False)\n",
    ),
    Mutant(
        "restored-machine-forgets-the-time",
        "broker/state/machine.py",
        "self.append_time_ms, self.messages_applied = own.take(_OWN)",
        "_, self.messages_applied = own.take(_OWN)",
    ),
)

# What this project once got wrong and the simulator found, put back. Others of the kind have a
# place above: `starts-read-from-unwritten-files`, `gap-told-by-an-unconfirmed-leader`.
FOUND = (
    Mutant(
        "proposal-behind-a-failed-flush-goes-on",
        "dledger/driver.py",
        "            self._fail(error)\n            raise\n        self._schedule()\n",
        "            raise\n        self._schedule()\n",
        seed=387,
    ),
    Mutant(
        "paused-applying-asks-again-at-once",
        "dledger/driver.py",
        "not self._apply_scheduled and not self._stopped and not self._ticks_to_apply:",
        "not self._apply_scheduled and not self._stopped:",
        seed=12,
    ),
    Mutant(
        "digest-told-from-a-rotten-header",
        "store/commitlog.py",
        "return parse_header(self.read(index, index), 0).digest if index else 0",
        "return self.header_at(index).digest if index else 0",
    ),
    Mutant(
        "rotten-unit-served",
        "broker/reading/queues.py",
        "        _check_places(records, units[: count * UNIT.size], "
        'f"{topic}/{queue_id}", offset)\n',
        "",
        seed=15,
    ),
    Mutant(
        "no-head-room-for-no-ops",
        "dledger/driver.py",
        "self._head_room = NOOPS_HEAD_ROOM * core.options.noop_size",
        "self._head_room = 0",
    ),
    Mutant(
        "deletion-overtakes-a-flush",
        "store/queue_flush.py",
        "        for path in self._renamed:\n",
        "        for path in ():\n",
    ),
    Mutant(
        "term-and-vote-taken-from-the-page-cache",
        "broker/recovery.py",
        "        file.settle()  #",
        "        file.keep_space()  #",
        seed=398,
    ),
    Mutant(
        "round-of-an-older-term-echoed",
        "dledger/core/raft.py",
        "                state.send(HeartbeatResponse(node, sender, term))\n",
        "                state.send(HeartbeatResponse(node, sender, term, message.read_context))\n",
        seed=45,
    ),
    Mutant(
        "names-of-a-dead-process-not-synced",
        "store/consumequeue.py",
        "            self._renamed[self._root] = self._renamed[directory] = None\n",
        "",
    ),
    Mutant(
        "rebuilt-queues-trusted",
        "broker/recovery.py",
        "            commit_log.checkpoint.distrust_consume_queues,\n",
        "            lambda: None,\n",
    ),
    Mutant(
        "no-space-kept-for-term-and-vote",
        "store/files.py",
        "        if not self._spare_bytes:\n            return\n",
        "        return\n",
        masked="a full disk excuses the node that couldn't save its term",
    ),
)

# How the parts of a replica are joined, kept and taken down.
WIRING = (
    Mutant(
        "noted-before-the-sync",
        "broker/housekeeping.py",
        "            await self._hand.run(work.perform)\n"
        "            if settled and not self.is_checkpoint_held:\n"
        "                await self._hand.run(partial(self._note, settled))\n",
        "            if settled and not self.is_checkpoint_held:\n"
        "                await self._hand.run(partial(self._note, settled))\n"
        "            await self._hand.run(work.perform)\n",
    ),
    Mutant(
        "noted-what-was-applied-meanwhile",
        "broker/housekeeping.py",
        "await self._hand.run(partial(self._note, settled))",
        "await self._hand.run(partial(self._note, self._settled()))",
    ),
    Mutant(
        "noted-after-a-sync-that-failed",
        "broker/housekeeping.py",
        "            self.is_checkpoint_held = True\n",
        "",
    ),
    Mutant(
        "round-torn-away-by-the-stop",
        "broker/housekeeping.py",
        "            await self._round\n",
        "            self._round.cancel()\n",
        masked="the last round notes what only a power cut at that moment shows",
    ),
    Mutant(
        "rounds-go-on-after-a-failed-disk",
        "broker/housekeeping.py",
        "            self._failed(error)\n            return\n",
        "            del error\n",
    ),
    Mutant(
        "housekeeping-never-begins",
        "broker/replica.py",
        "        self.housekeeping.start(self._ports.rhythm.housekeeping_s)\n",
        "",
        masked="a start replays more, and comes to the same state",
    ),
    Mutant(
        "ticker-not-started",
        "broker/replica.py",
        "        self.ticker.start()\n",
        "",
    ),
    Mutant(
        "links-not-started",
        "broker/replica.py",
        "        self.transport.start()\n",
        "",
    ),
    Mutant(
        "durable-news-dropped",
        "broker/replica.py",
        "        self.log.on_durable = partial(from_worker, self.driver.on_durable)\n",
        "",
    ),
    Mutant(
        "durable-news-told-on-the-flushers-thread",
        "broker/replica.py",
        "self.log.on_durable = partial(from_worker, self.driver.on_durable)",
        "self.log.on_durable = self.driver.on_durable",
    ),
    Mutant(
        "failed-flush-not-told",
        "broker/replica.py",
        "        self.log.on_failed = partial(from_worker, self.driver.on_storage_failed)\n",
        "",
    ),
    Mutant(
        "broken-streams-not-told",
        "broker/replica.py",
        "        self.driver.suspect(peer)\n",
        "        del peer\n",
        masked="the election timeout comes to the same, later",
    ),
    Mutant(
        "term-and-vote-not-given-to-the-core",
        "broker/replica.py",
        "            hard_state=recovered.hard_state,\n",
        "",
    ),
    Mutant(
        "applied-index-not-given-to-the-driver",
        "broker/replica.py",
        "            core, node, driver_ports, applied, apply_slice_bytes",
        "            core, node, driver_ports, Index(0), apply_slice_bytes",
    ),
    Mutant(
        "full-queues-called-busy",
        "broker/replica.py",
        "return self.log.statistics().is_full or self.driver.statistics().is_apply_paused",
        "return self.log.statistics().is_full",
        masked="a producer sends again either way",
    ),
    Mutant(
        "hand-over-skipped",
        "broker/replica.py",
        "            await self._hand_over()\n",
        "",
        masked="the others elect somebody, later",
    ),
    Mutant(
        "drain-skipped",
        "broker/replica.py",
        "            await self._drain()\n",
        "",
        masked="who waits is told that it may have been stored, and asks again",
    ),
    Mutant(
        "nobody-told-at-the-stop",
        "broker/replica.py",
        '        self.leadership.end_serving("the node stopped")\n',
        "",
        masked="whoever is left waiting has a deadline of its own",
    ),
    Mutant(
        "driver-goes-on-behind-a-stop",
        "broker/replica.py",
        "        self.driver.stop()\n",
        "",
    ),
    Mutant(
        "files-closed-before-the-doors",
        "broker/replica.py",
        "            await self._rest()\n            await shut_doors()\n",
        "            await self._rest()\n            await self.close()\n"
        "            await shut_doors()\n",
    ),
    Mutant(
        "last-round-skipped",
        "broker/replica.py",
        "                    await self.housekeeping.make_round()\n",
        "                    pass\n",
    ),
    Mutant(
        "last-round-after-a-failure",
        "broker/replica.py",
        "                if self.failure is None:\n"
        "                    await self.housekeeping.make_round()\n",
        "                await self.housekeeping.make_round()\n",
    ),
    Mutant(
        "log-marked-clean-after-a-failure",
        "broker/replica.py",
        "is_clean=self.failure is None",
        "is_clean=True",
    ),
    Mutant(
        "failure-ends-nothing",
        "broker/replica.py",
        "exc_info=error)\n        self._stop_asked.set()\n",
        "exc_info=error)\n",
    ),
    Mutant(
        "failed-node-goes-on-serving",
        "broker/replica.py",
        '        self.leadership.end_serving("the node failed")\n',
        "",
        masked="the stop that follows ends it a moment later",
    ),
    Mutant(
        "serving-before-the-log-is-applied",
        "broker/leader/leadership.py",
        "core.is_ready_leader and index == core.last_index:",
        "core.is_ready_leader:",
    ),
    Mutant(
        "arrivals-not-announced",
        "broker/announcing.py",
        "        self._held.wake(queue)\n",
        "        del queue\n",
    ),
    Mutant(
        "applied-commands-not-announced",
        "broker/announcing.py",
        "        self._appender.on_command(index, refusal)\n",
        "        del index, refusal\n",
        masked="whoever has no answer takes it for one that may have happened",
    ),
    Mutant(
        "voided-batches-not-announced",
        "broker/announcing.py",
        "        self._appender.on_batch_voided(index, refusal)\n",
        "",
        masked="a leader refuses what would be void",
    ),
)


LINKS = (
    Mutant(
        "watchdog-off",
        "dledger/links/dialed.py",
        "        return self._heard_at + self._patience * self._times.silence_s + allowance\n",
        "        return inf\n",
    ),
    Mutant(
        "a-call-that-is-over-is-still-heard",
        "dledger/links/dialed.py",
        "        if generation != self.generation:\n            return False\n",
        "        if self.generation is None:\n            return False\n",
        masked="the table of calls has forgotten it already",
    ),
    Mutant(
        "end-of-an-older-call-takes-the-newer-down",
        "dledger/links/dialed.py",
        "        if generation == self.generation:\n            self._lose()\n",
        "        if self.generation is not None:\n            self._lose()\n",
        masked="the table of calls has forgotten it already",
    ),
    Mutant(
        "attempts-that-lost-go-on",
        "dledger/links/dialed.py",
        "        self._end_attempts(Why.LOST)\n",
        "",
    ),
    Mutant(
        "attempts-without-a-bound",
        "dledger/links/dialed.py",
        "        return len(self._attempts) >= self._times.max_attempts\n",
        "        return False\n",
    ),
    Mutant(
        "attempts-never-given-up",
        "dledger/links/dialed.py",
        "        self._attempts[self._newest] = now + self._times.attempt_s\n",
        "        self._attempts[self._newest] = inf\n",
    ),
    Mutant(
        "hung-attempt-holds-up-the-next",
        "dledger/links/dialed.py",
        "        self._dial_at = now + self._times.attempt_every_s\n        self._effects",
        "        self._dial_at = now + self._times.attempt_s\n        self._effects",
        masked="it costs time, less than the simulator allows for a leader",
    ),
    Mutant(
        "back-off-never-reset",
        "dledger/links/dialed.py",
        "            self._has_heard = True\n            self._failures = 0\n",
        "            self._has_heard = True\n",
        masked="half a second at most",
    ),
    Mutant(
        "refusal-taken-for-a-break",
        "dledger/links/dialed.py",
        "        self._end_attempts(Why.REFUSED)\n",
        "        self._end_attempts(Why.REFUSED)\n        self._lose()\n",
        masked="nobody is refused in the simulator",
    ),
    Mutant(
        "break-of-a-dialed-stream-never-told",
        "dledger/links/dialed.py",
        "        self.streams_ended += 1\n        self._effects.append(Broken())\n",
        "        self.streams_ended += 1\n",
        masked="the election timeout notices, later",
    ),
    Mutant(
        "break-told-for-every-stream",
        "dledger/links/accepted.py",
        "        if had_some and not self._in_use:\n",
        "        if had_some:\n",
        masked="a suspicion in error costs a PreVote that is refused",
    ),
    Mutant(
        "replaced-stream-left-open",
        "dledger/links/accepted.py",
        "            del self._adopted[each]\n            self._effects.append(End(each, why))\n",
        "            del self._adopted[each]\n",
    ),
    Mutant(
        "hello-alone-takes-a-stream-into-use",
        "dledger/links/accepted.py",
        "        self._waiting[generation] = now + self._times.attempt_s\n",
        "        self._adopt(generation, now)\n",
    ),
    Mutant(
        "answers-on-the-newest-stream-only",
        "dledger/peers.py",
        "        for generation in link.accepted.in_use:\n",
        "        for generation in link.accepted.in_use[-1:]:\n",
    ),
    Mutant(
        "keep-alives-not-answered",
        "dledger/peers.py",
        "        elif not call.is_dialed:\n",
        "        elif call.peer is None:\n",
    ),
    Mutant(
        "sleep-taken-for-silence",
        "dledger/peers.py",
        "            if slept > OVERSLEPT_S:\n",
        "            if slept > 1e9:\n",
        masked="streams are renewed without need",
    ),
)

# The client's promises when it breaks itself. The simulator's clients are other ones, without
# batches or an event loop of the usual kind.
_NO_SUCH_CLIENT = "the simulator's clients have no such code"
_ARGUMENTS = ("tests/client/test_arguments.py",)
_DISPATCH = ("tests/client/test_dispatch.py",)
_FAULTS = ("tests/client/test_faults.py",)
CLIENT = (
    Mutant(
        "send-takes-arguments-of-any-kind",
        "dledger/client/producer.py",
        "if (type(topic), type(body), type(key), type(tag), type(queue_id)) not in USUAL:",
        "if False:",
        masked=_NO_SUCH_CLIENT,
        tests=_ARGUMENTS,
    ),
    Mutant(
        "keys-with-blanks",
        "dledger/client/arguments.py",
        "    if _NOT_IN_A_KEY.search(decoded):\n",
        "    if not decoded:\n",
        masked=_NO_SUCH_CLIENT,
        tests=_ARGUMENTS,
    ),
    Mutant(
        "one-bad-message-takes-those-behind-it",
        "dledger/client/producer.py",
        'with contained("placing a message", partial(self._fail_one, message)):',
        "if message:",
        masked=_NO_SUCH_CLIENT,
        tests=_FAULTS,
    ),
    Mutant(
        "search-for-a-topic-breaks-in-silence",
        "dledger/client/producer.py",
        "        except Exception as error:  # noqa: BLE001 - those who wait must hear of it\n",
        "        except NotImplementedError as error:\n",
        masked=_NO_SUCH_CLIENT,
        tests=_FAULTS,
    ),
    Mutant(
        "flush-forgets-who-waits-for-a-topic",
        "dledger/client/producer.py",
        "        if self._resolving:\n            await asyncio.wait(list(self._resolving))\n",
        "",
        masked=_NO_SUCH_CLIENT,
        tests=("tests/client/test_producer.py",),
    ),
    Mutant(
        "request-named-by-the-epoch-that-came-since",
        "dledger/client/dispatch.py",
        "            producer_id=producer_id,\n",
        "            producer_id=self._epochs.producer_id(parcel[0][0].epoch),\n",
        masked=_NO_SUCH_CLIENT,
        tests=_DISPATCH,
    ),
    Mutant(
        "wait-for-the-topic-comes-on-top",
        "dledger/client/dispatch.py",
        "        lane.gather_deadline = min(lane.gather_deadline, deadline)\n",
        "",
        masked=_NO_SUCH_CLIENT,
        tests=_DISPATCH,
    ),
    Mutant(
        "request-that-breaks-is-nobodys",
        "dledger/client/dispatch.py",
        "        except Exception as error:  # noqa: BLE001 - a fault of ours costs an attempt\n",
        "        except NotImplementedError as error:\n",
        masked=_NO_SUCH_CLIENT,
        tests=_DISPATCH,
    ),
    Mutant(
        "deadlines-end-with-the-first-lane",
        "dledger/client/dispatch.py",
        "            self._arm_expiry(max(soonest, now + PAUSE_MIN_S))\n",
        "            pass\n",
        masked=_NO_SUCH_CLIENT,
        tests=("tests/client",),
    ),
    Mutant(
        "given-up-taken-for-not-stored",
        "dledger/client/lane.py",
        "        sent, unsent = Outcome.MAY_HAVE_HAPPENED, Outcome.DID_NOT_HAPPEN\n",
        "        sent, unsent = Outcome.DID_NOT_HAPPEN, Outcome.DID_NOT_HAPPEN\n",
        masked=_NO_SUCH_CLIENT,
        tests=_DISPATCH,
    ),
    Mutant(
        "numbers-used-again-after-giving-up",
        "dledger/client/lane.py",
        "        self._begin_epoch()\n        sent, unsent",
        "        sent, unsent",
        masked=_NO_SUCH_CLIENT,
        tests=_DISPATCH,
    ),
    Mutant(
        "watch-ends-with-a-fault",
        "dledger/client/connection.py",
        '            with contained(f"watching {self.address}"):\n',
        "            if True:\n",
        masked=_NO_SUCH_CLIENT,
        tests=_FAULTS,
    ),
    Mutant(
        "reading-that-breaks-in-silence",
        "dledger/client/consumer.py",
        '            self._fail(client_error("reading a queue", error))\n',
        "            del error\n",
        masked=_NO_SUCH_CLIENT,
        tests=_FAULTS,
    ),
    Mutant(
        "reading-goes-on-behind-what-could-not-be-decoded",
        "dledger/client/consumer.py",
        '            self._failure = client_error("decoding messages", error)\n'
        "            raise self._failure",
        '            raise client_error("decoding messages", error)',
        masked=_NO_SUCH_CLIENT,
        tests=("tests/client/test_consumer.py",),
    ),
)

# What peers may say, and what may be noted of them.
SPEECH = (
    Mutant(
        "checksum-not-verified",
        "dledger/driver.py",
        "        if not is_intact(wire):\n",
        "        if False:\n",
    ),
    Mutant(
        "checksum-omits-the-digest",
        "dledger/checksum.py",
        "body.commit_index, body.read_context, body.digest_index, body.digest\n",
        "body.commit_index, body.read_context, body.digest_index, 0\n",
        masked="a contradiction is refused as well",
    ),
    Mutant(
        "checksum-omits-the-previous-term",
        "dledger/checksum.py",
        "body.prev_index, body.prev_term, body.commit_index, body.frames_size",
        "body.prev_index, 0, body.commit_index, body.frames_size",
        masked="few bits of an append are its previous term",
    ),
    Mutant(
        "size-of-frames-not-compared",
        "dledger/driver.py",
        "        if len(frames) != wire.append_request.frames_size:\n",
        "        if False:\n",
        masked="each frame has a CRC of its own",
    ),
    Mutant(
        "any-term-is-followed",
        "dledger/core/admission.py",
        "    furthest = min(MAX_TERM, state.term + terms_in_reach(state))\n",
        "    furthest = 1 << 64\n",
    ),
    Mutant(
        "terms-that-others-moved-are-not-counted",
        "dledger/core/roles.py",
        "        state.terms_adopted += term - state.term\n",
        "",
        masked="it takes longer than any run to be led to the end of all terms",
    ),
    Mutant(
        "acknowledgement-beyond-the-log",
        "dledger/core/admission.py",
        "    furthest = state.log.last_index if leads else MAX_INDEX\n",
        "    furthest = MAX_INDEX\n",
    ),
    Mutant(
        "answer-to-a-round-that-has-not-begun",
        "dledger/core/admission.py",
        "state.heartbeat_round if leads else MAX_ROUND)",
        "MAX_ROUND)",
        masked="a stale read needs a leader that is cut off after the lie",
    ),
    Mutant(
        "settled-entries-not-compared",
        "dledger/core/admission.py",
        "        _check_settled(state, message)\n",
        "",
        masked="the digest of the frames tells it too",
    ),
    Mutant(
        "second-leader-of-a-term",
        "dledger/core/admission.py",
        "    if leader is not None and leader != message.sender:\n",
        "    if False:\n",
        masked="only a lie of leading would show it",
    ),
    Mutant(
        "anybody-hands-over",
        "dledger/core/election.py",
        "    if state.term_leader == message.sender and state.is_promotable():\n",
        "    if state.is_promotable():\n",
        masked="one more election does no harm",
    ),
    Mutant(
        "frames-that-continue-another-log",
        "dledger/driver.py",
        "        if new and self._is_to_be_appended(message, new):\n",
        "        if False:\n",
        seed=80,
    ),
    Mutant(
        "own-log-not-read-again",
        "dledger/doubt.py",
        "            self._begin_look(min(error.index, settled_index))\n",
        "            pass\n",
        masked="here a log is never other than it says",
    ),
    Mutant(
        "noted-without-looking-at-the-own-disk",
        "dledger/driver.py",
        "min(self._applied, self._core.durable_index, self._ports.log.synced_index)",
        "self._applied",
    ),
    Mutant(
        "noted-by-what-an-async-flush-calls-durable",
        "dledger/driver.py",
        "min(self._applied, self._core.durable_index, self._ports.log.synced_index)",
        "min(self._applied, self._core.durable_index)",
    ),
    Mutant(
        "note-ahead-of-the-log-is-trusted",
        "broker/recovery.py",
        "    if noted <= durable:\n",
        "    if True:\n",
        masked="only an earlier version notes so",
    ),
)

# Topics that are deleted and made anew while they are sent to (ADR 20).
TOPICS = (
    Mutant(
        "closing-topic-takes-batches",
        "broker/leader/append.py",
        "        if self._flight.is_deleting(topic.name):\n",
        "        if False:\n",
    ),
    Mutant(
        "one-delete-of-several-opens-the-topic",
        "broker/leader/flight.py",
        "        self._deletes.pop(index, None)\n",
        "        name = self._deletes.pop(index, '')\n"
        "        self._deletes = {i: n for i, n in self._deletes.items() if n != name}\n",
    ),
    Mutant(
        "in-flight-found-by-name",
        "broker/leader/append.py",
        "Lane(producer, topic.incarnation, batch.queue_id)",
        "Lane(producer, int.from_bytes(topic.name.encode(), 'big'), batch.queue_id)",
        masked="nobody is let in between an apply and the news of it",
    ),
    Mutant(
        "applied-batch-looks-up-its-topic",
        "broker/leader/append.py",
        "        self._flight.retire(applied)\n",
        "        self._flight.retire(applied)\n"
        "            for waiting in self._waiting.get(applied, ()):\n"
        "                [t.next_offsets[3] for t in self._machine.topics.values()"
        " if t.incarnation > applied]\n",
    ),
    Mutant(
        "place-judged-before-what-is-known",
        "broker/leader/append.py",
        "        is_numbered = producer != NO_PRODUCER\n        expected",
        "        is_numbered = producer != NO_PRODUCER\n"
        "        self._check_place(topic, batch.queue_id)\n        expected",
        masked="a producer may be refused rightly after an attempt that nobody answered",
    ),
    Mutant(
        "all-topics-of-one-incarnation",
        "broker/state/machine.py",
        "incarnation=header.index,",
        "incarnation=1,",
    ),
    Mutant(
        "void-batch-keeps-its-queue-offset",
        "broker/leader/flight.py",
        "            self._ends.pop(lane.place, None)\n",
        "",
        masked="a leader proposes nothing that would be void",
    ),
    Mutant(
        "batch-for-a-missing-queue-ends-the-node",
        "broker/state/topics.py",
        "        if queue_id >= len(topic.next_offsets):\n",
        "        if False:\n",
        masked="a leader proposes nothing that would be void",
    ),
    Mutant(
        "sequence-not-judged-when-applied",
        "broker/state/machine.py",
        "        if refusal is None and producer != NO_PRODUCER:\n",
        "        if False:\n",
        masked="a leader proposes nothing that would be void",
    ),
)

MUTANTS = (
    *CORE,
    *DRIVER,
    *STORE,
    *BROKER,
    *STATE,
    *TOPICS,
    *FOUND,
    *WIRING,
    *LINKS,
    *CLIENT,
    *SPEECH,
)
