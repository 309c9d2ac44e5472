"""Checks that an audit's fast way leaves out, `audit/proof/runs.py`: each of those that it makes
itself. What it then takes for right is wrong entry by entry. And what a start that is rehearsed
takes for read that wasn't, or isn't there any more."""

from __future__ import annotations

from typing import Final

from chaos.mutants.mutant import Mutant

_READS_ONLY: Final = "nothing audits while a group is simulated"
_BOTH: Final = ("tests/audit/test_fast_way.py",)
_RUNS: Final = "audit/proof/runs.py"
_READING: Final = "audit/proof/reading.py"
_TAGS: Final = "audit/proof/tags.py"
_STATE: Final = "audit/reading/file_state.py"
_INTACT: Final = ("tests/audit/test_intact.py",)


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
    _dropped("without-nodes-words", _READING, " or not self._as_said(framed)"),
    _dropped(
        "first-members-word-only",
        _READING,
        "== member.said[1]\n            for member in self._members\n",
        "== member.said[1]\n            for member in self._members[:1]\n",
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
        "of-earlier-tags",
        _TAGS,
        '    if ahead and TAGS in gathered(content, properties, f"V{ahead}").tobytes():',
        "    if False:",
    ),
    _dropped("of-other-properties", _TAGS, '(words == int.from_bytes(opening, "little")) & '),
    _dropped("of-letters-that-are-none", _TAGS, "(words & _HIGH_BITS) == 0, ", "words >= 0, "),
    _dropped("of-letters-behind-a-record", _TAGS, " & _KEPT[np.clip(room, 0, _LETTERS)]"),
    _dropped("of-long-tags", _TAGS, "    is_short[longer] = False\n"),
    *(
        Mutant(f"start-on-what-was-read-{name}", file, old, new, masked=_READS_ONLY, tests=_INTACT)
        for name, file, old, new in (
            ("though-faulty", _READING, "None if self._faults or self._gaps", "None if self._gaps"),
            ("though-damaged", _READING, "self._faults or self._gaps else", "self._faults else"),
            (
                "though-written-to-since",
                "audit/proof/starting.py",
                "    if not all(each.still_stands(commitlog) for each in task.runs):\n"
                "        judgement = judge(data)\n",
                "",
            ),
            (
                "of-a-replica-that-was-found-faulty",
                "audit/proof/replicas.py",
                " if replica not in named}",
                "}",
            ),
            ("of-several-states", "audit/proof/intact.py", "if len(known) == 1 else None", ""),
            (
                "though-a-part-was-not",
                "audit/proof/intact.py",
                "part.state if part.problem is None else None",
                "part.state",
            ),
            ("under-two-names", _STATE, "found.st_nlink != 1 or ", ""),
            (
                "just-now",
                _STATE,
                "if found.st_nlink != 1 or found.st_ctime_ns >= now - int(SETTLED_S * 1e9):",
                "if found.st_nlink != 1:",
            ),
            (
                "before-a-cut",
                "store/recovery.py",
                "self._known if redone is None else NOTHING_KNOWN",
                "self._known",
            ),
            (
                "before-a-cut-is-judged",
                "store/starting/judging.py",
                'NOTHING_KNOWN if os.path.lexists(path / "truncation") else known',
                "known",
            ),
            ("whatever-is-first", "store/walking.py", "run.first != first or ", ""),
            (
                "to-a-segments-end",
                "store/walking.py",
                "        if run.size > self._segment_size - FILLER_HEADER_SIZE:\n"
                "            return False\n",
                "",
            ),
        )
    ),
)
