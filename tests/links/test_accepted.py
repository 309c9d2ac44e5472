"""The streams that a peer dials: who is in use, who gives way, and who can't be muted."""

from __future__ import annotations

from math import inf

from dledger.links import AcceptedLinks, Adopted, Broken, End, LinkTimes, Why

TIMES = LinkTimes()


def in_use(*generations: int, now: float = 0.0) -> AcceptedLinks:
    """Those streams are, since `now`."""
    links = AcceptedLinks(TIMES)
    for each in generations:
        links.on_hello(each, now)
        assert links.on_heard(each, now)
        assert links.take_effects() == [Adopted(each)]
    return links


def used(links: AcceptedLinks) -> tuple[int, ...]:
    return links.in_use


def waiting(links: AcceptedLinks) -> tuple[int, ...]:
    return links.waiting


def test_a_hello_alone_changes_nothing() -> None:
    """Neither what is in use, nor when it ends."""
    links = in_use(1)
    links.on_hello(2, 0.1)
    assert used(links) == (1,)
    assert waiting(links) == (2,)
    links.on_ended(2)
    assert links.take_effects() == []
    assert used(links) == (1,)


def test_a_stream_is_in_use_from_its_first_message_on() -> None:
    """And that message is delivered."""
    links = AcceptedLinks(TIMES)
    links.on_hello(1, 0.0)
    assert used(links) == ()
    assert links.on_heard(1, 0.1)
    assert used(links) == (1,)
    assert links.take_effects() == [Adopted(1)]


def test_who_says_nothing_after_its_hello_is_ended() -> None:
    """After the time of an attempt."""
    links = AcceptedLinks(TIMES)
    links.on_hello(1, 0.0)
    assert links.deadline == TIMES.attempt_s
    links.on_time(TIMES.attempt_s)
    assert links.take_effects() == [End(1, Why.TOO_LATE)]
    assert not links.on_heard(1, TIMES.attempt_s)
    assert links.deadline == inf


def test_hellos_are_bounded() -> None:
    """The oldest gives way; what is in use doesn't."""
    links = in_use(1)
    for each in range(2, 2 + TIMES.max_waiting + 5):
        links.on_hello(each, 0.1)
    assert len(links.waiting) == TIMES.max_waiting
    assert links.take_effects() == [End(each, Why.CROWDED) for each in range(2, 7)]
    assert used(links) == (1,)


def test_a_silent_stream_is_replaced_and_its_call_ended() -> None:
    """So that whoever dialed it, if it is there, dials again; nobody is told of a break."""
    links = in_use(1)
    links.on_hello(2, 1.3)
    assert links.on_heard(2, 1.4)
    assert links.take_effects() == [End(1, Why.REPLACED), Adopted(2)]
    assert used(links) == (2,)


def test_a_stream_that_works_cannot_be_muted() -> None:
    """The new one stands beside it: answers go out on both."""
    links = in_use(1)
    links.on_hello(2, 0.5)
    assert links.on_heard(1, 0.5)
    assert links.on_heard(2, 0.6)
    assert links.take_effects() == [Adopted(2)]
    assert used(links) == (1, 2)
    links.on_ended(2)
    assert links.take_effects() == []
    assert used(links) == (1,)


def test_the_newest_comes_in_even_when_all_work_but_not_in_a_loop() -> None:
    """The peer itself must be able to come back; a flood must not sweep it out in each turn."""
    links = in_use(1, 2, 3)
    links.on_hello(4, 0.1)
    assert links.on_heard(4, 0.1)
    assert links.take_effects() == [End(1, Why.REPLACED), Adopted(4)]
    for each in range(5, 50):
        links.on_hello(each, 0.2)
        assert not links.on_heard(each, 0.2)
        assert links.take_effects() == [End(each, Why.CROWDED)]
    assert used(links) == (2, 3, 4)
    links.on_hello(50, 0.4)
    assert links.on_heard(50, 0.4)
    assert used(links) == (3, 4, 50)


def test_a_break_is_told_once_and_for_the_last_stream() -> None:
    """As long as one is left, nothing under way to the peer is known to be lost."""
    links = in_use(1, 2)
    links.on_ended(1)
    assert links.take_effects() == []
    links.on_ended(2)
    assert links.take_effects() == [Broken()]
    links.on_ended(2)
    links.on_ended(1)
    assert links.take_effects() == []


def test_the_end_of_a_call_that_is_over_changes_nothing() -> None:
    """A replaced call's end comes late, and touches neither its successor nor the driver."""
    links = in_use(1)
    links.on_hello(2, 2.0)
    assert links.on_heard(2, 2.0)
    links.take_effects()
    links.on_ended(1)
    assert links.take_effects() == []
    assert not links.on_heard(1, 2.1)
    assert used(links) == (2,)


def test_an_abandoned_stream_is_ended_and_its_break_told() -> None:
    """It is the dialer who renews; so this waits longer than any dialer does."""
    links = in_use(1)
    assert links.deadline == TIMES.abandoned_s > 8 * TIMES.silence_s + 3
    links.on_time(TIMES.abandoned_s - 0.1)
    assert links.take_effects() == []
    links.on_time(links.deadline)
    assert links.take_effects() == [End(1, Why.SILENT), Broken()]
    assert links.deadline == inf


def test_what_one_slept_through_is_not_the_peers_silence() -> None:
    """A process that was paused abandons nobody."""
    links = in_use(1)
    links.on_hello(2, 0.0)
    links.forgive(100.0, 100.0)
    links.on_time(100.0)
    assert links.take_effects() == []
    assert used(links) == (1,)


def test_what_is_heard_on_waking_up_is_heard_then_and_not_later() -> None:
    """A stream that dies right after a pause is abandoned as soon as any other."""
    links = in_use(1)
    links.on_heard(1, 100.0)
    links.forgive(100.0, 100.0)
    assert links.deadline == 100.0 + TIMES.abandoned_s


def test_a_stop_ends_everything_without_a_word() -> None:
    """Those in use and those that wait."""
    links = in_use(1)
    links.on_hello(2, 0.1)
    links.stop()
    assert links.take_effects() == [End(2, Why.STOPPED), End(1, Why.STOPPED)]
    assert used(links) == waiting(links) == ()
