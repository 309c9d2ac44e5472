"""Who runs an audit's tasks, where and when, `audit/engines` and `audit/commands`, rules broken."""

from __future__ import annotations

from chaos.mutants.mutant import Mutant

_READS_ONLY = "nothing audits while a group is simulated"
_PLAN = ("tests/audit/test_plan.py",)
_WATCH = ("tests/audit/test_watch.py",)
_PLACED = ("tests/audit/test_placed.py",)

AUDITING = (
    Mutant(
        "task-reads-wherever-it-is",
        "audit/engines/placed.py",
        "    if not _is_wanted(placed, here):\n",
        "    if False:\n",
        masked=_READS_ONLY,
        tests=_PLACED,
    ),
    Mutant(
        "host-is-several-machines",
        "audit/engines/placed.py",
        "self._machines.setdefault(host, ran.machine) == ran.machine:",
        "self._machines.setdefault(host, ran.machine):",
        masked=_READS_ONLY,
        tests=_PLACED,
    ),
    Mutant(
        "host-is-where-its-first-task-came",
        "audit/engines/placed.py",
        "    return placed.any_name or is_this_machine(placed.host)\n",
        "    return True\n",
        masked=_READS_ONLY,
        tests=_PLACED,
    ),
    Mutant(
        "containers-of-a-kernel-are-one-machine",
        "audit/engines/placed.py",
        "    if placed.machine and placed.machine != here:\n        return False\n",
        "    if placed.machine:\n        return placed.machine == here\n",
        masked=_READS_ONLY,
        tests=_PLACED,
    ),
    Mutant(
        "address-that-can-be-bound-is-its-own",
        "audit/engines/placed.py",
        "    return not _any_can_be_bound(family) or _is_spoken_from(family, address)\n",
        "    return True\n",
        masked=_READS_ONLY,
        tests=_PLACED,
    ),
    Mutant(
        "export-is-read-wherever-tasks-are",
        "audit/contents/export.py",
        "    engine = placed_here(engine, replica.id, replica.host)\n",
        "",
        masked=_READS_ONLY,
        tests=_PLACED,
    ),
    Mutant(
        "stats-are-read-wherever-tasks-are",
        "audit/contents/stats.py",
        "    engine = placed_here(engine, replica.id, replica.host)\n",
        "",
        masked=_READS_ONLY,
        tests=_PLACED,
    ),
    Mutant(
        "command-reads-the-replica-of-another-machine",
        "audit/engines/placed.py",
        "    if host is not None and engine.is_spread and not is_this_machine(host):\n",
        "    if False:\n",
        masked=_READS_ONLY,
        tests=_PLACED,
    ),
    Mutant(
        "delivery-is-read-wherever-tasks-are",
        "audit/delivery/check.py",
        "    if engine.is_spread:\n        _check",
        "    if False:\n        _check",
        masked=_READS_ONLY,
        tests=_PLACED,
    ),
    Mutant(
        "address-of-an-executor-that-has-a-name-is-unknown",
        "audit/engines/spark.py",
        "if each != host and addresses & _addresses(each))]",
        "if each == host)]",
        masked=_READS_ONLY,
        tests=_PLACED,
    ),
    Mutant(
        "pool-with-a-killed-process-is-used-again",
        "audit/engines/engine.py",
        "            self.close()  # It takes no task any more; the next run makes another.\n",
        "",
        masked=_READS_ONLY,
        tests=_PLAN,
    ),
    Mutant(
        "what-nobody-foresaw-ends-the-watch",
        "audit/commands/watching.py",
        "        except Exception as error:\n            if is_first",
        "        except (AuditError, OSError) as error:\n            if is_first",
        masked=_READS_ONLY,
        tests=_WATCH,
    ),
    Mutant(
        "watch-waits-by-a-clock-that-is-set",
        "audit/commands/watching.py",
        "        self._steady = steady\n",
        "        self._steady = clock\n",
        masked=_READS_ONLY,
        tests=_WATCH,
    ),
    Mutant(
        "report-of-tomorrow-displaces-todays",
        "audit/commands/watching.py",
        "key=lambda stem: (stem <= newest, stem))",
        "key=lambda stem: stem)",
        masked=_READS_ONLY,
        tests=_WATCH,
    ),
    Mutant(
        "round-that-cannot-be-read-was-good",
        "audit/commands/history.py",
        "        if lost or not asked:\n",
        "        if not asked:\n",
        masked=_READS_ONLY,
        tests=_WATCH,
    ),
    Mutant(
        "what-nobody-foresaw-is-inconsistent",
        "audit/commands/outcome.py",
        "        outcome.end(ExitCode.INCOMPLETE)\n",
        "        outcome.end(ExitCode.INCONSISTENT)\n",
        masked=_READS_ONLY,
        tests=_WATCH,
    ),
    Mutant(
        "job-without-executors-is-waited-for",
        "audit/engines/standstill.py",
        "        return self._clock() - self._moved > self.bound_s\n",
        "        return False\n",
        masked=_READS_ONLY,
        tests=("tests/audit/test_session.py",),
    ),
    Mutant(
        "slow-task-stands-still",
        "audit/engines/standstill.py",
        "or any(stage.numActiveTasks for stage in known):\n",
        "or False:\n",
        masked=_READS_ONLY,
        tests=("tests/audit/test_session.py",),
    ),
)
