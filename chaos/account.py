"""What was sent, what became of it, and what came back: the books of a run.

Two books that don't know each other: `Sent` is kept by the sender from what the client told it,
`Received` by the consumer from nothing but the messages it got (their properties, their bodies,
their order). Only `settle` compares them. A line whose fate the client doesn't know is neither
acknowledged nor failed, and may or may not come back. Source: the anomaly vocabulary of Jepsen's
Kafka workload.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from chaos.corpus import Corpus

FILE_PROPERTY = "FILE"
LINE_PROPERTY = "LINE"

LineId = tuple[str, int]  # file, number


class Fate(IntEnum):
    """What the client said of a line."""

    UNDER_WAY = 0
    ACKNOWLEDGED = 1
    FAILED = 2  # certainly not stored
    UNKNOWN = 3  # may have been stored


class Sent:
    """The sender's book."""

    def __init__(self) -> None:
        self._fates: dict[LineId, Fate] = {}
        self._counts = Counter[Fate]()

    def on_sent(self, line: LineId) -> None:
        """The line was handed to the client."""
        self._fates[line] = Fate.UNDER_WAY
        self._counts[Fate.UNDER_WAY] += 1

    def on_settled(self, line: LineId, fate: Fate) -> None:
        """The client said what became of it."""
        self._fates[line] = fate
        self._counts[Fate.UNDER_WAY] -= 1
        self._counts[fate] += 1

    def count(self, fate: Fate) -> int:
        """How many lines met this fate."""
        return self._counts[fate]

    @property
    def fates(self) -> Mapping[LineId, Fate]:
        """The fate of each line that was sent."""
        return self._fates


class Received:
    """The consumer's book: files put together from messages, in the order in which they came."""

    def __init__(self) -> None:
        self._hashes: dict[str, hashlib._Hash] = {}
        self._highest: dict[str, int] = {}
        self._times = Counter[LineId]()
        self.out_of_order = 0

    def on_message(self, properties: Mapping[str, str], body: bytes) -> None:
        """Appends a message to the file it says it belongs to.

        Raises:
            KeyError, ValueError: it doesn't say so, hence it isn't of this run.
        """
        file, number = properties[FILE_PROPERTY], int(properties[LINE_PROPERTY])
        self._times[file, number] += 1
        if number < self._highest.get(file, -1):
            self.out_of_order += 1
        self._highest[file] = max(number, self._highest.get(file, -1))
        self._hashes.setdefault(file, hashlib.sha256()).update(body)

    @property
    def times(self) -> Mapping[LineId, int]:
        """How often each line came."""
        return self._times

    def sha256(self, file: str) -> str:
        """Of everything that came for `file`, in the order in which it came."""
        return self._hashes.get(file, hashlib.sha256()).hexdigest()


@dataclass(frozen=True, slots=True)
class Settlement:
    """The comparison of the books with each other and with the originals."""

    sent: int
    acknowledged: int
    failed: int
    unknown: int
    lost: int  # acknowledged, and never came
    duplicated: int  # came once more, for each time
    out_of_order: int  # came after a later line of its file
    phantom: int  # came, but was never sent or had certainly failed
    files: int
    files_identical: int

    @property
    def flawless(self) -> bool:
        """Whether every file came back as it was, and every promise was kept."""
        flaws = self.lost + self.duplicated + self.out_of_order + self.phantom
        return flaws == 0 and self.files_identical == self.files


def settle(corpus: Corpus, sent: Sent, received: Received) -> Settlement:
    """Compares the books."""
    fates, times = sent.fates, received.times
    impossible = (None, Fate.FAILED)
    return Settlement(
        sent=len(fates),
        acknowledged=sent.count(Fate.ACKNOWLEDGED),
        failed=sent.count(Fate.FAILED),
        unknown=sent.count(Fate.UNKNOWN) + sent.count(Fate.UNDER_WAY),
        lost=sum(fate is Fate.ACKNOWLEDGED and line not in times for line, fate in fates.items()),
        duplicated=sum(count - 1 for count in times.values()),
        out_of_order=received.out_of_order,
        phantom=sum(fates.get(line) in impossible for line in times),
        files=len(corpus.files),
        files_identical=sum(received.sha256(file.name) == file.sha256 for file in corpus.files),
    )
