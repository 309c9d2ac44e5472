"""Who hears whom after a recovery by force (ADR 52): nobody of before, and nobody of after."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.checksum import is_intact
from dledger.core.group_epoch import Lineage, Standing, is_lineage, standing_of
from dledger.core.types import ConfigurationPlace, DiskId, Index, NodeId, Term
from dledger.errors import PeerRefused, WrongEpoch
from dledger.greeting import Identity, KnownDisks, Speaker
from dledger.promises import Start
from dledger.wire.raft_pb2 import PeerMessage
from tests.links.test_peers import N1, N2, N3, Node

DISK, NEW = DiskId(b"o" * 16), DiskId(b"n" * 16)
A, B, C = b"a" * 16, b"b" * 16, b"c" * 16
PLACE = ConfigurationPlace(Term(3), Index(9))
LATER = ConfigurationPlace(Term(1 << 21), Index(12))

lineages = st.lists(st.sampled_from([A, B, C]), max_size=3, unique=True).map(tuple)


def hello(
    recoveries: Lineage = (),
    disk: DiskId = DISK,
    name: NodeId = N2,
    place: ConfigurationPlace = PLACE,
) -> PeerMessage:
    return Identity("g", name, 4096, disk, Start(1)).hello(N1, place, recoveries)


def knowing(
    recoveries: Lineage, *, is_known: bool = True
) -> tuple[Node, list[tuple[NodeId, Lineage]]]:
    """n1, in that epoch, by whose configuration n2 is on `DISK`; and what it was told of a recovery
    without it."""
    told: list[tuple[NodeId, Lineage]] = []
    node = Node()
    node.links.when_given_up(lambda peer, by: told.append((peer, by)))
    node.links.know(PLACE, {N2: DISK}, is_known=is_known, recoveries=recoveries)
    return node, told


@pytest.mark.parametrize(
    ("theirs", "own", "standing"),
    [
        ((), (), Standing.SAME),
        ((A,), (A,), Standing.SAME),
        ((), (A,), Standing.OLDER),
        ((A,), (A, B), Standing.OLDER),
        ((A,), (), Standing.NEWER),
        ((A, B), (A,), Standing.NEWER),
        ((B,), (A,), Standing.OTHER),
        ((A, C), (A, B), Standing.OTHER),
        ((B,), (A, B), Standing.OTHER),
    ],
)
def test_an_epoch_is_the_past_of_those_that_begin_with_it(
    theirs: Lineage, own: Lineage, standing: Standing
) -> None:
    assert standing_of(theirs, own) is standing


@given(lineages, lineages)
def test_two_see_each_other_alike(one: Lineage, other: Lineage) -> None:
    """Who is newer to one is older to the other: never do both think that the other was given up,
    nor both that they go on together."""
    mirrored = {Standing.OLDER: Standing.NEWER, Standing.NEWER: Standing.OLDER}
    seen = standing_of(one, other)
    assert standing_of(other, one) is mirrored.get(seen, seen)


@given(lineages, lineages, st.booleans())
def test_two_members_hear_each_other_in_one_epoch_only(
    own: Lineage, theirs: Lineage, named: bool
) -> None:
    """As the dialer of one stream or the acceptor: of two who know themselves, in different epochs,
    at least one refuses, and where a recovery gave one up it refuses, whoever the other is."""
    disk = DISK if named else NEW
    here = KnownDisks(PLACE, {N2: DISK}, recoveries=own)
    refusal = here.refusal_of_epoch(N2, Speaker(disk, Start(1), PLACE, theirs))
    if standing_of(theirs, own) in (Standing.NEWER, Standing.OTHER):
        assert refusal is not None
    if own == theirs:
        assert refusal is None


def test_who_comes_of_before_is_refused_and_told_why() -> None:
    """A given-up member that calls: it is answered with a Hello first, so that it learns of it."""
    node, told = knowing((A,))
    for name in (N2, N3):
        with pytest.raises(WrongEpoch, match=f"{name} was given up") as refused:
            node.links.on_call(hello((), NEW, name))
        answer = refused.value.answer
        assert answer is not None
        assert tuple(answer.hello.recoveries) == (A,)
        assert is_intact(answer)
    assert node.links.strangers[WrongEpoch] == 2
    assert not told


def test_a_later_configuration_of_before_lets_nobody_in() -> None:
    """The others may have gone on changing their members; a stranger who knows more is heard
    otherwise (ADR 41)."""
    node, _ = knowing((A,))
    with pytest.raises(WrongEpoch):
        node.links.on_call(hello((), NEW, N3, LATER))


def test_a_member_that_lags_is_heard() -> None:
    """Its log may not have come to the recovery yet, and its disk is named: it was taken in
    afterwards."""
    node, told = knowing((A,))
    calls = [node.links.on_call(hello(())), node.links.on_call(hello((A,)))]
    assert len({generation for generation, _ in calls}) == len(calls), "each is a stream of its own"
    assert [tuple(answer.hello.recoveries) for _, answer in calls] == [(A,), (A,)]
    assert told == []


def test_a_member_that_was_given_up_learns_it_from_one_that_it_knows() -> None:
    node, told = knowing(())
    node.links.start()
    ((_, generation),) = node.sockets.dialed
    with pytest.raises(WrongEpoch, match="was given up"):
        node.links.on_message(generation, hello((A, B)))
    assert told == [(N2, (A, B))]
    with pytest.raises(WrongEpoch):
        node.links.on_call(hello((A,)))
    assert told[1:] == [(N2, (A,))]


def test_a_stranger_puts_nobody_out_of_service() -> None:
    """Whoever has no disk that is known here isn't heard, and that is all."""
    node, told = knowing(())
    for speaker in (hello((A,), NEW), hello((A,), DISK, N3)):
        with pytest.raises(WrongEpoch):
            node.links.on_call(speaker)
    node.links.start()
    ((_, generation),) = node.sockets.dialed
    with pytest.raises(WrongEpoch):
        node.links.on_message(generation, hello((A,), NEW))
    assert not told


def test_two_recoveries_of_one_group_hear_nothing_of_each_other() -> None:
    node, told = knowing((A,))
    with pytest.raises(WrongEpoch, match="two groups"):
        node.links.on_call(hello((B,)))
    assert not told


def test_who_catches_up_hears_everybody() -> None:
    """A new disk reads of epochs as it reads of disks: of the past."""
    node, told = knowing((), is_known=False)
    node.links.on_call(hello((A,)))
    assert not told


def test_streams_end_in_the_turn_in_which_the_epoch_is_another() -> None:
    """Who was heard while this node caught up."""
    node, _ = knowing((), is_known=False)
    generation, _ = node.links.on_call(hello((), NEW, N3, LATER))
    node.links.know(LATER, {N2: DISK}, is_known=True, recoveries=(A,))
    assert generation not in node.links._calls


def test_an_epoch_changed_on_the_way_is_no_epoch() -> None:
    """It has a checksum of its own: older releases compute the other one without it."""
    node, told = knowing(())
    changed = hello((A,))
    changed.hello.recoveries[0] = B
    added = hello(())
    added.hello.recoveries.append(A)
    for each in (changed, added):
        with pytest.raises(PeerRefused, match="checksum"):
            node.links.on_call(each)
    assert not told


@pytest.mark.parametrize("broken", [(b"short",), (A, A), tuple(bytes([n]) * 16 for n in range(65))])
def test_no_group_has_such_an_epoch(broken: Lineage) -> None:
    assert not is_lineage(broken)
    node, _ = knowing(())
    with pytest.raises(PeerRefused, match="no group has such"):
        node.links.on_call(hello(broken))
