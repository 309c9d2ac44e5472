"""What a watch believes that it mustn't, `audit/keeping`: each is a rule of ADR 35, broken."""

from __future__ import annotations

from chaos.mutants.mutant import Mutant

_READS_ONLY = "nothing audits while a group is simulated"
_KEEPING = ("tests/audit/test_keeping.py",)

KEEPING = (
    Mutant(
        "modification-time-tells-a-file",
        "audit/keeping/remembering.py",
        "if stamps.get(p) == kept.stamp}",
        "if p in stamps and stamps[p][:2] == kept.stamp[:2]}",
        masked=_READS_ONLY,
        tests=_KEEPING,
    ),
    Mutant(
        "finding-voids-nothing",
        "audit/keeping/remembering.py",
        "            if not doubted:\n",
        "            if True:\n",
        masked=_READS_ONLY,
        tests=_KEEPING,
    ),
    Mutant(
        "refused-start-voids-nothing",
        "audit/keeping/remembering.py",
        "        Cause.QUEUE_SIZE,\n",
        "        *(Cause.QUEUE_SIZE, Cause.WOULD_NOT_START),\n",
        masked=_READS_ONLY,
        tests=("tests/audit/test_watched_changes.py",),
    ),
    Mutant(
        "file-that-changed-while-it-was-read-is-kept",
        "audit/keeping/remembering.py",
        "if after.get((each.replica, base)) == stamp\n",
        "if after\n",
        masked=_READS_ONLY,
        tests=_KEEPING,
    ),
    Mutant(
        "file-that-was-just-written-is-kept",
        "audit/keeping/remembering.py",
        "            and stamp.ctime_ns < each.taken_ns - self._settled_ns\n",
        "",
        masked=_READS_ONLY,
        tests=_KEEPING,
    ),
    Mutant(
        "queues-are-believed",
        "audit/keeping/recalling.py",
        "differing = engine.run(differing_runs, checks, no_progress)",
        "differing: list[list[int]] = [[] for _ in checks]",
        masked=_READS_ONLY,
        tests=_KEEPING,
    ),
    Mutant(
        "said-digest-within-a-kept-segment-is-not-compared",
        "audit/keeping/recalling.py",
        "        and not 0 < task.said[0] <= last.index\n",
        "",
        masked=_READS_ONLY,
        tests=_KEEPING,
    ),
    Mutant(
        "proof-has-no-end",
        "audit/keeping/pace.py",
        "return not 0 <= age_s < self.period_s",
        "return False",
        masked=_READS_ONLY,
        tests=_KEEPING,
    ),
    Mutant(
        "rounds-share-no-work",
        "audit/keeping/pace.py",
        "            if taken >= budget:\n",
        "            if True:\n",
        masked=_READS_ONLY,
        tests=_KEEPING,
    ),
    Mutant(
        "rotten-row-is-believed",
        "audit/keeping/store.py",
        "    if _sum(fields) != checksum:\n        return None\n",
        "",
        masked=_READS_ONLY,
        tests=_KEEPING,
    ),
    Mutant(
        "proofs-of-another-program-are-believed",
        "audit/keeping/store.py",
        "    if row.program != program:\n        return False\n",
        "",
        masked=_READS_ONLY,
        tests=_KEEPING,
    ),
    Mutant(
        "store-whose-header-rotted-is-another-programs",
        "audit/keeping/store.py",
        "        elif application != _APPLICATION and format_ == FORMAT and",
        "        elif False and",
        masked=_READS_ONLY,
        tests=_KEEPING,
    ),
    Mutant(
        "good-reports-displace-bad-ones",
        "audit/commands/watching.py",
        'return bool(report["exit_code"] == ExitCode.CONSISTENT)',
        'return bool(report["exit_code"] is not None)',
        masked=_READS_ONLY,
        tests=("tests/audit/test_watch.py",),
    ),
    Mutant(
        "what-was-read-of-another-file-is-kept",
        "audit/keeping/remembering.py",
        "        if not passes.is_of(place, stamp.file):\n            continue\n",
        "",
        masked=_READS_ONLY,
        tests=_KEEPING,
    ),
    Mutant(
        "shared-file-voids-nothing",
        "audit/keeping/remembering.py",
        "        *(Cause.RETAINED_LATER, Cause.ALONE, Cause.CHECKPOINT_LOST),\n",
        "        *(Cause.RETAINED_LATER, Cause.ALONE, Cause.CHECKPOINT_LOST, Cause.SHARED_FILE),\n",
        masked=_READS_ONLY,
        tests=_KEEPING,
    ),
    Mutant(
        "believed-part-is-of-no-file",
        "audit/keeping/recalling.py",
        "digests, end, file=file)\n",
        "digests, end)\n",
        masked=_READS_ONLY,
        tests=_KEEPING,
    ),
)
