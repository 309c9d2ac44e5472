"""Each anomaly of the vocabulary is named, once, and a clean history has none."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from chaos.checkers.anomalies import find_anomalies, find_resumes
from chaos.checkers.history import Commit, Delete, Poll, Send
from dledger.history import Outcome
from tests.chaos.histories import Story


def names(story: Story) -> list[str]:
    found = [*find_anomalies(story.history), *find_resumes(story.history)]
    return [anomaly.name for anomaly in found]


def lost_write(story: Story) -> None:
    story.send("a", at=0)
    story.send("b", at=1)
    story.send("c", at=2)
    story.poll((0, "a"), seek=True)
    story.poll((2, "c"), seek=True)


def unseen(story: Story) -> None:
    story.send("a", at=0)
    story.send("b", at=1)
    story.read_all((0, "a"))


def duplicate(story: Story) -> None:
    story.send("a", at=0)
    story.read_all((0, "a"), (1, "a"))


def inconsistent_offsets(story: Story) -> None:
    story.send("a", at=0)
    story.send("b")
    story.poll((0, "a"), seek=True)
    story.poll((0, "b"), by="other", seek=True)


def nonmonotonic_poll(story: Story) -> None:
    story.send("a", "b", at=0)
    story.poll((0, "a"), (1, "b"), seek=True)
    story.poll((0, "a"), (1, "b"))


def internal_nonmonotonic_poll(story: Story) -> None:
    story.send("a", "b", at=0)
    story.poll((1, "b"), (0, "a"), seek=True)


def poll_skip(story: Story) -> None:
    story.send("a", "b", "c", at=0)
    story.poll((0, "a"), seek=True)
    story.poll((2, "c"))
    story.read_all((0, "a"), (1, "b"), (2, "c"))


def internal_poll_skip(story: Story) -> None:
    story.send("a", "b", "c", at=0)
    story.poll((0, "a"), (2, "c"), seek=True)
    story.read_all((0, "a"), (1, "b"), (2, "c"))


def commit(story: Story, offset: int, outcome: Outcome = Outcome.OK) -> None:
    story.do("c", Commit("t", "group-c", 0, offset), outcome=outcome)


def resumed_before_its_commit(story: Story) -> None:
    story.send("a", "b", "c", at=0)
    story.poll((0, "a"), (1, "b"), seek=True)
    commit(story, 2)
    story.poll((1, "b"), (2, "c"), seek=True)


def resumed_behind_its_commit(story: Story) -> None:
    story.send("a", "b", "c", at=0)
    story.poll((0, "a"), seek=True)
    commit(story, 1)
    story.poll((2, "c"), seek=True)
    story.read_all((0, "a"), (1, "b"), (2, "c"))


def nonmonotonic_send(story: Story) -> None:
    story.send("a", at=1, sequence=0)
    story.send("b", at=0, sequence=1)
    story.read_all((0, "b"), (1, "a"))


def phantom_never_sent(story: Story) -> None:
    story.send("a", at=0)
    story.read_all((0, "a"), (1, "ghost"))


def phantom_rejected(story: Story) -> None:
    story.do("p", Send("t", 0, 0, ("a",)), outcome=Outcome.FAIL)
    story.read_all((0, "a"))


def stale_read(story: Story) -> None:
    story.send("a", at=0)
    story.read_end(0)


def stale_read_after_a_read(story: Story) -> None:
    story.send("a")
    story.read_end(1)
    story.read_end(0)


def stale_read_after_a_poll(story: Story) -> None:
    story.send("a")
    story.send("b")
    story.poll((0, "a"), (1, "b"))
    story.read_end(1)


@pytest.mark.parametrize(
    ("tell", "name"),
    [
        (lost_write, "lost-write"),
        (unseen, "unseen"),
        (duplicate, "duplicate"),
        (inconsistent_offsets, "inconsistent-offsets"),
        (nonmonotonic_poll, "nonmonotonic-poll"),
        (internal_nonmonotonic_poll, "int-nonmonotonic-poll"),
        (poll_skip, "poll-skip"),
        (internal_poll_skip, "int-poll-skip"),
        (resumed_before_its_commit, "nonmonotonic-poll"),
        (resumed_behind_its_commit, "poll-skip"),
        (nonmonotonic_send, "nonmonotonic-send"),
        (phantom_never_sent, "phantom"),
        (phantom_rejected, "phantom"),
        (stale_read, "stale-read"),
        (stale_read_after_a_read, "stale-read"),
        (stale_read_after_a_poll, "stale-read"),
    ],
)
def test_each_anomaly_is_named_once(tell: Callable[[Story], None], name: str) -> None:
    """A history that shows one anomaly gives that name and no other."""
    story = Story()
    tell(story)
    assert names(story) == [name]


def test_a_consumer_goes_on_where_it_has_committed_or_may_have() -> None:
    """A commit that nobody heard of counts whenever it arrives; who has committed nothing may be
    anywhere, and others' commits are others'."""
    story = Story()
    story.send(*"abcdef", at=0)
    story.do("d", Commit("t", "group-d", 0, 5))
    story.poll((0, "a"), (1, "b"), seek=True)
    commit(story, 3, Outcome.UNKNOWN)
    commit(story, 2)
    for first in (2, 3, 2):
        story.poll((first, "abcdef"[first]), seek=True)
    assert names(story) == []
    story.poll((4, "e"), seek=True)
    assert names(story) == ["poll-skip"]


def test_a_clean_history_has_no_anomaly() -> None:
    """Unknown sends may be there or not; a seek may go anywhere; a read may see what is new."""
    story = Story()
    story.send("a", at=0, sequence=0)
    story.send("b", sequence=1)
    story.send("never", sequence=2, by="q")
    story.poll((0, "a"), seek=True)
    story.poll((1, "b"))
    story.poll((0, "a"), seek=True)
    story.read_end(2)
    story.read_all((0, "a"), (1, "b"))
    assert names(story) == []


@pytest.mark.parametrize("outcome", Outcome)
def test_a_seek_that_brought_nothing_is_one_still(outcome: Outcome) -> None:
    """The next poll goes on from there; nobody goes back without having sought."""
    story = Story()
    story.send("a", "b", at=0)
    story.poll((0, "a"), (1, "b"), seek=True)
    story.do("c", Poll("t", 0, 0, seek=True), () if outcome is Outcome.OK else None, outcome)
    story.poll((0, "a"))
    assert names(story) == []
    story.poll((0, "a"))
    assert names(story) == ["nonmonotonic-poll"]


def test_an_end_read_before_the_acknowledgement_may_miss_it() -> None:
    """Only what was acknowledged before the read began has to be in it."""
    story = Story()
    send = story.begin("p", Send("t", 0, 0, ("a",)))
    story.read_end(0)
    story.end(send, 0)
    story.read_all((0, "a"))
    assert names(story) == []


def test_what_a_deleted_topic_held_is_not_lost() -> None:
    """A deletion that may have happened takes the topic's messages with it."""
    story = Story()
    story.send("a", at=0)
    story.begin("admin", Delete("t"))
    story.read_all()
    assert names(story) == []


def test_a_refused_deletion_excuses_nothing() -> None:
    """A deletion that definitely did not happen leaves the messages owed."""
    story = Story()
    story.send("a", at=0)
    story.do("admin", Delete("t"), outcome=Outcome.FAIL)
    story.read_all()
    assert names(story) == ["unseen"]
