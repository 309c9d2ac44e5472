"""How long a link waits for what, in seconds, and how many of what it allows."""

from __future__ import annotations

from dataclasses import dataclass

SILENT_ELECTIONS = 4  # longest election timeouts without a word, after which a stream is renewed
MIN_SILENCE_S = 0.5  # a shorter pause is a busy machine
PINGS_IN_SILENCE = 4  # asked before a stream counts as silent
MAX_PATIENCE = 8  # times the silence, for streams that never said a word after their Hello
SLOWEST_BYTES_PER_S = 2 << 20  # a message may take its size at this rate, on top of the silence
MAX_ALLOWANCE_S = 3.0


@dataclass(frozen=True, slots=True)
class LinkTimes:
    """The bounds of a broker group's links.

    Attributes:
        silence_s: a stream on which nothing was heard for so long is renewed.
        attempt_every_s: from one attempt to connect to the next, while none has ended.
        attempt_s: what one attempt may take, greeting included.
        max_attempts: under way at the same time.
        back_off_min_s, back_off_max_s: after attempts that failed at once; doubled each time.
        refused_s: from a refusal to the next attempt.
        eviction_every_s: at most so often a stream that works gives way to a newer one.
        max_streams: of one peer that are in use at a time.
        max_waiting: of one peer that have said Hello and nothing else.
    """

    silence_s: float = 1.2
    attempt_every_s: float = 0.25
    attempt_s: float = 5.0
    max_attempts: int = 8
    back_off_min_s: float = 0.02
    back_off_max_s: float = 0.5
    refused_s: float = 2.0
    eviction_every_s: float = 0.25
    max_streams: int = 3
    max_waiting: int = 16

    @classmethod
    def of(cls, longest_election_timeout_s: float) -> LinkTimes:
        """The times of a broker group with such elections: by then it has long elected around a
        peer that is silent, so a link that is renewed disturbs nobody."""
        return cls(silence_s=max(MIN_SILENCE_S, SILENT_ELECTIONS * longest_election_timeout_s))

    @property
    def ping_s(self) -> float:
        """A stream on which nothing was heard for so long is asked for a sign of life."""
        return self.silence_s / PINGS_IN_SILENCE

    @property
    def abandoned_s(self) -> float:
        """An accepted stream that is silent for so long has been left by whoever dialed it: twice
        what the most patient dialer waits, since it is the dialer who renews."""
        return 2 * (MAX_PATIENCE * self.silence_s + MAX_ALLOWANCE_S)
