"""What became of the messages of one run: counts and latencies, in constant memory.

A message is acknowledged, failed (certainly not stored), or unknown: it may have been stored,
because its answer was unclear or never came. Counting an unknown one as either of the others
would hide or invent a loss, so a summary keeps them apart.

Latencies go into buckets that grow by one percent, from a microsecond to a quarter of an hour;
a percentile is the upper edge of its bucket. Idea: HdrHistogram.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

from dledger.client import ClientError, Outcome

GROWTH = math.log(1.01)
SMALLEST_S = 1e-6
BUCKETS = 2100  # 1 us * 1.01^2100 is about 1,190 s


class Latencies:
    """Durations of any number of events."""

    def __init__(self) -> None:
        self._buckets = [0] * (BUCKETS + 1)
        self._count = 0
        self._longest_s = 0.0

    def add(self, duration_s: float) -> None:
        """Counts one duration."""
        self._count += 1
        if duration_s > self._longest_s:
            self._longest_s = duration_s
        steps = math.log(duration_s / SMALLEST_S) / GROWTH if duration_s > SMALLEST_S else 0
        self._buckets[min(int(steps), BUCKETS)] += 1

    def percentile_ms(self, share: float) -> float | None:
        """The duration that `share` (0 to 1) of the events didn't exceed, to one percent."""
        wanted, seen = share * self._count, 0
        for at, count in enumerate(self._buckets):
            seen += count
            if count and seen >= wanted:
                edge = SMALLEST_S * math.exp((at + 1) * GROWTH)
                return round(min(edge, self._longest_s) * 1000, 3)
        return None

    @property
    def longest_ms(self) -> float | None:
        """The longest one, exactly; None when there are none."""
        return round(self._longest_s * 1000, 3) if self._count else None


@dataclass(slots=True)
class Tally:
    """The state of a run of `produce`. `sent`: handed to the client, accepted or not."""

    sent: int = 0
    acked: int = 0
    failed: int = 0
    acked_bytes: int = 0
    latencies: Latencies = field(default_factory=Latencies)
    started_s: float = field(default_factory=time.monotonic)
    first_error: tuple[int, Exception] | None = None  # line number, error

    @property
    def unknown(self) -> int:
        """Messages that may have been stored, or not: everything without a clear answer."""
        return self.sent - self.acked - self.failed

    @property
    def complete(self) -> bool:
        """Whether every message is acknowledged."""
        return self.first_error is None and self.acked == self.sent

    def on_acked(self, size_bytes: int, duration_s: float) -> None:
        """One more message is on a majority of disks."""
        self.acked += 1
        self.acked_bytes += size_bytes
        self.latencies.add(duration_s)

    def on_error(self, line: int, error: Exception) -> None:
        """One more message failed, or will stay unknown."""
        if isinstance(error, ClientError) and error.outcome is Outcome.DID_NOT_HAPPEN:
            self.failed += 1
        self.on_stopped(line, error)

    def on_stopped(self, line: int, error: Exception) -> None:
        """Line `line` can't be stored, whether it was sent or not."""
        if self.first_error is None or line < self.first_error[0]:
            self.first_error = (line, error)

    def facts(self) -> dict[str, object]:
        """The summary's JSON, as the design names its keys."""
        duration_s = time.monotonic() - self.started_s
        return {
            "sent": self.sent,
            "acked": self.acked,
            "failed": self.failed,
            "unknown": self.unknown,
            "duration_s": round(duration_s, 3),
            "msgs_per_s": round(self.acked / duration_s, 1),
            "mb_per_s": round(self.acked_bytes / 1e6 / duration_s, 3),
            "latency_ms": {
                "p50": self.latencies.percentile_ms(0.50),
                "p99": self.latencies.percentile_ms(0.99),
                "max": self.latencies.longest_ms,
            },
        }
