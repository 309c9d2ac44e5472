"""Defects in what a leader lets go of (docs/adr/0047-retention.md)."""

from __future__ import annotations

from chaos.mutants.mutant import Mutant

_FILE = "broker/leader/retention.py"
_DISKS = ("tests/broker/test_full_disks.py", "tests/node/test_fullest_disk.py")
_WISHES = ("tests/broker/test_topic_retention.py",)
_WISHED = "few topics of simulated groups wish anything, and none of them meets this"
_ARCHIVE = ("tests/broker/test_archiving.py",)
_ARCHIVED = "no simulated group has an archive"
_READING = ("tests/client/test_reading_loops.py",)
_CLIENT = "the simulator's consumers are its own"
_TESTS = ("tests/broker/test_retention.py",)
_AGELESS = "no entry says that it is older than can be, but where it has rotted to that very number"
_MARKS = ("tests/broker/test_lived_marks.py",)
_READER = ("tests/broker/test_lived_reader.py",)
_STEPS = "few runs of a seed step in the middle of what goes next"


def _mutant(name: str, old: str, new: str) -> Mutant:
    masked = "what has gone by a decision isn't lost, whoever took it"
    return Mutant(name, _FILE, old, new, masked=masked, tests=_TESTS)


RETENTION = (
    Mutant(
        "id-finds-what-its-topic-has-let-go-of",
        "broker/services/messages.py",
        "        if gone := self._reader.let_go_of(physical_offset, record):\n",
        "        if gone := '':\n",
        masked=_WISHED,
        tests=_WISHES,
    ),
    Mutant(
        "id-of-a-topic-before-is-denied-by-the-one-after",
        "broker/reading/queues.py",
        "        if state is None or physical_offset < self._created_at(state):\n",
        "        if state is None:\n",
        masked=_WISHED,
        tests=_WISHES,
    ),
    Mutant(
        "retention-by-the-age-of-what-is-kept",
        _FILE,
        "return measured.lived.age_at_least(self.append_time_ms)",
        "return measured.lived_ms",
        seed=4,
        tests=_TESTS,
    ),
    Mutant(
        "retention-by-a-time-that-nothing-vouches-for",
        "broker/front.py",
        "        return parse_header(self.log.read(index, index), 0).append_time_ms\n",
        "        return self.log.header_at(index).append_time_ms\n",
        masked=_AGELESS,
        tests=("tests/broker/test_front.py",),
    ),
    Mutant(
        "retention-by-an-age-that-cannot-be",
        _FILE,
        "        is_old = is_aged and end.can_be(measured)\n",
        "        is_old = is_aged\n",
        masked=_AGELESS,
        tests=_TESTS,
    ),
    Mutant(
        "retention-tells-of-no-age-that-cannot-be",
        _FILE,
        "            if not end.can_be(measured) and self._impossible != end.last_index:\n",
        "            if False:\n",
        masked=_AGELESS,
        tests=_TESTS,
    ),
    Mutant(
        "age-between-marks-by-a-clock",
        "broker/leader/lived_marks.py",
        "most_ms = min(most_ms, after.lived_ms - min(after.time_ms - time_ms, MAX_GAP_MS))",
        "most_ms = min(most_ms, after.lived_ms - (after.time_ms - time_ms))",
        masked=_STEPS,
        tests=_MARKS,
    ),
    Mutant(
        "topics-messages-gone-by-a-moment-behind-a-step",
        "broker/leader/lived_marks.py",
        "key=lambda mark: mark.lived_ms) - 1\n",
        "key=lambda mark: mark.lived_ms)\n        last = min(last, len(marks) - 1)\n",
        masked=_STEPS,
        tests=_MARKS,
    ),
    Mutant(
        "nobody-sees-what-the-logs-time-steps-over",
        "broker/leader/lived_marks.py",
        "        elif now.time_ms - latest.time_ms > now.lived_ms - latest.lived_ms:\n",
        "        elif False:\n",
        masked="who wasn't there reads it",
        tests=_MARKS,
    ),
    Mutant(
        "marks-without-a-bound",
        "broker/leader/lived_marks.py",
        "        if len(self._marks) > MAX_MARKS:\n",
        "        if False:\n",
        masked="no simulated group lives through so many steps",
        tests=_MARKS,
    ),
    _mutant(
        "what-follows-a-step-is-kept-for-as-long",
        "            await self._front.read_on(end.last_index)\n",
        "",
    ),
    Mutant(
        "age-read-by-a-clock",
        "broker/lived_reader.py",
        "        lived.advance(before.time_ms, time_ms)\n",
        "        lived.lived_ms += time_ms - before.time_ms\n",
        masked="what is kept for too long isn't lost",
        tests=_READER,
    ),
    Mutant(
        "age-read-of-a-log-that-begins-later-by-now",
        "broker/lived_reader.py",
        "        if not begin.index <= self._at.index <= through:\n",
        "        if not self._at.index:\n",
        masked=_STEPS,
        tests=_READER,
    ),
    Mutant(
        "age-read-at-one-look",
        "broker/lived_reader.py",
        "        while self._at.index < through and left > 0:\n",
        "        while self._at.index < through:\n",
        masked="simulated segments are small",
        tests=_READER,
    ),
    _mutant(
        "retention-one-segment-too-much",
        "measured.end_offset - start > rules.bytes",
        "measured.end_offset - start + measured.segment_size > rules.bytes",
    ),
    _mutant(
        "retention-of-a-full-disk-takes-all",
        "is_in_the_way = bool(measured.in_need) and kept is None and can_be_spared",
        "is_in_the_way = bool(measured.in_need) and can_be_spared",
    ),
    _mutant(
        "retention-of-a-full-disk-takes-the-last-ones",
        "left > (KEPT_WHEN_FULL - 1) * measured.segment_size",
        "left >= 0",
    ),
    _mutant(
        "retention-by-who-does-not-lead",
        "                if self._serves():\n",
        "                if True:\n",
    ),
    _mutant(
        "retention-goes-on-before-it-has-gone",
        "            if is_behind and not measured.in_need:\n                return\n"
        "            rules = Rules() if is_behind else self._rules_now()\n",
        "            rules = self._rules_now()\n",
    ),
    _mutant(
        "retention-of-a-full-disk-waits-for-the-leader",
        "            if is_behind and not measured.in_need:\n",
        "            if is_behind:\n",
    ),
    _mutant(
        "retention-of-a-full-disk-waits-and-more-goes",
        "            rules = Rules() if is_behind else self._rules_now()\n",
        "            rules = self._rules_now()\n",
    ),
    Mutant(
        "retention-decides-the-same-again-while-it-has-not-gone",
        "broker/front.py",
        "        if (decided := self._decided()) is not None:\n",
        "        if (decided := self._decided()) is not None and not self.log.last_index:\n",
        masked="few leaders of a run mend while a disk is full",
        tests=_DISKS,
    ),
    Mutant(
        "retention-for-a-disk-that-stays-full",
        "broker/leader/full_disks.py",
        "            or self._burdens[node].is_back(figure, end_offset, segment_size)\n",
        "            or True\n",
        masked="what has gone by a decision isn't lost, whoever took it",
        tests=_DISKS,
    ),
    Mutant(
        "retention-takes-what-comes-for-a-disk-that-stays-full",
        "broker/leader/full_disks.py",
        "        come = max(0, end_offset - self.end_offset)\n",
        "        come = 0\n",
        masked="a group that stops to let go fills up, and refuses",
        tests=_DISKS,
    ),
    Mutant(
        "retention-by-figures-of-long-ago",
        "dledger/disk_figures.py",
        "            if now_us - each.at_us <= SILENT_US\n",
        "",
        masked="what has gone by a decision isn't lost, whoever took it",
        tests=_DISKS,
    ),
    Mutant(
        "disks-that-can-not-be-are-believed",
        "dledger/codec.py",
        "    if not body.disk_free_bytes <= body.disk_total_bytes <= MAX_DISK_BYTES:\n",
        "    if body.disk_free_bytes < 0:\n",
        masked="what has gone by a decision isn't lost, whoever took it",
        tests=("tests/node/test_checksum.py",),
    ),
    Mutant(
        "bits-that-flip-in-a-disks-figures",
        "dledger/checksum.py",
        "        if answer.disk_checksum != _disk_checksum(message):\n",
        "        if False:\n",
        masked="what has gone by a decision isn't lost, whoever took it",
        tests=("tests/node/test_checksum.py",),
    ),
    Mutant(
        "retention-looks-at-the-leaders-disk-alone",
        "dledger/driver.py",
        "        known = self._disks.fresh(voters - {self._node}, self._now_us())\n",
        "        known: dict[NodeId, DiskFigure] = {}\n",
        masked="a full disk refuses messages, and is given room",
        tests=_DISKS,
    ),
    Mutant(
        "segment-goes-before-it-is-archived",
        "broker/log_start.py",
        "        return not held\n",
        "        return True\n",
        masked=_ARCHIVED,
        tests=("tests/integration/test_archiving.py",),
    ),
    Mutant(
        "who-is-behind-lets-go-for-its-own-disk",
        "broker/front.py",
        "            in_need -= {self.node_id}\n",
        "            pass\n",
        masked="an hour of it: no simulated disk is full for so long",
        tests=("tests/broker/test_front.py",),
    ),
    Mutant(
        "units-of-one-at-a-time-are-refused-for-others",
        "broker/leader/units_room.py",
        "        for key in () if kind in (Kind.SINGLE, Kind.BROKERS) else place.keys:\n",
        "        for key in place.keys:\n",
        masked="no simulated leader has so many units about one thing",
        tests=("tests/broker/test_units.py",),
    ),
    Mutant(
        "time-of-a-working-archive-counts-as-a-hold",
        "broker/archiving.py",
        "            took_s = self._clock() - began_s",
        "            took_s = 0.0",
        masked="no simulated node has an archive",
        tests=_ARCHIVE,
    ),
    Mutant(
        "segment-held-for-ever",
        "broker/archiving.py",
        "self._clock() - self._handed_s[path] >= self._hold_s",
        "self._clock() < 0",
        masked=_ARCHIVED,
        tests=_ARCHIVE,
    ),
    Mutant(
        "segments-held-one-after-the-other",
        "broker/archiving.py",
        "{path: self._handed_s.get(path, now_s) for path in paths}",
        "{path: self._handed_s.get(path, now_s) for path in paths[:1]}",
        masked=_ARCHIVED,
        tests=_ARCHIVE,
    ),
    Mutant(
        "segment-held-by-nobody",
        "broker/archiving.py",
        "        if not self._may_be_lost(path):\n",
        "        if False:\n",
        masked=_ARCHIVED,
        tests=_ARCHIVE,
    ),
    Mutant(
        "archive-command-never-ended",
        "broker/archiving.py",
        "        async with asyncio.timeout(timeout_s):\n",
        "        async with asyncio.timeout(None):\n",
        masked=_ARCHIVED,
        tests=_ARCHIVE,
    ),
    Mutant(
        "archive-commands-children-left",
        "broker/archiving.py",
        "        os.killpg(process.pid, signal.SIGKILL)\n",
        "        process.kill()\n",
        masked=_ARCHIVED,
        tests=_ARCHIVE,
    ),
    Mutant(
        "topics-messages-gone-before-they-are-old",
        "broker/leader/topic_retention.py",
        "        slack_ms = self._slack_of(wish_ms) // 2\n",
        "        slack_ms, wish_ms = self._slack_ms, wish_ms - SLACK_MS\n",
        seed=740_020,
        tests=_WISHES,
    ),
    Mutant(
        "topics-messages-by-the-founders-clock",
        "broker/front.py",
        "        return Point(FIRST_ENTRY + 1, led_ms, lived.lived_ms)\n",
        "        return Point(FIRST_ENTRY, founded_ms, 0)\n",
        masked=_WISHED,
        tests=_WISHES,
    ),
    Mutant(
        "queue-begins-earlier-again",
        "broker/state/topic_retention.py",
        "not moved[queue_id] <= offset <= ends[queue_id]:",
        "not offset <= ends[queue_id]:",
        masked=_WISHED,
        tests=_WISHES,
    ),
    Mutant(
        "queue-begins-behind-its-end",
        "broker/state/topic_retention.py",
        "not moved[queue_id] <= offset <= ends[queue_id]:",
        "not moved[queue_id] <= offset:",
        masked=_WISHED,
        tests=_WISHES,
    ),
    Mutant(
        "starts-of-a-topic-that-is-gone",
        "broker/state/effects.py",
        "        state.topic_retention.on_topic_deleted(topic.incarnation)\n",
        "",
        masked=_WISHED,
        tests=_WISHES,
    ),
    Mutant(
        "what-a-topic-let-go-of-is-read",
        "broker/reading/queues.py",
        "        return max(start, held), state.next_offsets[queue_id]\n",
        "        return held, state.next_offsets[queue_id]\n",
        masked=_WISHED,
        tests=_WISHES,
    ),
    Mutant(
        "topics-wishes-before-their-level",
        "broker/state/level.py",
        '    "retain_topic": TOPIC_RETENTION_LEVEL,\n',
        '    "retain_topic": 1,\n',
        masked=_WISHED,
        tests=_WISHES,
    ),
    _mutant(
        "longer-wish-of-a-topic-unheard",
        "max(age_ms, self._wishes.longest_ms()) if age_ms else 0",
        "age_ms",
    ),
    Mutant(
        "what-has-gone-passed-over-unasked",
        "dledger/client/fetching.py",
        "            case WhenGone.RAISE:\n                return range(0)\n",
        "            case WhenGone.RAISE:\n                return range(offset, first)\n",
        masked=_CLIENT,
        tests=_READING,
    ),
    Mutant(
        "what-never-was-passed-over",
        "dledger/client/fetching.py",
        "        if not 0 <= offset < first <= last:\n",
        "        if not first <= last:\n",
        masked=_CLIENT,
        tests=_READING,
    ),
    Mutant(
        "what-was-passed-over-not-committed",
        "dledger/client/topic_reading.py",
        "            self._progress.pass_over(queue_id, chunk.skipped.stop)\n",
        "",
        masked=_CLIENT,
        tests=_READING,
    ),
    _mutant(
        "retention-reads-all-segments-in-one-turn",
        "                break\n            await asyncio.sleep(0)\n",
        "                break\n",
    ),
    _mutant(
        "retention-ends-with-a-refusal",
        '            return\n        self._refused = ""\n',
        '            raise\n        self._refused = ""\n',
    ),
)
