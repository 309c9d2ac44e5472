"""Defects between the protocol and its disk and peers: driver, hard state, checksums."""

from __future__ import annotations

from chaos.mutants.mutant import Mutant

_TAILS = ("tests/node/test_tails_on_full_disks.py",)

DRIVER = (
    Mutant(
        "apply-before-commit",
        "dledger/driver.py",
        "self._applier.apply(self._core.commit_index)",
        "self._applier.apply(self._core.last_index)",
    ),
    Mutant(
        "who-is-behind-is-sent-one-append-only",
        "dledger/driver.py",
        "            self._ports.turns.later(self._send_more)\n",
        "            pass\n",
        masked="the next answer goes on with it: slower, and as true",
        tests=("tests/node/test_driver.py",),
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
        "dledger/reads.py",
        "        if isinstance(read, ReadAborted):\n            _finish(waiting, served=False)",
        "        if isinstance(read, ReadAborted):\n            _finish(waiting, served=True)",
        masked="a node that lost leadership refuses before it is asked for the value",
        tests=("tests/node/test_driver.py",),
    ),
    Mutant(
        "reads-wait-at-who-leads-no-more",
        "dledger/driver.py",
        "            self._reads.end_leadership()\n",
        "            pass\n",
        masked="it costs time, and no truth",
        tests=("tests/node/test_full_disk.py",),
    ),
    Mutant(
        "overlapping-append-written-twice",
        "dledger/driver.py",
        "        skip = held_of(self._core, headers)\n",
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
        tests=("tests/node/test_space.py",),
    ),
    Mutant(
        "wrong-crc-and-digest-accepted",
        "dledger/reading/entry.py",
        "    computed = frame_crc(view, at, end)\n",
        "    return header\n    computed = frame_crc(view, at, end)\n",
    ),
    Mutant(
        "proposal-behind-a-failed-flush-goes-on",
        "dledger/driver.py",
        "            self._fail(error)\n            raise\n        self._heed_configuration()\n",
        "            raise\n        self._heed_configuration()\n",
        under="write-error",
        tests=("tests/node/test_driver.py",),
    ),
    Mutant(
        "paused-applying-asks-again-at-once",
        "dledger/applying.py",
        "if not self._is_scheduled and not self._ticks_to_wait:",
        "if not self._is_scheduled:",
        under="disk-full",
        tests=("tests/node/test_space.py",),
    ),
    Mutant(
        "no-head-room-for-no-ops",
        "dledger/room.py",
        "self._head_room = NOOPS_HEAD_ROOM * noop_size",
        "self._head_room = 0",
        under="disk-full",
        tests=("tests/node/test_driver.py",),
    ),
    Mutant(
        "tail-that-is-to-go-takes-the-room-of-what-replaces-it",
        "dledger/room.py",
        "self._log.has_room_behind, new[0].index - 1)",
        "self._log.has_room_behind, self._log.last_index)",
        masked="what is full has space again before the end",
        tests=_TAILS,
    ),
    Mutant(
        "segments-that-a-cut-empties-are-no-room",
        "store/appending.py",
        "self._segments_behind(used, frame_bytes) - len(emptied))",
        "self._segments_behind(used, frame_bytes))",
        masked="what is full has space again before the end",
        tests=("tests/store/test_room.py",),
    ),
    Mutant(
        "room-behind-a-cut-counts-what-it-keeps",
        "store/appending.py",
        "max(0, self._segments_behind(used, frame_bytes)",
        "max(0, self._segments_behind(0, frame_bytes)",
        masked="a tail seldom begins at the end of the last segment of a full disk",
        tests=("tests/store/test_room.py",),
    ),
    Mutant(
        "refusal-waits-for-room",
        "dledger/driver.py",
        "        if new and is_to_be_appended(self._core, message, new):\n",
        "        if new and not self._ports.log.has_room(len(blob) + 256 * 56):\n"
        "            return\n"
        "        if new and is_to_be_appended(self._core, message, new):\n",
        masked="what is full has space again before the end",
        tests=_TAILS,
    ),
    Mutant(
        "answers-on-the-newest-stream-only",
        "dledger/peers.py",
        "        for generation in link.accepted.in_use:\n",
        "        for generation in link.accepted.in_use[-1:]:\n",
        tests=("tests/links/test_peers.py",),
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
        tests=("tests/links/test_peers.py",),
    ),
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
        tests=("tests/node/test_checksum.py",),
    ),
    Mutant(
        "checksum-omits-the-previous-term",
        "dledger/checksum.py",
        "body.prev_index, body.prev_term, body.commit_index, body.frames_size",
        "body.prev_index, 0, body.commit_index, body.frames_size",
        masked="few bits of an append are its previous term",
        tests=("tests/node/test_checksum.py",),
    ),
    Mutant(
        "size-of-frames-not-compared",
        "dledger/driver.py",
        "        if len(frames) != wire.append_request.frames_size:\n",
        "        if False:\n",
        masked="each frame has a CRC of its own",
        tests=("tests/node/test_peers.py",),
    ),
    Mutant(
        "frames-that-continue-another-log",
        "dledger/driver.py",
        "        if new and is_to_be_appended(self._core, message, new):\n",
        "        if False:\n",
        seed=80,
    ),
    Mutant(
        "own-log-not-read-again",
        "dledger/doubt.py",
        "            self._begin_look(min(error.index, settled_index))\n",
        "            pass\n",
        masked="here a log is never other than it says",
        tests=("tests/node/test_peers.py",),
    ),
    Mutant(
        "noted-without-looking-at-the-own-disk",
        "dledger/driver.py",
        "min(self._applier.applied, core.durable_index, log.synced_index)",
        "self._applier.applied",
    ),
    Mutant(
        "noted-by-what-an-async-flush-calls-durable",
        "dledger/driver.py",
        "min(self._applier.applied, core.durable_index, log.synced_index)",
        "min(self._applier.applied, core.durable_index)",
    ),
    Mutant(
        "slice-noted-as-applied-before-it-is",
        "dledger/applying.py",
        "                self._note(self._give(frames))\n",
        "                self._note(Index(min(commit, self._applied + APPLY_SLICE_ENTRIES)))\n"
        "                self._give(frames)\n",
    ),
    Mutant(
        "rest-of-a-slice-skipped",
        "dledger/applying.py",
        "                self._note(self._give(frames))\n",
        "                self._give(frames)\n"
        "                self._note(Index(min(commit, self._applied + APPLY_SLICE_ENTRIES)))\n",
    ),
    Mutant(
        "entry-that-the-log-lacks-goes-on",
        "dledger/driver.py",
        "            self._fail(error)\n            raise\n",
        "            raise\n",
        masked="a log that failed is told a moment later, and a stamp doesn't fail",
        tests=("tests/node/test_driver.py",),
    ),
)
