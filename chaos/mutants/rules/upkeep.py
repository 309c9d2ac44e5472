"""Defects in what is looked at beside the log, and in what is kept twice
(docs/adr/0051-what-lies-beside-the-log.md)."""

from __future__ import annotations

from chaos.mutants.mutant import Mutant

_NODE = ("tests/node/test_upkeep.py",)
_STARTS = ("tests/starting/test_judgement.py",)
_MENDED = "what rots beside the log is written again in a moment, or the next start refuses it"

UPKEEP = (
    Mutant(
        "another-disks-base-written-over-ones-own",
        "store/snapshot_files.py",
        "lambda head: head == own",
        "lambda head: head.applied_index == own.applied_index",
        masked="bases are no other disk's there",
        tests=_NODE,
    ),
    Mutant(
        "note-of-the-scrub-that-may-not-be-read-ends-the-member",
        "broker/scrubbing.py",
        "    if error.errno in DISK_ERRNOS:\n        raise error\n",
        "    raise error\n",
        masked="a member that ends so starts again",
        tests=("tests/node/test_scrub_note.py",),
    ),
    Mutant(
        "copy-of-an-older-start-believed",
        "store/second_copy.py",
        "return None if found is None or found[0] != boot_number else found[1]",
        "return None if found is None else found[1]",
        masked="no release of a run forgets to write the copy",
        tests=(*_STARTS, *_NODE),
    ),
    Mutant(
        "copy-that-nobody-keeps-up-left-behind",
        "store/starting/opening.py",
        "        found.copy.void()\n",
        "",
        masked="a disk of a run that is full refuses before anything is written",
        tests=_NODE,
    ),
    Mutant(
        "older-file-believed-beside-a-newer-copy",
        "store/starting/opening.py",
        "            was_older = copied is not None and _is_newer(copied, found)\n",
        "            was_older = False\n",
        masked="a run puts back whole disks",
        tests=_STARTS,
    ),
    Mutant(
        "vote-acted-on-before-it-is-copied",
        "dledger/hard_state.py",
        "                self._copy.write(self._saved)\n",
        "                pass\n",
        masked=_MENDED,
        tests=_NODE,
    ),
    Mutant(
        "rotten-copy-believed",
        "store/second_copy.py",
        "    if stored[end : end + _CRC.size] != _CRC.pack(crc32c(stored[:end])):\n"
        "        return None\n",
        "",
        masked=_MENDED,
        tests=_NODE,
    ),
    Mutant(
        "rotten-snapshot-counts-on",
        "broker/snapshots.py",
        "            self._newest = self._before\n            self._before = None\n",
        "            pass\n",
        masked=_MENDED,
        tests=_NODE,
    ),
    Mutant(
        "rotten-seal-counts-on",
        "store/seals.py",
        "            self._sealed.pop(base, None)\n",
        "            pass\n",
        masked=_MENDED,
        tests=_NODE,
    ),
    Mutant(
        "note-of-before-written-over-a-new-one",
        "store/log_start.py",
        "            if self.read().index >= start.index:\n",
        "            if self.read() == start:\n",
        masked="it takes a look between two steps of one move",
        tests=("tests/store/test_log_start.py",),
    ),
    Mutant(
        "queues-judged-by-where-they-began-before",
        "broker/upkeep.py",
        "if each.look.crc != each.crc and is_there and is_same:",
        "if each.look.crc != each.crc and is_there:",
        masked="a queue that is mended for nothing is only work",
        tests=_NODE,
    ),
    Mutant(
        "queues-of-a-deleted-topic-judged",
        "broker/upkeep.py",
        "if each.look.crc != each.crc and is_there and is_same:",
        "if each.look.crc != each.crc and is_same:",
        masked="a queue that is mended for nothing is only work",
        tests=_NODE,
    ),
    Mutant(
        "snapshots-of-a-life-before-not-looked-at",
        "broker/upkeep.py",
        "sorted({*self._files.indexes(), *self._snapshots.kept()})",
        "self._snapshots.kept()",
        masked=_MENDED,
        tests=_NODE,
    ),
    Mutant(
        "garbage-collected-while-threads-are-listed",
        "broker/loop_watch.py",
        "    gc.disable()\n",
        "",
        masked="the simulator has one thread",
        tests=("tests/broker/test_loop_watch.py",),
    ),
    Mutant(
        "what-could-not-be-opened-is-dropped",
        "store/snapshot_files.py",
        "            if error.errno not in LOST_ERRNOS:\n                raise\n"
        "            return None\n",
        "            return None\n",
        masked="no process of a run has too few descriptors",
        tests=_NODE,
    ),
    Mutant(
        "base-kept-once",
        "store/snapshot_files.py",
        "            self._keep(copy, content, self._reserve_bytes)\n",
        "            pass\n",
        masked=_MENDED,
        tests=_NODE,
    ),
)
