"""Defects in finding rot in the log and in getting the bytes back: what is looked at, what a member
in doubt promises, whom it believes, what a crash leaves
(docs/adr/0039-rot-in-the-log-is-repaired.md)."""

from __future__ import annotations

from chaos.mutants.mutant import Mutant

_DOUBT = ("tests/core/test_doubt.py",)
_BYTES = ("tests/store/test_damage.py",)
_MEMBERS = ("tests/node/test_repairs.py",)
_FAIR = "no member of a run makes up a whole entry that fits where it is asked for"

REPAIRS = (
    # --- what is looked at ---
    Mutant(
        "scrub-compares-nothing",
        "store/scrubbing.py",
        "if xxh3_64_intdigest(blob) != piece.digest:",
        "if len(blob) != piece.end - start:",
        under="log-rot",
    ),
    Mutant(
        "scrub-skips-what-it-has-not-walked",
        "store/scrubbing.py",
        "        return lambda: _walk(self._files, span, start)\n",
        "        return lambda: Step(limit - start.at, limit)\n",
        under="log-rot",
    ),
    Mutant(
        "scrub-forgets-the-chain",
        "store/scrubbing.py",
        "header = verify_frame(blob, place.at - blob_at, place.digest)",
        "header = verify_frame(blob, place.at - blob_at, None)",
        masked="a frame that is intact and not the one takes more than a flipped bit",
        tests=_BYTES,
    ),
    Mutant(
        "scrub-takes-a-filler-for-granted",
        "store/scrubbing.py",
        "    if not span.is_full:\n",
        "    if span.used:\n",
        masked="few flipped bits lie in a filler's eight bytes",
        tests=_BYTES,
    ),
    # --- what a member in doubt promises ---
    Mutant(
        "rot-found-and-no-doubt",
        "broker/repairs.py",
        "        self._around.doubt(is_in_doubt=True)\n",
        "",
        under="log-rot",
    ),
    Mutant(
        "votes-in-doubt",
        "dledger/core/election.py",
        "        and not state.is_in_doubt\n        and _is_free_to_vote_for",
        "        and _is_free_to_vote_for",
        masked="an election must fall into the moment of a repair",
        tests=_DOUBT,
    ),
    Mutant(
        "pre-votes-in-doubt",
        "dledger/core/election.py",
        "        and not state.is_in_doubt\n        and not _is_sticky",
        "        and not _is_sticky",
        masked="an election must fall into the moment of a repair",
        tests=_DOUBT,
    ),
    Mutant(
        "campaigns-in-doubt",
        "dledger/core/state.py",
        "return is_voter and self.term < MAX_TERM and not self.is_in_doubt",
        "return is_voter and self.term < MAX_TERM",
        masked="an election must fall into the moment of a repair",
        tests=_DOUBT,
    ),
    Mutant(
        "candidate-goes-on-in-doubt",
        "dledger/core/raft.py",
        "if state.role in (Role.PRE_CANDIDATE, Role.CANDIDATE):",
        "if state.role is Role.LEADER and state.log.last_index == NO_INDEX:",
        masked="an election must fall into the moment of a repair",
        tests=_DOUBT,
    ),
    Mutant(
        "acknowledges-in-doubt",
        "dledger/core/follower.py",
        "if last <= state.log.durable_index and not state.is_in_doubt:",
        "if last <= state.log.durable_index:",
        under="log-rot",
    ),
    Mutant(
        "acknowledges-in-doubt-what-has-just-become-durable",
        "dledger/core/follower.py",
        "state.term_leader is None or state.is_in_doubt:",
        "state.term_leader is None:",
        under="log-rot",
    ),
    Mutant(
        "promise-held-back-and-given-in-doubt",
        "dledger/core/state.py",
        "        if self.is_in_doubt and _promises(message):\n            return False\n",
        "",
        masked="rot must be found while a vote waits for the disk",
        tests=_DOUBT,
    ),
    Mutant(
        "promise-on-its-way-out-given-in-doubt",
        "dledger/core/raft.py",
        "            state.withhold()\n",
        "",
        masked="a second place must be found in the moment between two events of the first's end",
        tests=_DOUBT,
    ),
    Mutant(
        "own-disk-counts-in-doubt",
        "dledger/core/state.py",
        "if node == self.node and not self.is_in_doubt:",
        "if node == self.node:",
        masked="what is committed by it is on the platter all the same",
        tests=_DOUBT,
    ),
    Mutant(
        "leads-on-in-doubt",
        "dledger/core/sick_disk.py",
        "if not disk.is_short and not is_stalled and not state.is_in_doubt:",
        "if not disk.is_short and not is_stalled:",
        masked="it costs time and no truth",
        tests=_DOUBT,
    ),
    Mutant(
        "acknowledgement-owed-for-ever",
        "dledger/core/raft.py",
        "        else:\n            on_entries_durable(state)\n",
        "",
        masked="the leader sends again what it takes for lost",
        tests=_DOUBT,
    ),
    Mutant(
        "in-doubt-for-ever",
        "broker/repairs.py",
        "            self._around.doubt(is_in_doubt=False)\n",
        "",
        under="log-rot",
    ),
    Mutant(
        "log-marked-clean-with-rot-in-it",
        "broker/replica.py",
        "is_clean = self.failure is None and not self.repairs.is_at_work",
        "is_clean = self.failure is None",
        masked="a stop must fall into the moment of a repair",
        tests=_MEMBERS,
    ),
    # --- whom it believes ---
    Mutant(
        "giver-believed-without-the-entry-behind",
        "store/damage.py",
        "if not self._arrives(damage, self._digest):",
        "if self.next_index == 0:",
        masked=_FAIR,
        tests=_BYTES,
    ),
    Mutant(
        "giver-believed-without-the-entry-before",
        "store/damage.py",
        "            if digest != header.digest:\n",
        "            if digest == 0:\n",
        masked=_FAIR,
        tests=_BYTES,
    ),
    Mutant(
        "entry-of-another-term-kept",
        "store/damage.py",
        "if header.term != self._term_at(header.index):",
        "if header.term == 0:",
        masked=_FAIR,
        tests=_BYTES,
    ),
    Mutant(
        "refill-of-another-length-kept",
        "store/damage.py",
        '        if self._left:\n            raise InvalidFrame(at, "end", self._left',
        '        if len(self._left) > 1:\n            raise InvalidFrame(at, "end", self._left',
        masked=_FAIR,
        tests=_BYTES,
    ),
    Mutant(
        "what-may-be-cut-is-repaired",
        "broker/repairs.py",
        "if damage.last_index > self._around.through() or not self._around.links():",
        "if not self._around.links():",
        masked="only what is committed rots in a run",
        tests=_MEMBERS,
    ),
    Mutant(
        "giver-gives-what-may-be-another-entry",
        "broker/replica.py",
        "return index <= durable and core.term_at(Index(index)) == term",
        "return index <= durable",
        masked="it is refused, and counts as a no",
        tests=_MEMBERS,
    ),
    Mutant(
        "silence-taken-for-a-no",
        "broker/repairs.py",
        "_NEGATIVE: Final = frozenset({_Verdict.ROTTEN, ",
        "_NEGATIVE: Final = frozenset({_Verdict.SILENT, _Verdict.NOT_YET, _Verdict.ROTTEN, ",
        under="log-rot",
    ),
    Mutant(
        "stray-answer-taken",
        "broker/repairs.py",
        "is_awaited = asked is not None and (asked.peer, asked.number) == (peer, body.number)",
        "is_awaited = asked is not None",
        masked="it is judged all the same",
        tests=_MEMBERS,
    ),
    # --- what a crash leaves ---
    Mutant(
        "bytes-put-back-without-a-sync",
        "store/repair_journal.py",
        "    write_all(files, handle, [content], start)\n    files.fdatasync(handle)\n",
        "    write_all(files, handle, [content], start)\n",
        masked="the flusher syncs the same file, if it is the last",
        tests=_BYTES,
    ),
    Mutant(
        "journal-gone-before-the-bytes-are-back",
        "store/repair_journal.py",
        "        _put(self._files, handle, extent.path, extent.start, content)\n"
        "        self._remove()\n",
        "        self._remove()\n"
        "        _put(self._files, handle, extent.path, extent.start, content)\n",
        masked="a start refuses what is torn, as it would refuse the rot",
        tests=_BYTES,
    ),
    Mutant(
        "journal-not-heeded",
        "store/commitlog.py",
        "            RepairJournal(files, directory).redo(\n",
        '            RepairJournal(files, directory / "elsewhere").redo(\n',
        masked="a start refuses what is torn, as it would refuse the rot",
        tests=_BYTES,
    ),
    Mutant(
        "journal-written-over-sound-entries",
        "store/repair_journal.py",
        "if there != content and _are_frames(there):",
        "if not there:",
        masked="no journal of another log is left by a run",
        tests=_BYTES,
    ),
    Mutant(
        "rotten-journal-believed",
        "store/repair_journal.py",
        "if not is_ours or stored[-_CRC.size :] != _CRC.pack(crc32c(stored[: -_CRC.size])):",
        "if not is_ours:",
        masked="nothing rots a journal in a run",
        tests=_BYTES,
    ),
    Mutant(
        "what-was-put-back-not-read",
        "store/repair_journal.py",
        "    if found != content:\n        raise",
        "    if not found:\n        raise",
        masked="disks of runs keep what is synced",
        tests=_BYTES,
    ),
    # --- what goes on meanwhile ---
    Mutant(
        "applying-ends-over-rot",
        "dledger/applying.py",
        "            if not self._ports.is_mended(error):\n                raise\n"
        "            self._ticks_to_wait",
        "            raise\n            self._ticks_to_wait",
        masked="what is applied is in memory as a rule",
        tests=_MEMBERS,
    ),
    Mutant(
        "append-over-rot-ends-the-leader",
        "dledger/driver.py",
        "                if self._ports.is_mended(error):\n                    return None\n"
        "                raise\n        wire",
        "                raise\n        wire",
        under="log-rot",
    ),
)
