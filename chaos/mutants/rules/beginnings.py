"""Holes in what audits say of logs that begin later, or apart, `audit/proof/beginnings.py`."""

from __future__ import annotations

from chaos.mutants.mutant import Mutant

_READS_ONLY = "nothing audits while a group is simulated"
_APART = ("tests/audit/test_beginnings.py",)
_ACCEPTED = ("tests/audit/test_accepted_retention.py",)
_DELETIONS = ("tests/audit/test_deletions.py",)
_ANY = ("tests/audit/test_any_change.py",)

BEGINNINGS = (
    Mutant(
        "accepted-retention-excuses-whom-nobody-was-compared-with",
        "audit/proof/replicas.py",
        "            if not compared[each.replica]\n",
        "            if not compared[each.replica]\n"
        "            and not (self._options.accept_retention and each.end > each.retained_from)\n",
        masked=_READS_ONLY,
        tests=_ACCEPTED,
    ),
    Mutant(
        "accepted-retention-begins-where-it-was",
        "audit/proof/replicas.py",
        "        return min(now.start, self._scope.end)\n",
        "        return self._scope.start\n",
        masked=_READS_ONLY,
        tests=_ACCEPTED,
    ),
    Mutant(
        "log-begins-where-its-files-do",
        "dledger/reading/survey.py",
        "    if noted not in (None, FROM_THE_FIRST) and segment_size:\n",
        "    if noted not in (None, FROM_THE_FIRST) and segment_size and segments:\n"
        "        return noted, max(first, noted.offset(segment_size))\n"
        "    if False:\n",
        masked=_READS_ONLY,
        tests=_APART,
    ),
    Mutant(
        "log-begins-where-its-page-says",
        "dledger/reading/survey.py",
        "    if noted not in (None, FROM_THE_FIRST) and segment_size:\n",
        "    if False:\n",
        masked=_READS_ONLY,
        tests=_APART,
    ),
    Mutant(
        "page-behind-its-note-left-so",
        "store/recovery.py",
        "            self._checkpoint.note_first(begins_at)\n",
        "            pass\n",
        masked="the note decides for whoever starts",
        tests=("tests/store/test_log_start.py",),
    ),
    Mutant(
        "later-start-believed-unseen",
        "audit/proof/beginnings.py",
        "        if _is_same(item, pair.start):\n",
        "        if True:\n",
        masked=_READS_ONLY,
        tests=_APART,
    ),
    Mutant(
        "later-start-of-another-digest-is-as-good",
        "audit/proof/beginnings.py",
        "    return found == (start.index, start.term, start.digest, start.end_offset)\n",
        "    return found[:2] == (start.index, start.term)\n",
        masked=_READS_ONLY,
        tests=_APART,
    ),
    Mutant(
        "nothing-shared-is-identical",
        "audit/proof/beginnings.py",
        "        and compared[each.replica]\n        and each.retained_from < scope.end\n",
        "",
        masked=_READS_ONLY,
        tests=_APART,
    ),
    Mutant(
        "notes-of-equal-starts-not-compared",
        "audit/proof/beginnings.py",
        "        if first.start is not None and _name(first.start) != _name(each.start):\n",
        "        if False:\n",
        masked=_READS_ONLY,
        tests=_APART,
    ),
    Mutant(
        "what-is-dropped-while-it-is-read-is-missing",
        "audit/proof/beginnings.py",
        "if not each.problem and each.is_running}",
        "if False}",
        masked=_READS_ONLY,
        tests=_APART,
    ),
    Mutant(
        "what-is-deleted-while-it-is-read-is-missing",
        "audit/proof/derived.py",
        "            elif fault.cause is Cause.QUEUE_MISSING and fault.queue[0] in taken:\n",
        "            elif False:\n",
        masked=_READS_ONLY,
        tests=_DELETIONS,
    ),
    Mutant(
        "one-deletion-excuses-whatever-is-gone",
        "audit/proof/deletions.py",
        "if is_deleted(folder, [deleted])}",
        "}",
        masked=_READS_ONLY,
        tests=_DELETIONS,
    ),
    Mutant(
        "a-folder-of-a-deleted-topic-may-lack-units",
        "audit/proof/deletions.py",
        ' if not os.path.lexists(f"{task.queues_root}/{each}")}',
        "}",
        masked=_READS_ONLY,
        tests=_DELETIONS,
    ),
    Mutant(
        "deletions-in-a-segment-behind-arent-seen",
        "audit/proof/deletions.py",
        "            at = base + task.segment_size\n",
        "            return\n",
        masked=_READS_ONLY,
        tests=_DELETIONS,
    ),
    Mutant(
        "who-begins-anew-meanwhile-begins-later",
        "audit/proof/plan.py",
        "    return survey.is_running and 0 < survey.end < survey.retained_from\n",
        "    return False\n",
        masked=_READS_ONLY,
        tests=_APART,
    ),
    Mutant(
        "first-entry-continues-anything",
        "audit/proof/derived.py",
        "            digest = survey.start.digest if survey.start is not None else None\n",
        "            digest = 0 if chain.base == 0 else None\n",
        masked=_READS_ONLY,
        tests=_APART,
    ),
    Mutant(
        "log-verify-passes-over-the-note",
        "audit/proof/log.py",
        "            return survey.start.digest\n",
        "            return None if base else 0\n",
        masked=_READS_ONLY,
        tests=_APART,
    ),
    Mutant(
        "log-that-begins-nowhere-is-sound",
        "audit/proof/log.py",
        "            self._place(base, 0, Cause.START_UNKNOWN, UNKNOWN_START)\n",
        "            pass\n",
        masked=_READS_ONLY,
        tests=_APART,
    ),
    Mutant(
        "chain-that-begins-nowhere-is-checked",
        "audit/proof/scope.py",
        "            if not each.problem and each.segments and each.start is None\n",
        "            if False\n",
        masked=_READS_ONLY,
        tests=_APART,
    ),
    Mutant(
        "units-of-what-was-let-go-are-too-many",
        "audit/proof/queue_ends.py",
        "    retired = ending.log_start if end is None else 0\n",
        "    retired = 0\n",
        masked=_READS_ONLY,
        tests=_ANY,
    ),
)
