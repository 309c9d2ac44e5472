"""Holes in what an audit calls identical, `audit/proof`: each is one that there was."""

from __future__ import annotations

from chaos.mutants.mutant import Mutant

_READS_ONLY = "nothing audits while a group is simulated"
_SCOPE = ("tests/audit/test_scope.py",)
_LOG = ("tests/audit/test_log.py",)
_RANGES = ("tests/audit/test_ranges.py",)

AUDITS = (
    Mutant(
        "one-altered-term-is-an-epoch",
        "audit/proof/locate.py",
        "    return is_ascending and all(item.continues is not False for item in scanned.items)\n",
        "    return True\n",
        masked=_READS_ONLY,
        tests=("tests/audit/test_any_change.py",),
    ),
    Mutant(
        "units-above-the-checkpoint-not-compared",
        "audit/proof/derived.py",
        "    if not survey.answered:\n        wanted = max(",
        "    if False:\n        wanted = max(",
        masked=_READS_ONLY,
        tests=_SCOPE,
    ),
    Mutant(
        "lost-checkpoint-is-a-note",
        "audit/proof/scope.py",
        "    if scope.files is Files.ALL:\n",
        "    if False:\n",
        masked=_READS_ONLY,
        tests=("tests/audit/test_any_change.py",),
    ),
    Mutant(
        "faults-of-queues-displace-each-other",
        "audit/proof/reading.py",
        "        key = fault.cause, fault.queue\n",
        "        if len(self._of_queues) + sum(\n"
        "            each.count for each in self._of_queues.values()\n"
        "        ) > MAX_FAULTS:\n"
        "            return\n"
        "        key = fault.cause, fault.queue\n",
        masked=_READS_ONLY,
        tests=_SCOPE,
    ),
    Mutant(
        "cut-segment-has-a-last-digest",
        "audit/proof/reading.py",
        "            self._lose()\n            self._gap(at, end)\n            return task.",
        "            self._gap(at, end)\n            return task.",
        masked=_READS_ONLY,
        tests=_SCOPE,
    ),
    Mutant(
        "lost-tail-is-bit-rot",
        "audit/proof/queue_ends.py",
        "Cause.LOG_LACKS if _is_of_a_gap(unit, ending) else Cause.QUEUE_EXTRA",
        "Cause.QUEUE_EXTRA",
        masked=_READS_ONLY,
        tests=_SCOPE,
    ),
    Mutant(
        "lost-election-is-a-note",
        "audit/proof/locate.py",
        "            if at < self._scope_end:\n",
        "            if False:\n",
        masked=_READS_ONLY,
        tests=_SCOPE,
    ),
    Mutant(
        "second-read-that-failed-is-equal",
        "audit/proof/locate.py",
        "        if not all(scanned.whole for scanned in block.scans):\n",
        "        if False:\n",
        masked=_READS_ONLY,
        tests=_SCOPE,
    ),
    Mutant(
        "each-block-is-a-divergence",
        "audit/proof/merging.py",
        "    if each.cause in _ONE_STORY:\n        return True\n",
        "",
        masked=_READS_ONLY,
        tests=_SCOPE,
    ),
    Mutant(
        "replica-that-would-not-start-is-identical",
        "audit/proof/starting.py",
        "    if judged.judgement.starts:\n        return\n",
        "    return\n",
        masked=_READS_ONLY,
        tests=("tests/audit/test_any_change.py",),
    ),
    Mutant(
        "held-log-is-read-to-its-end",
        "audit/proof/log.py",
        "        return OpenedLog(survey, holder, survey.settled, survey.settled)\n",
        "        return OpenedLog(survey, holder, survey.end, survey.end)\n",
        masked=_READS_ONLY,
        tests=_LOG,
    ),
    Mutant(
        "segments-of-a-log-are-not-chained",
        "audit/proof/log.py",
        "        if digest is None or chain.first_digest is None:\n",
        "        if True:\n",
        masked=_READS_ONLY,
        tests=_LOG,
    ),
    Mutant(
        "everything-is-the-tail",
        "audit/proof/log.py",
        "        return start >= self.end\n",
        "        return start >= 0\n",
        masked=_READS_ONLY,
        tests=_LOG,
    ),
    Mutant(
        "range-begins-where-a-header-says",
        "audit/proof/ranges.py",
        "            verify_frame(read_at(descriptor, header.total_size, at), 0, None)\n",
        "            pass\n",
        masked=_READS_ONLY,
        tests=_RANGES,
    ),
    Mutant(
        "range-ends-where-a-header-says",
        "audit/proof/log.py",
        "            if segment.last_index is not None and segment.last_index >= wanted[1]:\n",
        "            if (first_index(log.survey, base + log.segment_size) or 0) > wanted[1]:\n",
        masked=_READS_ONLY,
        tests=_RANGES,
    ),
    Mutant(
        "range-that-is-not-there-is-sound",
        "audit/proof/log.py",
        "        if missing:\n            self._worsen(Soundness.INCOMPLETE)\n",
        "",
        masked=_READS_ONLY,
        tests=_RANGES,
    ),
    Mutant(
        "log-without-its-beginning-is-sound",
        "audit/proof/ranges.py",
        "        survey.checkpoint_readable or (first is not None and survey.retained_from == 0)\n",
        "        True\n",
        masked=_READS_ONLY,
        tests=_RANGES,
    ),
    Mutant(
        "first-digest-of-a-range-is-taken-as-it-is",
        "audit/proof/log.py",
        "        return digest_before(survey, base)\n",
        "        return None\n",
        masked=_READS_ONLY,
        tests=_RANGES,
    ),
    Mutant(
        "tail-that-is-not-told-is-damage",
        "audit/proof/log.py",
        " if not self._is_of_tail(cause)",
        "",
        masked=_READS_ONLY,
        tests=_RANGES,
    ),
    Mutant(
        "snapshot-that-is-not-usable-is-not-noted",
        "audit/proof/starting.py",
        "        yield from _snapshot_notes(each)\n",
        "",
        masked=_READS_ONLY,
        tests=("tests/audit/test_any_change.py",),
    ),
    Mutant(
        "scope-is-silent-about-snapshots",
        "audit/showing/words.py",
        '    return f"{said}; snapshots: {scope.snapshots}{_belief(scope)}"\n',
        '    return f"{said}{_belief(scope)}"\n',
        masked=_READS_ONLY,
        tests=("tests/audit/test_any_change.py",),
    ),
    Mutant(
        "copy-is-silent-about-snapshots",
        "audit/showing/copy.py",
        "; snapshots: {report.snapshots}",
        "",
        masked=_READS_ONLY,
        tests=("tests/audit/test_any_change.py",),
    ),
    Mutant(
        "node-that-may-run-elsewhere-is-not-told",
        "audit/showing/log.py",
        "        yield from _wrapped(UNCLEAN)\n",
        "        pass\n",
        masked=_READS_ONLY,
        tests=_LOG,
    ),
)
