"""Defects in what is said of a run: no run shows them, as it is the run that would be believed."""

from __future__ import annotations

from chaos.mutants.mutant import Mutant

_BELIEVED = "a verdict is judged by nobody but its tests"
_KILLS = ("tests/chaos/test_mutants.py::test_a_seed_that_fails_without_a_defect_kills_nothing",)

VERDICTS = (
    Mutant(
        "years-end-without-a-delivery-audit",
        "chaos/real/audited.py",
        '    accepted = [] if retains_all else ["--accept-retention"]\n',
        '    accepted = [] if retains_all else ["--accept-retention"]\n'
        '    if accepted:\n        return [["audit", "replicas", *replicas, *accepted]]\n',
        masked="real runs end with audits, and simulated ones with checks of their own",
        tests=("tests/chaos_real/test_retired.py",),
    ),
    Mutant(
        "crowded-key-takes-the-others-with-it",
        "chaos/checkers/linearizability.py",
        "            found.undecided.append(error)\n            continue\n",
        "            found.undecided.append(error)\n            return\n",
        masked=_BELIEVED,
        tests=("tests/chaos/test_linearizability.py",),
    ),
    Mutant(
        "anomaly-dropped-for-want-of-few-words",
        "chaos/checkers/linearizability.py",
        "        except SearchTooLong:\n            return operations\n",
        "        except SearchTooLong:\n            raise\n",
        masked=_BELIEVED,
        tests=("tests/chaos/test_linearizability.py",),
    ),
    Mutant(
        "undecided-run-holds",
        "chaos/real/verdict.py",
        "    return ExitCode.INCOMPLETE if undecided else ExitCode.DONE\n",
        "    return ExitCode.DONE\n",
        masked=_BELIEVED,
        tests=("tests/chaos_real/test_report.py",),
    ),
    Mutant(
        "power-cut-excuses-what-only-began-after-it",
        "chaos/real/weaker.py",
        "        each.invoked_us <= cut.struck_us\n        and (each.completed_us is None",
        "        (each.completed_us is None",
        masked=_BELIEVED,
        tests=("tests/chaos_real/test_weaker.py",),
    ),
    Mutant(
        "power-cut-excuses-what-was-synced-before",
        "chaos/real/weaker.py",
        "(each.completed_us is None or each.completed_us >= earliest_us)",
        "(each.completed_us is None or earliest_us)",
        masked=_BELIEVED,
        tests=("tests/chaos_real/test_weaker.py",),
    ),
    Mutant(
        "seed-kills-what-it-fails-without",
        "chaos/mutants/hunt.py",
        "        if kill.test in tests or (kill.mutant.applications, kill.seed) in seeds\n",
        "        if kill.test in tests\n",
        masked=_BELIEVED,
        tests=_KILLS,
    ),
    Mutant(
        "crash-told-of-the-seed-that-the-hunt-began-with",
        "chaos/mutants/hunt.py",
        "reversed(done.stdout.split()) if line.isdecimal()), first)",
        "() if line.isdecimal()), first)",
        masked=_BELIEVED,
        tests=_KILLS,
    ),
    Mutant(
        "repair-of-one-file-told-of-another",
        "chaos/flips/hearing.py",
        "                str(directory / file.stem) in str(event)\n",
        "                str(directory.parent) in str(event)\n",
        masked=_BELIEVED,
        tests=("tests/chaos/test_flips.py",),
    ),
    Mutant(
        "rewritten-entry-taken-for-the-one-before",
        "chaos/sim/acknowledged.py",
        "(index < log.first_index or log.digest_at(index) == digest)",
        "digest",
        masked=_BELIEVED,
        tests=("tests/chaos/test_watch.py",),
    ),
    Mutant(
        "log-that-nobody-gives-is-empty",
        "chaos/sim/applications/run.py",
        "                return self._held_by(life, name)\n        return None\n",
        "                return self._held_by(life, name)\n        return Held({}, {})\n",
        masked=_BELIEVED,
        tests=("tests/chaos/test_library.py::test_log_that_nobody_gives_is_no_empty_one",),
    ),
    Mutant(
        "rotten-term-excuses-for-ever",
        "chaos/sim/machine.py",
        "            elif is_term and self._is_written_anew(read, held):\n",
        "            elif file is None and self._is_written_anew(read, held):\n",
        masked=_BELIEVED,
        tests=("tests/chaos/test_rotten_nodes.py",),
    ),
    Mutant(
        "one-rotten-byte-excuses-every-entry",
        "chaos/sim/machine.py",
        "return None if self._has_rotten(log, index) else",
        "return None if self.has_log_rot else",
        masked=_BELIEVED,
        tests=("tests/chaos/test_rotten_nodes.py",),
    ),
    Mutant(
        "run-that-compares-nothing-passes",
        "chaos/sim/last_look.py",
        "    if len(sound) < min(2, len(running)):\n",
        "    if not running:\n",
        masked=_BELIEVED,
        tests=("tests/chaos/test_rotten_nodes.py",),
    ),
    Mutant(
        "run-without-a-message-holds",
        "chaos/real/verdict.py",
        "    found = [] if acknowledged else [",
        "    found = [] if not acknowledged else [",
        masked=_BELIEVED,
        tests=("tests/chaos_real/test_report.py",),
    ),
    Mutant(
        "run-whose-faults-hit-nobody-holds",
        "chaos/real/verdict.py",
        "    if planned and not struck:\n",
        "    if not planned and not struck:\n",
        masked=_BELIEVED,
        tests=("tests/chaos_real/test_report.py",),
    ),
    Mutant(
        "strike-that-hit-nobody-counts-as-a-fault",
        "chaos/real/runner.py",
        "            self.finished.bands.remove(band)\n",
        "",
        masked=_BELIEVED,
        tests=("tests/chaos_real/test_strikes.py",),
    ),
)
