"""What the simulator's watch looks at, each with a log and a platter made by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from chaos.sim.defect import Defect
from chaos.sim.plan import Tuning
from chaos.sim.watch import Watch


class Written:
    """A log of digests, and which of its entries are on the platter."""

    def __init__(self, *digests: int) -> None:
        self.digests = list(digests)
        self.durable: set[int] = set(digests)
        self.first_index = 1
        self.looked_at: list[int] = []
        self.rotten: set[int] = set()  # indexes

    @property
    def last_index(self) -> int:
        return len(self.digests)

    def digest_at(self, index: int) -> int:
        return self.digests[index - 1]

    def sound_header(self, index: int) -> SimpleNamespace | None:
        self.looked_at.append(index)
        if index in self.rotten:
            return None
        return SimpleNamespace(index=index, digest=self.digest_at(index))

    def overwrite(self, index: int, *digests: int) -> None:
        """The log was cut before `index`, and has others from there on, none of them durable."""
        self.digests[index - 1 :] = digests


@pytest.fixture
def log() -> Written:
    return Written(11, 12, 13, 14)


@pytest.fixture
def watch(log: Written, monkeypatch: pytest.MonkeyPatch) -> Watch:
    made = Watch([], Tuning())

    def durable_digest(_: object, header: Any) -> int | None:
        return int(header.digest) if header.digest in log.durable else None

    monkeypatch.setattr(made, "durable_digest", durable_digest)
    return made


def member(log: Written) -> Any:
    life = SimpleNamespace(replica=SimpleNamespace(log=log))
    disk = SimpleNamespace(is_observed=False)
    sound_header = log.sound_header
    return SimpleNamespace(
        name="n1", altered_from=0, life=life, disk=disk, sound_header=sound_header
    )


def test_entry_is_looked_at_once(watch: Watch, log: Written) -> None:
    """Acknowledgements overlap, and runs have thousands; the last one is looked at again."""
    for match_index in (2, 4, 4):
        watch._on_acknowledgement(member(log), match_index)
    assert log.looked_at == [1, 2, 3, 4, 4]


def test_entry_that_took_the_place_of_an_acknowledged_one_is_looked_at(
    watch: Watch, log: Written
) -> None:
    """A log that was cut has to have the new entries on the platter before it says so, those below
    what it had acknowledged before among them."""
    watch._on_acknowledgement(member(log), 4)
    log.overwrite(3, 23, 24, 25)
    log.durable |= {24, 25}
    with pytest.raises(Defect, match="its disk doesn't hold 3"):
        watch._on_acknowledgement(member(log), 5)
    log.durable.add(23)
    watch._on_acknowledgement(member(log), 5)
    assert log.looked_at[-3:] == [3, 4, 5]


def test_rot_excuses_what_has_rotted_and_nothing_else(watch: Watch, log: Written) -> None:
    """One wrong byte is no reason to look at nothing else of a node."""
    log.rotten.add(2)
    log.durable.discard(12)
    watch._on_acknowledgement(member(log), 3)
    log.durable.discard(14)
    with pytest.raises(Defect, match="its disk doesn't hold 4"):
        watch._on_acknowledgement(member(log), 4)


def test_log_that_was_cut_below_what_it_acknowledged_is_looked_at_anew(
    watch: Watch, log: Written
) -> None:
    """However short it is now; what lies before its front is nobody's business."""
    watch._on_acknowledgement(member(log), 4)
    log.overwrite(2)
    log.overwrite(2, 22, 23)
    with pytest.raises(Defect, match="its disk doesn't hold 2"):
        watch._on_acknowledgement(member(log), 2)
    log.first_index = 3
    log.durable.add(23)
    watch._on_acknowledgement(member(log), 3)
