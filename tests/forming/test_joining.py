"""Who waits for members to be as wished, when whoever led at the beginning is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from broker.doors.grpc.cluster import plain_held
from broker.forming import joining
from broker.forming.calls import GrpcCalls
from broker.forming.errors import (
    FormationRefused,
    MemberUnreachable,
    NotNewcomers,
    RefusedForNow,
    Superseded,
)
from broker.forming.joining import Newcomer, Wish, change, newcomers
from broker.forming.planning import FORMED, UNFORMED, Description
from broker.leader.epochs import EpochName
from broker.leader.newcomers import HeldLog
from dledger.core.types import Index
from dledger.outcome import ExitCode
from dledger.wire import cluster_pb2 as cpb

ADDRESSES = {"n1": "a:1", "n2": "a:2", "n3": "a:3"}


def members(index: int, *, n3: str, committed: bool = True, is_leaders: bool = True) -> cpb.Members:
    roles = {"n1": "voter", "n2": "voter", "n3": n3}
    return cpb.Members(
        members=[
            cpb.MemberStatus(
                node_id=name, role=role, address=ADDRESSES[name], match_index=int(is_leaders)
            )
            for name, role in roles.items()
        ],
        configuration_index=index,
        committed=committed,
    )


class Calls:
    """Nodes that answer what each of them knows; None: it doesn't answer."""

    def __init__(
        self,
        known: Callable[[str, int], cpb.Members | None],
        taken: cpb.Members | None = None,
    ) -> None:
        self.asked: list[str] = []
        self.changed = 0
        self.taken = taken or members(7, n3="learner", committed=False)
        self._known = known

    async def describe(self, address: str) -> Description:
        return Description("g", "n1", 1 << 20, b"d" * 16, 0, FORMED, None, 7, 1, ())

    async def join(self, address: str, disk_id: bytes) -> None:
        raise AssertionError("nobody joins")

    async def change_members(self, address: str, request: cpb.ChangeMembersRequest) -> cpb.Members:
        self.changed += 1
        return self.taken

    async def held_log(self, address: str) -> cpb.HeldLog | None:
        raise AssertionError("nobody comes")

    async def level(self, address: str) -> int:
        return 9

    async def list_members(self, address: str) -> cpb.Members:
        self.asked.append(address)
        told = self._known(address, len(self.asked))
        if told is None:
            raise MemberUnreachable(address, "gone")
        return told


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "POLL_S", 0.001)


def carried_out(calls: Calls, wait_s: float = 10.0) -> tuple[cpb.Members, bool]:
    return asyncio.run(change(calls, "a:1", Wish(promote=("n3",)), wait_s))


def test_others_are_asked_when_the_leader_is_gone() -> None:
    def known(address: str, count: int) -> cpb.Members | None:
        if address != "a:3":
            return None
        return members(8, n3="voter") if count > 5 else members(7, n3="learner")

    calls = Calls(known)
    told, is_done = carried_out(calls)
    assert (is_done, told.configuration_index) == (True, 8)
    assert calls.asked[:3] == ["a:1", "a:2", "a:3"]


def test_who_knows_an_older_configuration_isnt_believed() -> None:
    """There n3 voted once, before it was demoted."""

    def known(address: str, count: int) -> cpb.Members | None:
        if address == "a:1":
            return None
        return members(9, n3="voter") if count > 4 else members(5, n3="voter")

    told, is_done = carried_out(Calls(known))
    assert (is_done, told.configuration_index) == (True, 9)


def test_members_are_told_as_the_next_leader_sees_them() -> None:
    """Who led was taken out, and answers still; who follows knows of itself alone."""

    def known(address: str, count: int) -> cpb.Members:
        told = members(8, n3="voter", is_leaders=address == "a:2" and count > 4)
        if address == "a:3":
            told.members[2].match_index = 1
        return told

    told, is_done = carried_out(Calls(known))
    assert (is_done, [each.match_index for each in told.members]) == (True, [1, 1, 1])


@pytest.mark.parametrize("n3", ["observer", None])
def test_what_another_administrator_has_undone_is_told_at_once(n3: str | None) -> None:
    """n3 was to vote; it was put down, or let go, before it had caught up."""

    def known(_address: str, _count: int) -> cpb.Members:
        told = members(9, n3=n3 or "", is_leaders=True)
        if n3 is None:
            del told.members[2]
        return told

    with pytest.raises(Superseded, match=f"in entry 9: n3 is {n3 or 'no member'}"):
        carried_out(Calls(known))


def test_what_was_undone_as_the_leader_answered_is_told_too() -> None:
    """n3 voted, so that nothing was to be done; it was put down before the leader had answered.
    Nobody is about to make it a voter again."""
    put_down = members(9, n3="observer")
    with pytest.raises(Superseded, match="in entry 9: n3 is observer"):
        carried_out(Calls(lambda *_: put_down, taken=put_down), 2.0)


@pytest.mark.parametrize(("now", "told"), [("n2", "n2 is preferred"), ("", "nobody is preferred")])
def test_who_is_preferred_may_be_another_ones_wish_by_now(now: str, told: str) -> None:
    def known(_address: str, count: int) -> cpb.Members:
        heard = members(9 if count > 1 else 8, n3="voter", committed=count > 1)
        heard.preferred = now if count > 1 else "n3"
        return heard

    taken = members(8, n3="voter", committed=False)
    taken.preferred = "n3"
    calls = Calls(known, taken=taken)
    with pytest.raises(Superseded, match=told):
        asyncio.run(change(calls, "a:1", Wish(prefer="n3"), 2.0))


def test_who_has_gone_and_is_back_was_brought_by_another() -> None:
    def known(_address: str, count: int) -> cpb.Members:
        return members(9 if count > 1 else 6, n3="learner")

    calls = Calls(known, taken=members(7, n3="leaving", committed=True))
    calls.taken.joint = True
    with pytest.raises(Superseded, match="n3 is learner"):
        asyncio.run(change(calls, "a:1", Wish(remove=("n3",)), 10.0))


def test_what_is_on_its_way_is_waited_for() -> None:
    """A change of somebody else's in between, that leaves this one alone."""

    def known(_address: str, count: int) -> cpb.Members:
        return members(8 + count // 3, n3="voter" if count > 9 else "learner")

    told, is_done = carried_out(Calls(known))
    assert (is_done, told.configuration_index) == (True, 11)


def without_n3(*, committed: bool = True) -> cpb.Members:
    told = members(8, n3="", committed=committed)
    del told.members[2]
    return told


def let_go(calls: Calls, wish: Wish) -> tuple[bool, list[str]]:
    """Whether it is done, and what was told."""
    told: list[str] = []
    _, is_done = asyncio.run(change(calls, "a:1", wish, 10.0, told.append))
    return is_done, told


def test_who_has_gone_by_an_earlier_attempt_is_not_asked_for_again() -> None:
    """The leader refuses a name that is nobody's: it is told, and is done, as the rest is so."""
    for wish in (Wish(remove=("n3",)), Wish(remove=("n3",), promote=("n2",))):
        calls = Calls(lambda *_: without_n3())
        assert let_go(calls, wish) == (True, ["n3 is no member: n1, n2 are"])
        assert calls.changed == 0


def test_voters_whose_place_nobody_knows_hold_nothing_up() -> None:
    """After a recovery the log may not say where they are."""
    told = without_n3()
    for each in told.members:
        each.address, each.connected, each.match_index = "", True, told.configuration_index
    assert let_go(Calls(lambda *_: told), Wish(remove=("n3",)))[0]
    for field, value in (("connected", False), ("match_index", told.configuration_index - 1)):
        unsure = cpb.Members()
        unsure.CopyFrom(told)
        setattr(unsure.members[0], field, value)
        unsure.members[1].address = "a:2"
        calls = Calls(lambda *_, unsure=unsure: unsure)
        with pytest.raises(RefusedForNow):
            let_go(calls, Wish(remove=("n3",)))


@pytest.mark.parametrize("others", [members(9, n3="voter"), None], ids=["newer", "silent"])
def test_who_leads_no_more_does_not_say_who_has_gone(others: cpb.Members | None) -> None:
    """Cut off from the others, which may have taken that one in: its disk would be emptied."""
    calls = Calls(lambda address, _: without_n3() if address == "a:1" else others)
    with pytest.raises(RefusedForNow):
        let_go(calls, Wish(remove=("n3",)))
    assert calls.changed == 0


@pytest.mark.parametrize(
    ("listed", "wish"),
    [
        (members(8, n3="voter"), Wish(remove=("n3",))),
        (members(8, n3="voter"), Wish(remove=("n3", "n9"))),
        (without_n3(), Wish(remove=("n3",), demote=("n2",))),
        (without_n3(), Wish(remove=("n3",), promote=("n9",))),
    ],
)
def test_what_is_not_so_yet_is_asked_of_the_leader(listed: cpb.Members, wish: Wish) -> None:
    """It takes all of it, or refuses it by the name that is nobody's."""
    calls = Calls(lambda *_: listed, taken=members(9, n3="voter"))
    asyncio.run(change(calls, "a:1", wish, 0.0))
    assert calls.changed == 1


def test_who_has_gone_by_an_entry_that_may_be_lost_is_waited_for() -> None:
    calls = Calls(lambda *_: without_n3(committed=False))
    with pytest.raises(RefusedForNow, match="entry 8, which isn't committed"):
        let_go(calls, Wish(remove=("n3",)))
    assert calls.changed == 0


def test_a_program_that_is_too_old_does_not_come() -> None:
    """Before anything is asked of the leader."""

    class Stranger(Calls):
        async def describe(self, address: str) -> Description:
            found = await super().describe(address)
            return (
                found
                if address == "a:1"
                else replace(
                    found, node_id="n4", state=UNFORMED, peers=(("n4", "a:4"),), known_level=8
                )
            )

    calls = Stranger(lambda *_: None)
    with pytest.raises(FormationRefused, match="n4 knows level 8, and the group uses level 9"):
        asyncio.run(change(calls, "a:1", Wish(add=(Newcomer("n4", "a:4"),)), 10.0))
    assert calls.changed == 0


@pytest.mark.parametrize("epoch", [EpochName(), EpochName(2, b"r" * 16)])
def test_a_log_is_told_with_the_epoch_that_it_has(
    epoch: EpochName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one, too: who says none is of an older release."""

    async def status(*_: object) -> cpb.NodeStatus:
        found = cpb.NodeStatus(last_index=9, commit_index=5, committed_digest=7)
        if epoch.number:
            found.epoch.number, found.epoch.recovery_id = epoch.number, epoch.recovery_id
        return found

    monkeypatch.setattr(GrpcCalls, "_call", status)
    said = cpb.NewMember(held=asyncio.run(GrpcCalls().held_log("a:1")))
    assert plain_held(said) == HeldLog(Index(5), 7, epoch)
    said.held.ClearField("epoch")
    assert plain_held(said) == HeldLog(Index(5), 7)
    assert plain_held(cpb.NewMember()) is None


MISTYPED = {
    "half a pair": ("n4",),
    "no port": ("n4", "10.0.0.4"),
    "no name": ("n 4", "10.0.0.4:7001"),
    "twice": ("n4", "10.0.0.4:7001", "n4", "10.0.0.5:7001"),
    "the wrong way round": ("10.0.0.4:7001", "n4"),
}


@pytest.mark.parametrize("what", MISTYPED)
def test_what_is_mistyped_is_a_mistake_of_use(what: str) -> None:
    with pytest.raises(NotNewcomers) as mistake:
        newcomers(MISTYPED[what], observe=False)
    assert mistake.value.exit_code is ExitCode.USAGE


def test_what_is_known_is_told_when_nobody_answers_any_more() -> None:
    told, is_done = carried_out(Calls(lambda *_: None), wait_s=0.05)
    assert (is_done, told.configuration_index) == (False, 7)
