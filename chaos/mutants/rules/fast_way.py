"""Checks that an audit's fast way leaves out, `audit/proof/runs.py`: each of those that it makes
itself. What it then takes for right is wrong entry by entry."""

from __future__ import annotations

from typing import Final

from chaos.mutants.mutant import Mutant

_READS_ONLY: Final = "nothing audits while a group is simulated"
_BOTH: Final = ("tests/audit/test_fast_way.py",)
_RUNS: Final = "audit/proof/runs.py"
_READING: Final = "audit/proof/reading.py"
_TAGS: Final = "audit/proof/tags.py"


def _dropped(name: str, file: str, old: str, new: str = "") -> Mutant:
    return Mutant(f"fast-way-{name}", file, old, new, masked=_READS_ONLY, tests=_BOTH)


FAST_WAY = (
    _dropped(
        "without-crc",
        "dledger/reading/chunks.py",
        "        if frame_crc(view, at, behind) != crc:\n            break\n",
    ),
    _dropped("of-kind-0", _RUNS, "(kinds >= EntryKind.NOOP) & "),
    _dropped("of-version-0", _RUNS, "(versions >= OLD_VERSION) & "),
    _dropped(
        "anywhere",
        _RUNS,
        '    good &= columns["physical_offset"] == places.astype(np.uint64) + np.uint64(place)\n',
    ),
    _dropped(
        "without-digests",
        _READING,
        "not framed.headers or not digests_continue(framed, self._previous)",
        "not framed.headers",
    ),
    _dropped("without-nodes-words", _READING, " or not all(map(self._as_said, framed.headers))"),
    _dropped(
        "first-members-word-only",
        _READING,
        "or header.digest == member.said[1]\n            for member in self._members\n",
        "or header.digest == member.said[1]\n            for member in self._members[:1]\n",
    ),
    _dropped(
        "without-rules",
        _READING,
        "            return bool(rules.broken_by_batch(header, batch))\n",
        "            return bool(rules.broken_by_batch(header, batch)) and False\n",
    ),
    _dropped(
        "without-rules-of-commands",
        _READING,
        "        return bool(rules.broken_by(header, framed.frame(number)))\n",
        "        return bool(rules.broken_by(header, framed.frame(number))) and False\n",
    ),
    _dropped(
        "first-members-queues-only",
        _READING,
        "            if queues.units(queue, units.first,",
        "            if member is self._task and queues.units(queue, units.first,",
    ),
    _dropped(
        "deletion-taken-along",
        _READING,
        "framed.scanned, framed.upto_deletion()",
        "framed.scanned, framed",
    ),
    _dropped("records-of-any-size", _RUNS, '(fields["total_size"] != ends - starts).any() or '),
    _dropped("without-magic", _RUNS, "== RECORD_MAGIC\n", '== fields["magic"]\n'),
    _dropped(
        "of-any-queue",
        _RUNS,
        '    right &= fields["queue_id"] == fields["queue_id"][records.firsts][records.owners]\n',
    ),
    _dropped("of-any-host", _RUNS, '    right &= fields["sysflag"] & V6_HOST_BITS == 0\n'),
    _dropped("of-any-length", _RUNS, "    right &= lengths == records.ends - records.properties\n"),
    _dropped("of-long-properties", _RUNS, "    right &= lengths <= _LONGEST_PROPERTIES\n"),
    _dropped(
        "of-any-queue-offset",
        _RUNS,
        '    right &= fields["queue_offset"].astype(np.int64) == bases[records.owners] + ranks\n',
    ),
    _dropped(
        "of-any-physical-offset",
        _RUNS,
        '    right &= fields["physical_offset"].astype(np.int64) == '
        "records.starts + places[records.owners]\n",
    ),
    _dropped(
        "of-any-store-time",
        _RUNS,
        '    right &= fields["store_time_ms"] == records.repeated(times)\n',
    ),
    _dropped("of-several-topics", _RUNS, " and _topics_agree(records)"),
    _dropped("of-any-name", _RUNS, "if TOPIC_PATTERN.fullmatch(topic) is None", "if False"),
    _dropped("without-body-crc", _RUNS, " or not _sums_are_right(records)"),
    _dropped(
        "of-earlier-tags", _TAGS, "    if TAGS in rows[:, :ahead].tobytes():", "    if False:"
    ),
    _dropped("of-letters-that-are-none", _TAGS, "(letters < 0x80) | ", "(letters < 0x100) | "),
)
