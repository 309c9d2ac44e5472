"""What many runs gave together: it keeps sums and the last report, never the runs themselves, so
that a night of seeds needs no more memory than one."""

from __future__ import annotations

from collections import Counter

from chaos.sim.run import Report


class Tally:
    """The sums of some runs, in the order in which they ran.

    Args:
        first: the report of the first.
    """

    def __init__(self, first: Report) -> None:
        self._first_seed = first.plan.seed
        self._simulated_s = self._cpu_s = 0.0
        self._sums: Counter[str] = Counter()
        self.last = first
        self.add(first)

    def add(self, report: Report) -> None:
        """One more run is over."""
        self.last = report
        self._simulated_s += report.simulated_s
        self._cpu_s += report.cpu_s
        self._sums.update(
            seeds=1,
            events=report.events,
            checks=report.checks,
            operations=report.operations,
            acknowledged=report.acknowledged,
            entries_committed=report.committed,
            leaders=report.leaders,
            boots=report.boots,
            faults=len(report.plan.faults),
            disks_rotten=report.ruined,
            bytes_repaired=report.repaired_bytes,
            starts_refilled=report.refills,
        )

    def facts(self) -> dict[str, object]:
        """By name, as `dledger chaos sim --json` prints them."""
        sums = dict(self._sums)
        return {
            "first_seed": self._first_seed,
            "seeds": sums.pop("seeds"),
            "simulated_s": round(self._simulated_s, 3),
            "cpu_s": round(self._cpu_s, 3),
            "times_real_time": round(self._simulated_s / self._cpu_s, 1) if self._cpu_s else 0.0,
            **sums,
            "trace": self.last.trace,
        }
