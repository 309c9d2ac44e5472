"""The doctor's judgement: nothing of a group that is well, each fault by its name, none hidden."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations, permutations, product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.doctor.facts import (
    DivergenceFacts,
    FillFacts,
    GroupFacts,
    HealthFacts,
    MemberFacts,
    NamedMember,
    PeerFacts,
    Silence,
    apart,
    member_facts,
)
from broker.doctor.finding import Finding, Gravity, Kind, exit_code_of
from broker.doctor.judging import judge
from dledger.outcome import ExitCode
from dledger.wire import cluster_pb2 as cpb
from tests.scale import examples

NOW_MS = 1_800_000_000_000
MIB = 1 << 20
DAY_MS = 24 * 3600 * 1000
LAST, BEFORE = 120, 100
LEADER, VICTIM, OTHER = "n1", "n2", "n3"


def names(count: int) -> list[str]:
    return [f"n{number + 1}" for number in range(count)]


def address(name: str) -> str:
    return f"10.0.0.{name[1:]}:7001"


def disk(name: str) -> bytes:
    return name.encode().ljust(16, b"-")


def well(count: int) -> GroupFacts:
    """A group in which nothing is wrong, under load: followers are a little behind."""
    members = []
    for name in names(count):
        is_leader = name == LEADER
        peers = tuple(
            PeerFacts(
                id=other,
                address=address(other),
                state="replicate" if is_leader else "",
                match_index=LAST - 3 if is_leader else 0,
                is_recently_active=is_leader,
            )
            for other in names(count)
            if other != name
        )
        health = HealthFacts(
            disk_id=disk(name),
            members=tuple(
                NamedMember(
                    each,
                    votes=True,
                    disk_id=disk(each),
                    clock_off_ms=3.5 * is_leader,
                    address=address(each),
                )
                for each in names(count)
            ),
            free_bytes=10_000 * MIB,
            reserve_bytes=64 * MIB,
            last_fsync_ms=2.0,
            certificate_expires_ms=NOW_MS + 300 * DAY_MS,
        )
        members.append(
            MemberFacts(
                id=name,
                address=address(name),
                group="g1",
                role="leader" if is_leader else "follower",
                term=7,
                last_index=LAST,
                commit_index=LAST - 2,
                applied_index=LAST - 4,
                committed_digest=0xABC,
                is_serving=is_leader,
                level=1,
                known_level=1,
                segment_size_bytes=64 * MIB,
                peers=peers,
                health=health,
            )
        )
    return GroupFacts(tuple(members), (), BEFORE, NOW_MS)


Fault = Callable[[GroupFacts, str], GroupFacts]


def of(facts: GroupFacts, name: str) -> MemberFacts | None:
    return next((each for each in facts.members if each.id == name), None)


def member(**changes: Any) -> Fault:
    """The victim says something else."""

    def change(facts: GroupFacts, name: str) -> GroupFacts:
        return replace(
            facts,
            members=tuple(
                replace(each, **changes) if each.id == name else each for each in facts.members
            ),
        )

    return change


def health(**changes: Any) -> Fault:
    def change(facts: GroupFacts, name: str) -> GroupFacts:
        found = of(facts, name)
        assert found is not None
        assert found.health is not None
        return member(health=replace(found.health, **changes))(facts, name)

    return change


def seen(**changes: Any) -> Fault:
    """The leader sees the victim otherwise."""

    def change(facts: GroupFacts, name: str) -> GroupFacts:
        leader = of(facts, LEADER)
        assert leader is not None
        peers = tuple(
            replace(each, **changes) if each.id == name else each for each in leader.peers
        )
        return member(peers=peers)(facts, LEADER)

    return change


def named(**changes: Any) -> Fault:
    """Everybody's log names the victim otherwise."""

    def change(facts: GroupFacts, name: str) -> GroupFacts:
        for each in facts.members:
            assert each.health is not None
            members = tuple(
                replace(one, **changes) if one.id == name else one for one in each.health.members
            )
            facts = health(members=members)(facts, each.id)
        return facts

    return change


def silent(facts: GroupFacts, name: str) -> GroupFacts:
    others = tuple(each for each in facts.members if each.id != name)
    silence = Silence(name, address(name), "unavailable: connection refused")
    return replace(facts, members=others, silent=(*facts.silent, silence))


def slow(facts: GroupFacts, name: str) -> GroupFacts:
    facts = replace(facts, fsyncs_before=((name, 900.0),))
    return health(last_fsync_ms=800.0)(facts, name)


def deaf(facts: GroupFacts, name: str) -> GroupFacts:
    facts = replace(facts, apart_before=facts.apart_before | {(LEADER, name)})
    return seen(is_connected=False)(facts, name)


def elsewhere(where: str) -> Fault:
    """The victim believes that the leader is there."""

    def change(facts: GroupFacts, name: str) -> GroupFacts:
        found = of(facts, name)
        assert found is not None
        peers = tuple(
            replace(each, address=where) if each.id == LEADER else each for each in found.peers
        )
        return member(peers=peers)(facts, name)

    return change


def gone(facts: GroupFacts, name: str) -> GroupFacts:
    """The victim was taken out of the group, of which it was told or not, and runs on."""
    for each in facts.members:
        if each.id == name:
            continue
        assert each.health is not None
        members = tuple(one for one in each.health.members if one.id != name)
        facts = health(members=members)(facts, each.id)
        peers = tuple(peer for peer in each.peers if peer.id != name)
        facts = member(peers=peers)(facts, each.id)
    return facts


def leads_too(facts: GroupFacts, name: str) -> GroupFacts:
    return member(role="leader", is_serving=True)(facts, name)


def also_elsewhere(facts: GroupFacts, name: str) -> GroupFacts:
    """A copy of its directory runs on another machine."""
    found = of(facts, name)
    assert found is not None
    copy = replace(found, address=f"10.0.1.{name[1:]}:7001", directory="/copy")
    return replace(facts, members=(*facts.members, copy))


FAULTS: dict[Kind, Fault] = {
    Kind.TWO_LEADERS: leads_too,
    Kind.IMPOSSIBLE: member(last_index=LAST - 3),
    Kind.SAME_ID: also_elsewhere,
    Kind.OUT_OF_SERVICE: member(
        role="out-of-service", divergence=DivergenceFacts(12, 1, 2, (LEADER,), 8, 9, 1, 1)
    ),
    Kind.GIVEN_UP: member(
        role="out-of-service",
        divergence=DivergenceFacts(0, 0, 0, (LEADER,), 0, 0, 0, 0, recoveries=1),
    ),
    Kind.NEWER_EPOCH: member(epoch=1, newer_epoch=2),
    Kind.REPLICAS_DIFFER: health(suspected_index=9),
    Kind.OLDER_COPY: seen(is_older_copy=True, is_connected=False),
    Kind.OTHER_DISK: health(disk_id=disk("nx")),
    Kind.OTHER_GROUP: member(group="g2"),
    Kind.UNREACHABLE: silent,
    Kind.UNFORMED: member(role="unformed", term=0, last_index=0, commit_index=0),
    Kind.LOG_ROTTEN: member(log_damages=1),
    Kind.APPLY_STOPPED: member(apply_stopped="level 2 is in use", applied_index=5),
    Kind.DISK_FULL: health(is_log_full=True),
    Kind.CERTIFICATE_EXPIRED: health(certificate_expires_ms=NOW_MS - 1),
    Kind.CERTIFICATE_EARLY: health(certificate_begins_ms=NOW_MS + DAY_MS),
    Kind.NOT_VOTING: named(votes=False, observes=False, votes_until_left=False),
    Kind.BEHIND: seen(match_index=BEFORE - 1),
    Kind.DEAF: deaf,
    Kind.QUEUES_WRONG: health(queues_wrong=2),
    Kind.DISK_SLOW: slow,
    Kind.CLOCK_OFF: named(clock_off_ms=-1500.0),
    Kind.GONE: gone,
    Kind.ADDRESSES_DIFFER: elsewhere("10.0.0.99:7001"),
    Kind.CERTIFICATE_EXPIRES: health(certificate_expires_ms=NOW_MS + 5 * DAY_MS),
    Kind.CERTIFICATE_WAITS: health(next_certificate_ms=NOW_MS + DAY_MS),
    Kind.DISK_NEARLY_FULL: health(free_bytes=100 * MIB),
    Kind.FRONT_HELD: health(front_held="no space"),
    Kind.LEVEL_BELOW: member(known_level=0),
}
# What a victim can be. A group of five has a leader, a victim, another one, and two to spare.
SHAPES: dict[str, Callable[[GroupFacts], GroupFacts]] = {
    "voters": lambda facts: facts,
    "observers": lambda facts: observing(facts, VICTIM, OTHER),
    "coming": lambda facts: joint(facts, comes_from=(LEADER, "n4", "n5")),
    "leaving": lambda facts: joint(facts, leads_to=(LEADER, "n4", "n5")),
}


def observing(facts: GroupFacts, *whose: str) -> GroupFacts:
    for name in whose:
        facts = named(votes=False, observes=True)(facts, name)
    return facts


def joint(
    facts: GroupFacts, *, comes_from: Sequence[str] = (), leads_to: Sequence[str] = ()
) -> GroupFacts:
    """Several voters change at once; who isn't told of: all."""
    everybody = [each.id for each in facts.members]
    for name in everybody:
        facts = named(
            votes=name in (leads_to or everybody),
            votes_until_left=name in (comes_from or everybody),
        )(facts, name)
    return facts


OF_THE_GROUP = {
    *(Kind.NO_MAJORITY, Kind.NO_LEADER, Kind.NO_MARGIN, Kind.LOG_TIME_OFF, Kind.BOUND_NEAR),
}
# What keeps a member from being counted on.
COSTS_A_MEMBER = {
    *(Kind.OLDER_COPY, Kind.OTHER_DISK, Kind.OTHER_GROUP, Kind.UNREACHABLE),
    *(Kind.UNFORMED, Kind.DISK_FULL, Kind.LOG_ROTTEN, Kind.OUT_OF_SERVICE, Kind.GIVEN_UP),
}


def kinds(facts: GroupFacts) -> list[Kind]:
    return [finding.kind for finding in judge(facts)]


def check_order(findings: tuple[Finding, ...]) -> None:
    order = [list(Kind).index(finding.kind) for finding in findings]
    assert order == sorted(order)
    assert len(set(findings)) == len(findings)
    for finding in findings:
        assert finding.detail
        assert "{" not in finding.remedy
        assert "  " not in finding.remedy


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_nothing_is_found_in_a_group_that_is_well(count: int) -> None:
    assert judge(well(count)) == ()
    assert exit_code_of(()) is ExitCode.DONE


def test_every_kind_is_made_by_some_fault() -> None:
    """So that a new one can't be forgotten here."""
    assert set(FAULTS) | OF_THE_GROUP == set(Kind)
    assert {kind.gravity for kind in Kind} == set(Gravity)


@pytest.mark.parametrize("kind", FAULTS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("count", [3, 5])
def test_single_fault_gives_its_finding(kind: Kind, count: int) -> None:
    """About the one that has it, and nothing else but what follows for the group."""
    findings = judge(FAULTS[kind](well(count), VICTIM))
    check_order(findings)
    mine = [each for each in findings if each.kind is kind]
    assert len(mine) == 1
    assert VICTIM in mine[0].member or VICTIM in mine[0].detail
    others = {each.kind for each in findings} - {kind}
    expected = {Kind.NO_MARGIN} if count == 3 and kind in COSTS_A_MEMBER else set()
    assert others == expected
    assert exit_code_of(findings) is ExitCode.FAILED


@pytest.mark.parametrize("kind", FAULTS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("shape", SHAPES)
def test_fault_of_one_never_hides_that_of_another(shape: str, kind: Kind) -> None:
    """Any two of them, of two members of five, in either order, whatever the two are."""
    for other in FAULTS:
        facts = FAULTS[other](FAULTS[kind](SHAPES[shape](well(5)), VICTIM), OTHER)
        findings = judge(facts)
        check_order(findings)
        for each, whose in ((kind, VICTIM), (other, OTHER)):
            if kind is Kind.DISK_SLOW and other is Kind.DISK_SLOW and whose == VICTIM:
                continue  # the fault of the second takes the place of the first's figures
            told = [one for one in findings if one.kind is each]
            assert any(whose in one.member or whose in one.detail for one in told), (each, other)


@pytest.mark.parametrize("shape", SHAPES)
def test_fault_never_hides_a_graver_one_of_the_same_member(shape: str) -> None:
    """Whatever else is wrong with it, as long as it answers and takes part."""
    ends_it = {
        *(Kind.UNREACHABLE, Kind.UNFORMED, Kind.OTHER_GROUP, Kind.GONE),
        *(Kind.OUT_OF_SERVICE, Kind.GIVEN_UP),
    }
    for grave, lesser in combinations([kind for kind in FAULTS if kind not in ends_it], 2):
        for first, second in permutations((grave, lesser)):
            found = kinds(FAULTS[second](FAULTS[first](SHAPES[shape](well(5)), VICTIM), VICTIM))
            covered = {  # one field of the member has one value; the graver word is said
                Kind.CERTIFICATE_EXPIRED, Kind.CERTIFICATE_EXPIRES,
            }  # fmt: skip
            if {grave, lesser} == covered:
                assert covered & set(found)
            else:
                assert grave in found, (grave, lesser)


def test_bound_that_is_near_is_told_once_by_who_has_most() -> None:
    """What is in use is the same on all that have applied the same; an odd bound is nobody's."""
    facts = well(3)
    fills = {"n1": (79_999, 100_000), "n2": (80_000, 100_000), "n3": (70, 80)}
    for name, (used, limit) in fills.items():
        odd = FillFacts("nothing", 7, 0)
        facts = health(fills=(FillFacts("queues of topics", used, limit), odd))(facts, name)
    assert [(each.kind, each.detail) for each in judge(facts)] == [
        (Kind.BOUND_NEAR, "70 of 80 queues of topics")
    ]
    below = health(fills=(FillFacts("queues of topics", 63, 80), FillFacts("others", 1, 2)))
    assert [each.detail for each in judge(below(facts, "n3"))] == [
        "80000 of 100000 queues of topics"
    ]


def test_certificates_are_judged_by_their_nodes_clocks() -> None:
    """Which is what a node believes others by. The clock of who asks counts only for a node whose
    program doesn't tell its own."""
    year_ms = 365 * DAY_MS
    for ahead_ms, kind in ((year_ms, Kind.CERTIFICATE_EXPIRED), (-year_ms, Kind.CERTIFICATE_EARLY)):
        off = health(certificate_begins_ms=NOW_MS - DAY_MS, now_ms=NOW_MS + ahead_ms)
        assert kinds(off(well(3), VICTIM)) == [kind]
    asked = replace(well(3), now_ms=NOW_MS + year_ms)
    assert Kind.CERTIFICATE_EXPIRED in kinds(asked)
    told = asked
    for name in names(3):
        told = health(now_ms=NOW_MS)(told, name)
    assert kinds(told) == []
    behind = health(certificate_expires_ms=NOW_MS + DAY_MS, now_ms=NOW_MS)(well(3), VICTIM)
    (expired, _) = judge(named(clock_off_ms=-3.0 * DAY_MS)(behind, VICTIM))
    assert "expired 2 days ago by others' clock" in expired.detail
    assert kinds(named(clock_off_ms=float("nan"))(behind, VICTIM))[0] is Kind.CLOCK_OFF
    (waits,) = judge(health(next_certificate_ms=NOW_MS - 1, now_ms=NOW_MS)(well(3), VICTIM))
    assert "isn't valid any more by its clock" in waits.detail


@pytest.mark.parametrize("count", [3, 5])
def test_majority_that_is_silent(count: int) -> None:
    """Told first, with exit code 3, whoever is left; one less and it is only without margin."""
    facts = well(count)
    gone = names(count)[1 : count // 2 + 2]
    for name in gone[:-1]:
        facts = silent(facts, name)
    assert kinds(facts)[0] is Kind.NO_MARGIN
    assert exit_code_of(judge(facts)) is ExitCode.FAILED
    findings = judge(silent(facts, gone[-1]))
    assert findings[0].kind is Kind.NO_MAJORITY
    assert exit_code_of(findings) is ExitCode.UNREACHABLE
    assert [each.kind for each in findings].count(Kind.UNREACHABLE) == len(gone)


@pytest.mark.parametrize("shape", SHAPES)
def test_nothing_is_found_while_members_change(shape: str) -> None:
    """Nor of members that observe, which is what they are for."""
    assert judge(SHAPES[shape](well(5))) == ()


@pytest.mark.parametrize("kind", FAULTS, ids=lambda kind: kind.name)
def test_fault_of_an_observer_costs_the_group_no_voter(kind: Kind) -> None:
    """It is told like anybody's, and nothing follows from it, whatever it is."""
    facts = FAULTS[kind](observing(well(4), VICTIM), VICTIM)
    assert kinds(facts) == [kind]


def test_observers_are_no_majority() -> None:
    """Three of five answer, of whom one votes."""
    facts = observing(well(5), VICTIM, OTHER)
    assert [kinds(silent(facts, "n4")), kinds(silent(silent(facts, "n4"), "n5"))] == [
        [Kind.NO_MARGIN, Kind.UNREACHABLE],
        [Kind.NO_MAJORITY, Kind.UNREACHABLE, Kind.UNREACHABLE],
    ]


@pytest.mark.parametrize("is_ahead", [False, True])
def test_each_half_of_a_joint_configuration_needs_its_majority(is_ahead: bool) -> None:
    """n1, n2, n3 become n3, n4, n5: of either half two have to answer, whoever else does."""
    facts = joint(well(5), comes_from=("n1", "n2", "n3"), leads_to=("n3", "n4", "n5"))
    one, two = ("n4", "n5") if is_ahead else ("n2", "n3")
    assert kinds(silent(facts, one))[0] is Kind.NO_MARGIN
    findings = judge(silent(silent(facts, one), two))
    assert findings[0].kind is Kind.NO_MAJORITY
    assert exit_code_of(findings) is ExitCode.UNREACHABLE
    assert f"{one}, {two} missing" in findings[0].detail
    assert ("until the change" in findings[0].detail) is not is_ahead
    both = judge(silent(silent(facts, "n3"), "n4" if is_ahead else "n2"))
    assert [each.kind for each in both][:2] == [Kind.NO_MAJORITY, Kind.UNREACHABLE]


def test_who_was_taken_out_is_counted_by_nobody() -> None:
    """It may know of it or not, say that it leads, and be gone: nobody waits for it."""
    taken_out = gone(well(4), VICTIM)
    assert kinds(taken_out) == [Kind.GONE]
    assert kinds(silent(gone(well(4), VICTIM), VICTIM)) == []
    stale = member(role="leader", last_index=3, commit_index=3, applied_index=3)(taken_out, VICTIM)
    assert kinds(stale) == [Kind.GONE]
    differing = member(committed_digest=0xDEF)(taken_out, VICTIM)
    assert kinds(differing) == [Kind.REPLICAS_DIFFER, Kind.GONE]
    unknown = replace(well(3), silent=(Silence("", address("n7"), "unavailable"),))
    assert kinds(unknown) == [Kind.UNREACHABLE]


@pytest.mark.parametrize("count", [3, 5])
def test_member_that_is_neither_heard_nor_silent_is_unreachable(count: int) -> None:
    """Another one answers where it should be, or nobody knows where that is: it may be dead, and
    there is no silence that tells."""
    facts = well(count)
    others = tuple(each for each in facts.members if each.id != VICTIM)
    findings = judge(replace(facts, members=others))
    assert [each.member for each in findings if each.kind is Kind.UNREACHABLE] == [VICTIM]
    assert exit_code_of(findings) is ExitCode.FAILED


def test_new_node_that_stands_by_is_told_as_such_only() -> None:
    """Whether the log names it already or not, it isn't a disk that doesn't catch up."""
    standing_by = FAULTS[Kind.UNFORMED](gone(well(4), VICTIM), VICTIM)
    named_already = FAULTS[Kind.UNFORMED](FAULTS[Kind.NOT_VOTING](well(4), VICTIM), VICTIM)
    for facts in (standing_by, named_already):
        assert kinds(facts) == [Kind.UNFORMED]
        assert "dledger member add" in judge(facts)[0].remedy


def test_addresses_are_compared_with_the_logs_or_else_with_each_others() -> None:
    assert kinds(elsewhere("")(well(3), VICTIM)) == [Kind.ADDRESSES_DIFFER]
    moved = named(address="10.0.0.77:7001")(well(3), LEADER)  # and two have the old one yet
    findings = judge(moved)
    assert [(each.kind, each.member) for each in findings] == [
        (Kind.ADDRESSES_DIFFER, "n2"),
        (Kind.ADDRESSES_DIFFER, "n3"),
    ]
    nowhere = well(3)
    for name in names(3):
        nowhere = named(address="")(nowhere, name)
    assert judge(nowhere) == ()
    assert [each.member for each in judge(elsewhere("a:1")(nowhere, VICTIM))] == [VICTIM]


def test_nobody_answers() -> None:
    facts = well(3)
    for name in names(3):
        facts = silent(facts, name)
    findings = judge(facts)
    assert findings[0].kind is Kind.NO_MAJORITY
    assert exit_code_of(findings) is ExitCode.UNREACHABLE


def test_voters_that_answer_as_no_members_are_not_missing() -> None:
    """Nobody is down: their disks aren't mounted, or the group is yet to be formed."""
    new = well(3)
    for name in names(3):
        new = FAULTS[Kind.UNFORMED](new, name)
    (first, *rest) = judge(new)
    assert first.kind is Kind.NO_MAJORITY
    assert first.detail.endswith("2 are needed: n1, n2, n3 answering as no member yet")
    assert "group init" in first.remedy
    assert "down" not in first.remedy
    assert [each.kind for each in rest] == [Kind.UNFORMED] * 3
    mixed = silent(FAULTS[Kind.UNFORMED](well(5), "n2"), "n3")
    mixed = FAULTS[Kind.OUT_OF_SERVICE](mixed, "n4")
    first = next(each for each in judge(mixed) if each.kind is Kind.NO_MAJORITY)
    assert first.detail == (
        "2 of 5 voters take part, 3 are needed: n2 answering as no member yet; n4 answering and "
        "taking no part; n3 missing"
    )
    assert first.remedy.startswith("mend what is said of those that answer and take no part")
    down = judge(silent(silent(well(3), "n2"), "n3"))[0]
    assert down.remedy == Kind.NO_MAJORITY.remedy


def test_where_fewer_than_a_majority_count_no_failure_is_spare() -> None:
    """Two of three have rotted in one place, and the third is down: nobody leads, and what is to be
    mended is told below. Where one serves on, nothing more is committed."""
    rotten = silent(well(3), OTHER)
    for name in (LEADER, VICTIM):
        rotten = member(role="follower", is_serving=False, log_damages=1)(rotten, name)
    findings = judge(rotten)
    assert [each.kind for each in findings] == [
        *(Kind.NO_LEADER, Kind.UNREACHABLE, Kind.LOG_ROTTEN, Kind.LOG_ROTTEN)
    ]
    assert findings[0].remedy.startswith("mend what else is said here")
    full = well(3)
    for name in (VICTIM, OTHER):
        full = FAULTS[Kind.DISK_FULL](full, name)
    (first, *_) = judge(full)
    assert (first.kind, first.detail) == (
        Kind.NO_MARGIN,
        "nothing more is committed: 2 have to be well, and n2, n3 can't count",
    )


def test_who_was_given_up_and_is_named_on_another_disk_comes_back_on_an_empty_one() -> None:
    """It was added again since: another `member add` would be refused."""
    facts = FAULTS[Kind.GIVEN_UP](well(3), VICTIM)
    (told,) = [each for each in judge(facts) if each.kind is Kind.GIVEN_UP]
    assert "`dledger member add n2 ADDRESS`" in told.remedy
    added = named(disk_id=disk("nx"))(facts, VICTIM)
    (told,) = [each for each in judge(added) if each.kind is Kind.GIVEN_UP]
    assert "the log names n2 on another disk" in told.detail
    assert told.remedy.endswith("start it on an empty one, and `dledger group replace n2`")


def test_leader_that_is_gone_or_does_not_serve() -> None:
    """Of a newer term nobody leads; or one leads that isn't ready."""
    nobody = member(role="follower", is_serving=False)(well(3), LEADER)
    assert kinds(nobody) == [Kind.NO_LEADER]
    assert exit_code_of(judge(nobody)) is ExitCode.UNREACHABLE
    assert kinds(member(is_serving=False)(well(3), LEADER)) == [Kind.NO_LEADER]
    overtaken = member(term=8)(member(term=8)(well(3), VICTIM), OTHER)
    assert kinds(overtaken)[0] is Kind.NO_LEADER


@pytest.mark.parametrize("count", [3, 5])
def test_who_stands_for_election_alone_takes_nothing_from_the_leader(count: int) -> None:
    """A candidate of any term, and as many as aren't a majority: the group is served."""
    facts = well(count)
    for name in names(count)[-(count // 2) :]:
        facts = member(role="candidate", term=900)(facts, name)
    assert judge(facts) == ()


def test_two_leaders_of_one_term_at_whatever_look() -> None:
    """One at the first and another at the last is as bad; the same one at both is none."""
    first, second = well(3), leads_too(well(3), VICTIM)
    second = member(role="follower", is_serving=False)(second, LEADER)
    assert kinds(replace(first, led_before=second.members[1:2]))[0] is Kind.TWO_LEADERS
    assert judge(replace(first, led_before=first.members[:1])) == ()


def test_two_that_serve_in_different_terms_are_told_at_the_second_look() -> None:
    """For a moment a leader that was cut off doesn't know yet."""
    facts = member(term=8)(leads_too(well(3), VICTIM), VICTIM)
    assert Kind.TWO_LEADERS not in kinds(facts)
    assert kinds(replace(facts, led_before=facts.members[:2]))[0] is Kind.TWO_LEADERS
    assert Kind.TWO_LEADERS not in kinds(replace(facts, led_before=facts.members[:1]))


@pytest.mark.parametrize("off_ms", [float("nan"), float("inf"), -1e300, 1e300])
def test_clock_that_is_off_by_no_time_at_all(off_ms: float) -> None:
    """It is off, and a line is enough to say so."""
    findings = judge(named(clock_off_ms=off_ms)(well(3), VICTIM))
    assert [each.kind for each in findings] == [Kind.CLOCK_OFF]
    assert len(findings[0].detail) < 80


@pytest.mark.parametrize("behind_ms", [float("nan"), float("inf"), 60_001.0, -60_001.0])
def test_log_time_that_is_off_is_the_groups_matter(behind_ms: float) -> None:
    """As its leader says, and nobody else; a minute is no matter."""
    facts = health(log_behind_ms=behind_ms)(well(3), LEADER)
    (found,) = judge(facts)
    assert (found.kind, found.member) == (Kind.LOG_TIME_OFF, "")
    assert len(found.detail) < 80
    assert judge(health(log_behind_ms=behind_ms)(well(3), VICTIM)) == ()
    assert judge(health(log_behind_ms=60_000.0)(well(3), LEADER)) == ()


def test_committed_logs_with_other_digests_differ() -> None:
    """Up to the same entry only: at another one they have another digest."""
    differing = member(committed_digest=0xDEF)(well(3), VICTIM)
    assert kinds(differing) == [Kind.REPLICAS_DIFFER]
    assert kinds(member(committed_digest=0xDEF, commit_index=LAST - 3)(well(3), VICTIM)) == []


def test_contradictions_are_found_while_they_last() -> None:
    """They are counted since the start: what was settled since, by a new disk for the wrong log,
    is over without a restart of those who were right. What comes, or isn't settled, is told."""
    unseen = replace(health(contradictions=4)(well(3), VICTIM), contradictions_before=())
    assert judge(unseen) == (), "it didn't answer at the first look"
    nodes = {each.id: each.node for each in unseen.members}
    settled = replace(unseen, contradictions_before=((nodes[VICTIM], 4),))
    assert judge(settled) == ()
    copied = also_elsewhere(settled, VICTIM)
    assert kinds(copied) == [Kind.SAME_ID], "a copy that answered once has a count of its own"
    moved = health(contradictions=5)(settled, VICTIM)
    assert kinds(moved) == [Kind.REPLICAS_DIFFER]
    restarted = health(contradictions=1)(settled, VICTIM)
    assert kinds(restarted) == [Kind.REPLICAS_DIFFER]
    for unsettled in (health(suspected_index=9), health(differing=(OTHER,))):
        findings = judge(unsettled(settled, VICTIM))
        assert {each.kind for each in findings} == {Kind.REPLICAS_DIFFER}
        assert sum("4 messages" in each.detail for each in findings) == 1


def test_what_passes_is_no_fault() -> None:
    """A sync that was slow once, some time ago; a clock a little off; a peer's match between two
    looks."""
    once = replace(health(last_fsync_ms=900.0)(well(3), VICTIM), fsyncs_before=((VICTIM, 900.0),))
    assert judge(once) == ()
    assert judge(named(clock_off_ms=900.0)(well(3), VICTIM)) == ()
    assert judge(seen(match_index=BEFORE)(well(3), VICTIM)) == ()
    assert judge(seen(is_connected=False)(well(3), VICTIM)) == ()
    mute = seen(is_recently_active=False)(well(3), VICTIM)
    assert judge(mute) == ()
    assert kinds(replace(mute, apart_before=apart(mute.members))) == [Kind.DEAF]


def test_program_of_before_is_told_and_judged_by_what_it_says() -> None:
    """It has no `health`: nothing is guessed of it."""
    facts = member(health=None)(well(3), VICTIM)
    assert kinds(facts) == [Kind.LEVEL_BELOW]
    old = facts
    for name in names(3):
        old = member(health=None)(old, name)
    assert set(kinds(old)) == {Kind.LEVEL_BELOW}


def at_level(facts: GroupFacts) -> GroupFacts:
    for name in names(len(facts.members)):
        facts = member(level=9, known_level=9)(facts, name)
    return facts


def test_a_program_below_the_level_in_use_is_told_to_be_upgraded_now() -> None:
    """Nothing waits for it: that would be a level which isn't in use. It is told once, by its own
    word where it has found out; where nobody leads as well."""
    facts = member(level=0, known_level=8, applied_index=LAST - 4)(at_level(well(3)), VICTIM)
    (told,) = judge(facts)
    assert (told.kind, told.kind.gravity, told.member) == (
        Kind.APPLY_STOPPED,
        Gravity.DEGRADED,
        VICTIM,
    )
    assert "knows level 8, and the group uses 9" in told.detail
    assert "install the version of the others" in told.remedy
    (told,) = judge(member(apply_stopped="entry 7 raises the level")(facts, VICTIM))
    assert told == Finding(Kind.APPLY_STOPPED, VICTIM, "entry 7 raises the level")
    leaderless = member(role="follower", is_serving=False)(facts, LEADER)
    assert Kind.APPLY_STOPPED in kinds(leaderless)
    assert Kind.LEVEL_BELOW not in kinds(leaderless)
    waiting = member(known_level=10)(at_level(well(3)), VICTIM)
    assert kinds(waiting) == [Kind.LEVEL_BELOW, Kind.LEVEL_BELOW]


# --- anything that anybody could say --------------------------------------------------------------

IDS = st.sampled_from(["", "n1", "n2", "n3", "n4", "{x}", "\x1b[2J"])
INTEGERS = st.integers(0, (1 << 64) - 1)
SMALL = st.integers(0, 5)
FLOATS = st.floats()
PEERS = st.builds(
    PeerFacts, id=IDS, address=st.text(max_size=8), is_connected=st.booleans(),
    state=st.sampled_from(["", "probe", "replicate"]), match_index=SMALL | INTEGERS,
    is_recently_active=st.booleans(), is_older_copy=st.booleans(),
)  # fmt: skip
NODES = st.tuples(
    st.sampled_from(["g1", "g2"]), IDS, st.binary(max_size=2), st.sampled_from(["", "/a", "/b"])
)
NAMED = st.builds(
    NamedMember, id=IDS, votes=st.booleans(), disk_id=st.binary(max_size=2),
    clock_off_ms=st.none() | FLOATS, observes=st.booleans(), votes_until_left=st.booleans(),
    address=st.text(max_size=3),
)  # fmt: skip
HEALTH = st.builds(
    HealthFacts, disk_id=st.binary(max_size=2), members=st.lists(NAMED, max_size=4).map(tuple),
    is_log_full=st.booleans(), is_apply_paused=st.booleans(), is_short_of_space=st.booleans(),
    free_bytes=st.none() | INTEGERS, reserve_bytes=INTEGERS, queues_wrong=SMALL,
    contradictions=SMALL, last_fsync_ms=FLOATS, certificate_expires_ms=INTEGERS,
    certificate_begins_ms=INTEGERS, next_certificate_ms=INTEGERS, now_ms=INTEGERS,
    log_behind_ms=FLOATS,
)  # fmt: skip
MEMBERS = st.builds(
    MemberFacts, id=IDS, address=st.text(max_size=8), group=st.sampled_from(["", "g1", "g2"]),
    role=st.sampled_from(["leader", "follower", "unformed", "legacy", "candidate", "nonsense"]),
    term=SMALL, last_index=SMALL | INTEGERS, commit_index=SMALL, applied_index=SMALL,
    committed_digest=SMALL, is_serving=st.booleans(), apply_stopped=st.text(max_size=3),
    level=SMALL, known_level=SMALL, segment_size_bytes=INTEGERS, log_damages=SMALL,
    peers=st.lists(PEERS, max_size=4).map(tuple), health=st.none() | HEALTH,
    directory=st.sampled_from(["", "/a", "/b"]), epoch=SMALL, newer_epoch=SMALL,
)  # fmt: skip
GROUPS = st.builds(
    GroupFacts, members=st.lists(MEMBERS, max_size=5).map(tuple),
    silent=st.lists(st.builds(Silence, id=IDS, address=st.text(max_size=4), reason=st.text()),
                    max_size=3).map(tuple),
    committed_before=SMALL, now_ms=INTEGERS,
    fsyncs_before=st.lists(st.tuples(IDS, FLOATS), max_size=3).map(tuple),
    apart_before=st.frozensets(st.tuples(IDS, IDS), max_size=3),
    led_before=st.lists(MEMBERS, max_size=3).map(tuple), group=st.sampled_from(["", "g1", "g9"]),
    contradictions_before=st.lists(st.tuples(NODES, SMALL), max_size=3).map(tuple),
)  # fmt: skip


@settings(max_examples=examples(150), deadline=None)
@given(GROUPS)
def test_whatever_is_said_is_judged(facts: GroupFacts) -> None:
    """No combination is an error, and the findings are in order."""
    findings = judge(facts)
    order = [list(Kind).index(finding.kind) for finding in findings]
    assert order == sorted(order)
    for finding in findings:
        assert re.fullmatch(r"docs/operations\.md#[a-z0-9-]+", finding.kind.runbook)
        assert finding.remedy
    exit_code_of(findings)


@pytest.mark.parametrize("kind", FAULTS, ids=lambda kind: kind.name)
def test_order_of_members_never_changes_the_verdict(kind: Kind) -> None:
    """Of any two faults, of one member or two, in any order of those who answered."""
    for other, whose in product(FAULTS, (VICTIM, OTHER)):
        facts = FAULTS[kind](well(3), VICTIM)
        if of(facts, whose) is None:
            continue
        facts = FAULTS[other](facts, whose)
        verdict = judge(facts)
        for members in permutations(facts.members):
            silence = tuple(reversed(facts.silent))
            assert judge(replace(facts, members=members, silent=silence)) == verdict, other


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(sorted(FAULTS)), st.sampled_from(names(5)[1:])), max_size=6)
)
def test_any_faults_of_a_group_are_judged(drawn: list[tuple[str, str]]) -> None:
    """In any number, of any members; the gravest that a member still tells is there. Who was taken
    out may be silent: that is no fault."""
    facts = well(5)
    for kind, whose in drawn:
        is_out = kind == Kind.UNREACHABLE and (Kind.GONE, whose) in drawn
        if of(facts, whose) is not None and not is_out:
            facts = FAULTS[Kind(kind)](facts, whose)
    check_order(judge(facts))
    silenced = {(Kind.UNREACHABLE, whose) for kind, whose in drawn if kind == Kind.GONE}
    if set(drawn) - silenced:
        assert judge(facts)


def test_facts_are_what_was_answered() -> None:
    """An answer of a program of before has no health; one of today has all of it."""
    bare = member_facts("a:1", cpb.NodeStatus(node_id="n1", broker_group="g", log_damages=2))
    assert bare.health is None
    assert bare.log_damages == 2
    told = cpb.NodeStatus(
        node_id="n1",
        epoch=cpb.GroupEpochName(number=1),
        newer_epoch=2,
        health=cpb.NodeHealth(
            disk_id=b"d",
            members=[
                cpb.MemberHealth(node_id="n1", votes=True, clock_off_ms=2, has_clock=True),
                cpb.MemberHealth(node_id="n2", votes_until_left=True, address="a:2"),
                cpb.MemberHealth(node_id="n3", observes=True),
            ],
            space=cpb.SpaceHealth(free_bytes=5, reserve_bytes=2),
            log_behind_ms=7.0,
        ),
    )
    assert (bare.epoch, bare.newer_epoch) == (0, 0)
    known = member_facts("a:1", told)
    assert (known.epoch, known.newer_epoch) == (1, 2)
    found = known.health
    assert found is not None
    assert found.members == (
        NamedMember("n1", votes=True, clock_off_ms=2.0),
        NamedMember("n2", votes=False, votes_until_left=True, address="a:2"),
        NamedMember("n3", votes=False, observes=True),
    )
    assert (found.free_bytes, found.reserve_bytes, found.log_behind_ms) == (5, 2, 7.0)


# --- the operator's page --------------------------------------------------------------------------


def test_runbook_has_an_entry_for_each_finding_in_their_order() -> None:
    """And no other: an entry that nothing leads to is one that nobody keeps right."""
    page = Path("docs/operations.md").read_text(encoding="utf-8")
    runbook = page.split("\n## Runbook\n")[1].split("\n## ")[0]
    titles = re.findall(r"^### (.+)$", runbook, flags=re.MULTILINE)
    assert titles == [kind.value for kind in Kind]
    for kind in Kind:
        anchor = re.sub(r"[^a-z0-9 -]", "", kind.value.lower()).replace(" ", "-")
        assert kind.runbook == f"docs/operations.md#{anchor}"


def test_runbook_names_metrics_that_there_are() -> None:
    page = Path("docs/operations.md").read_text(encoding="utf-8")
    runbook, rest = page.split("\n## Runbook\n")[1].split("\n## ", 1)
    table = page.split("\n## Runbook\n")[0] + rest
    for metric in re.findall(r"`(dledger_[a-z_]+)", runbook):
        assert metric in table, metric


def test_of_a_group_that_is_silent_no_voters_are_counted() -> None:
    """Nobody says who they are: *0 of 0, and 1 is needed* is no figure."""
    facts = GroupFacts((), (Silence("", "10.0.0.1:7001", "unavailable: refused"),), 0, 0)
    findings = judge(facts)
    assert [each.kind for each in findings] == [Kind.NO_MAJORITY, Kind.UNREACHABLE]
    assert findings[0].detail == "nobody answers who could say who the voters are"
    assert exit_code_of(findings) is ExitCode.UNREACHABLE
