"""Defects in files and the log on them, `store/`: order of writes, recovery, derived files."""

from __future__ import annotations

from chaos.mutants.mutant import Mutant

_SIZES = ("tests/store/test_rotten_sizes.py",)

STORE = (
    Mutant(
        "want-of-memory-told-as-want-of-space",
        "store/consumequeue.py",
        '        scarce = "" if error.errno in FULL_ERRNOS else str(error.strerror)\n',
        '        scarce = ""\n',
        masked="drawn schedules are short of nothing but space",
        tests=("tests/store/test_consumequeue.py",),
    ),
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
        "store/atomic_file.py",
        "    files.rename(temporary, path)\n    files.fsync_directory(path.parent)\n",
        "    files.rename(temporary, path)\n",
    ),
    Mutant(
        "file-not-synced-before-rename",
        "store/atomic_file.py",
        "            files.truncate(handle, len(content))\n        files.fsync(handle)\n",
        "            files.truncate(handle, len(content))\n",
    ),
    Mutant(
        "segment-name-not-synced",
        "store/preallocation.py",
        "            files.fsync_directory(self._directory)\n",
        "",
    ),
    Mutant(
        "segment-name-without-space-ends-the-node",
        "store/preallocation.py",
        "            files.close(handle)\n            with contextlib.suppress(OSError):",
        "            if made == path:\n                raise\n"
        "            files.close(handle)\n            with contextlib.suppress(OSError):",
        masked="disks of the simulator have space for names",
        tests=("tests/store/test_preallocation.py",),
    ),
    Mutant(
        "segment-that-a-full-disk-kept-in-the-way",
        "store/preallocation.py",
        "            self._files.unlink(temporary)\n"
        "            return self._files.create(temporary)\n",
        "            raise\n",
        masked="disks of the simulator have space for names",
        tests=("tests/store/test_preallocation.py",),
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
        "if stop is None or (self._checkpoint.readable and end >= self._watermark):",
        "if stop is None or self._checkpoint.readable:",
    ),
    Mutant(
        "watermark-not-lowered-before-a-cut",
        "store/truncation.py",
        "    checkpoint.lower(cut)\n",
        "",
    ),
    Mutant(
        "watermark-that-reads-low-not-lowered-again",
        "store/checkpoint.py",
        "            self._write(replace(self._state, watermark=lowered))\n",
        "            if lowered < self._state.watermark:\n"
        "                self._write(replace(self._state, watermark=lowered))\n",
        masked="a sync that fails, and then the power within a moment of the next start",
        tests=("tests/store/test_power_cuts.py",),
    ),
    Mutant(
        "name-that-cant-be-looked-up-taken-for-none",
        "store/files.py",
        "        except (FileNotFoundError, NotADirectoryError):\n            return False\n",
        "        except OSError:\n            return False\n",
        masked="of the simulator's disk every call is told",
        tests=("tests/store/test_untold.py",),
    ),
    Mutant(
        "error-of-a-descriptor-names-no-file",
        "store/files.py",
        "            if error.filename is None:\n",
        "            if False:\n",
        masked="of the simulator's disk every error names one",
        tests=("tests/store/test_untold.py",),
    ),
    Mutant(
        "lock-goes-with-the-name-of-its-file",
        "store/files.py",
        "_flock(descriptor) and self._lock_directory(descriptor, path.parent)",
        "_flock(descriptor)",
        masked="nobody removes the lock of a simulated member",
        tests=("tests/store/test_directory.py",),
    ),
    Mutant(
        "written-to-where-another-directory-is-now",
        "store/files.py",
        "        if (found.st_dev, found.st_ino) != self.inode:\n",
        "        if False:\n",
        masked="nobody moves a simulated member's directory away",
        tests=("tests/store/test_replaced_directory.py",),
    ),
    Mutant(
        "member-goes-on-without-its-directory",
        "store/files.py",
        "        except (FileNotFoundError, NotADirectoryError):\n"
        "            raise DirectoryReplaced(self.directory) from None\n",
        "        except (FileNotFoundError, NotADirectoryError):\n            return\n",
        masked="nobody removes a simulated member's directory",
        tests=("tests/store/test_replaced_directory.py",),
    ),
    Mutant(
        "lock-of-a-directory-that-was-let-go-still-looked-at",
        "store/files.py",
        "        self._places.pop(handle, None)\n",
        "",
        masked="nobody moves a simulated member's directory away",
        tests=("tests/store/test_replaced_directory.py",),
    ),
    Mutant(
        "what-was-read-of-a-sick-disk-asked-for-again",
        "store/files.py",
        '    return b"".join(sectors)\n',
        "    return files.pread(handle, size, offset)\n",
        masked="a simulated sector is lost for good, or isn't",
        tests=("tests/store/test_lost_sectors.py",),
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
        "        self.last_digest = last.digest if last else self.start.digest\n",
        "",
    ),
    Mutant(
        "cut-before-the-writes-it-follows",
        "store/flusher.py",
        "        self._write_runs()\n        cut_tail(",
        "        cut_tail(",
        masked="rarely is a write gathered with the cut behind it",
        tests=("tests/store/test_power_cuts.py",),
    ),
    Mutant(
        "cut-tail-not-zeroed",
        "store/truncation.py",
        "        zeroed += zero_range(files, each.handle, each.start, each.end, again=again)\n",
        "        pass\n",
    ),
    Mutant(
        "zeros-of-a-failed-sync-trusted",
        "store/recovery.py",
        "cut, ranges, again=True)",
        "cut, ranges)",
        masked="a sync has to fail within a cut, and the power soon after (seed 430831, 20 s)",
        tests=("tests/store/test_power_cuts.py",),
    ),
    Mutant(
        "zeros-of-a-failed-sync-trusted-under-a-new-log",
        "store/log_start.py",
        "0, segment_size, again=True)",
        "0, segment_size)",
        masked="it takes a full disk, a sync that fails there, and the power",
        tests=("tests/store/test_log_start.py",),
    ),
    Mutant(
        "starts-read-from-unwritten-files",
        "store/segments.py",
        "            if old.first_index + old.count > written_below:\n                return\n",
        "",
        masked="it takes nine segments that wait for the disk",
        tests=("tests/store/test_stalled_disk.py",),
    ),
    Mutant(
        "consume-queue-rest-not-zeroed",
        "store/queue_files.py",
        "            self._files.truncate(handle, at)\n"
        "            self._files.truncate(handle, self.file_size)\n"
        "            self._written[path] = None\n",
        "            pass\n",
        masked="the units are written again in the end",
        tests=("tests/store/test_consumequeue.py",),
    ),
    Mutant(
        "kept-file-not-emptied",
        "store/queue_files.py",
        "            self._files.truncate(handle, len(zeros))\n"
        "            write_all(self._files, handle, [zeros], 0)\n",
        "",
        masked="the units are written again in the end",
        tests=("tests/store/test_consumequeue.py",),
    ),
    Mutant(
        "zeros-of-a-kept-file-trusted",
        "store/queue_files.py",
        "            self._files.truncate(handle, len(zeros))\n"
        "            write_all(self._files, handle, [zeros], 0)\n",
        "            if not any(self._files.pread(handle, self.file_size, 0)):\n"
        "                return True\n"
        "            self._files.truncate(handle, len(zeros))\n"
        "            write_all(self._files, handle, [zeros], 0)\n",
        masked="what comes back lies behind the queue's end, where the next start cuts it off",
        tests=("tests/store/test_consumequeue.py",),
    ),
    Mutant(
        "deleting-looks-at-every-queue-that-there-is",
        "store/consumequeue.py",
        "        for queue_id in range(self._ends.pop(topic, 0)):",
        "        for queue_id in [key[1] for key in self._queues if key[0] == topic]:",
        masked="it costs time only",
        tests=("tests/store/test_consumequeue.py",),
    ),
    Mutant(
        "queue-that-was-only-begun-outlives-its-topic",
        "store/consumequeue.py",
        "                self._count(topic, queue_id)\n                self._begun",
        "                self._begun",
        masked="a topic's folder is never used again",
        tests=("tests/store/test_consumequeue.py",),
    ),
    Mutant(
        "later-files-of-an-empty-queue-kept",
        "store/queue_files.py",
        "if path != kept or not self._empty(path):",
        "if not self._empty(path):",
        masked="the units are written again in the end",
        tests=("tests/store/test_consumequeue.py",),
    ),
    Mutant(
        "name-of-a-kept-file-not-synced",
        "store/queue_files.py",
        "                self._remove_file(path)\n"
        "            elif at == 0:\n"
        "                queue.is_begun = True\n",
        "                self._remove_file(path)\n"
        "            else:\n"
        "                queue.is_begun = at == 0\n"
        "                continue\n",
        seed=440050,
    ),
    Mutant(
        "consume-queue-unit-of-the-wrong-record",
        "store/dispatch.py",
        "        units.append(UNIT.pack(expected[1], end - start, code))\n",
        "        at = expected[1] + (queue_offset % 97 == 13)\n"
        "        units.append(UNIT.pack(at, end - start, code))\n",
    ),
    Mutant(
        "record-read-by-position-unverified",
        "store/segment_reader.py",
        "        head = self._read_segment(segment, first, last - first + 1)"
        "[skip : skip + from_file]\n",
        "        del last, skip\n        head = read_exactly(\n"
        "            self._files, segment.handle, from_file, start, str(segment.path)\n        )\n",
        tests=("tests/store/test_commitlog.py",),
    ),
    Mutant(
        "spare-renamed-before-fsync",
        "store/atomic_file.py",
        "            self._files.truncate(handle, len(stored))\n"
        "            self._files.fsync(handle)\n",
        "            self._files.truncate(handle, len(stored))\n",
    ),
    Mutant(
        "digest-told-from-a-rotten-header",
        "store/commitlog.py",
        "        return parse_header(self.read(index, index), 0).digest\n",
        "        return self.header_at(index).digest\n",
        tests=("tests/store/test_commitlog.py",),
    ),
    Mutant(
        "log-goes-on-from-a-header-that-nothing-vouches-for",
        "store/commitlog.py",
        "        return parse_header(self._reader.read(index, index), 0)\n",
        "        return self._reader.header_at(index)\n",
        masked="few entries are cut off right behind one that has rotted and isn't in memory",
        tests=("tests/store/test_commitlog.py",),
    ),
    Mutant(
        "deletion-overtakes-a-flush",
        "store/queue_flush.py",
        "        return [[*written], [*renamed], [*deleted]]\n",
        "        return [[*written], [*deleted]] if renamed else [[*written], [*deleted]]\n",
    ),
    Mutant(
        "names-of-a-dead-process-not-synced",
        "store/consumequeue.py",
        "            self._disk.renamed[self._root] = self._disk.renamed[directory] = None\n",
        "",
    ),
    Mutant(
        "no-space-kept-for-term-and-vote",
        "store/atomic_file.py",
        "        if not self._spare_bytes or self._has_spare():\n            return\n",
        "        return\n",
    ),
    Mutant(
        "space-of-a-term-set-free",
        "store/atomic_file.py",
        "            if not is_there or not self._files.exchange(self._spare, self._path):\n",
        "            if True:\n",
        tests=("tests/store/test_directory.py",),
    ),
    Mutant(
        "no-space-kept-for-a-cut",
        "store/truncation.py",
        "        self._file = AtomicFile(files, path, SPARE_BYTES)\n",
        "        self._file = AtomicFile(files, path)\n",
        tests=("tests/integration/test_filled_disk.py",),
    ),
    Mutant(
        "space-of-a-cut-set-free",
        "store/atomic_file.py",
        "        if self._spare_bytes:\n            self._files.rename(self._path, self._spare)\n",
        "        if False:\n            self._files.rename(self._path, self._spare)\n",
        tests=("tests/store/test_directory.py",),
    ),
    Mutant(
        "walk-follows-any-size",
        "store/segments.py",
        "        if header.index != index:\n",
        "        if header.index < index:\n",
        masked="segments of the simulator are shorter than a block",
        tests=_SIZES,
    ),
    Mutant(
        "walk-is-led-out-of-its-block",
        "store/segments.py",
        "    end = segment.used if run.next_start is None else run.next_start\n",
        "    end = segment.used\n",
        masked="segments of the simulator are shorter than a block",
        tests=_SIZES,
    ),
    Mutant(
        "walk-is-led-out-of-its-segment",
        "store/segments.py",
        "        if at + HEADER_SIZE > end:\n",
        "        if False:\n",
        masked="segments of the simulator are shorter than a block",
        tests=_SIZES,
    ),
    Mutant(
        "what-rot-has-told-of-starts-is-kept",
        "store/damage.py",
        "                self._table.look_again()\n",
        "",
        masked="it takes a body that looks like an entry, and a size that leads to it",
        tests=_SIZES,
    ),
    Mutant(
        "starts-of-a-cut-segment-kept",
        "store/starts.py",
        "        del self._mark_slots[kept:]\n        del self._marks[kept:]\n",
        "",
        masked="segments are shorter than a block",
        tests=("tests/store/test_starts.py",),
    ),
    Mutant(
        "frames-cut-off-stay-in-memory",
        "store/tail.py",
        "            del cut.frames[slot:]\n",
        "",
    ),
    Mutant(
        "only-the-last-file-of-a-queue-is-measured",
        "store/queue_files.py",
        "        for first in range(begins_at, queue.next, self.file_size // UNIT_SIZE):\n",
        "        for first in (queue.next - 1,):\n",
        seed=159,
    ),
)
