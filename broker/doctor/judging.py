"""Findings from what members said, and from nothing else: no clock, no network, no guess.

Each rule looks at all facts by itself, so what one finds hides nothing that another does; rules
leave out only what a graver finding of theirs says already about the same member.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from typing import Final

from broker.doctor.facts import (
    DivergenceFacts,
    FillFacts,
    GroupFacts,
    HealthFacts,
    MemberFacts,
    NamedMember,
    Node,
    apart,
    group_of,
    has_possible_indices,
)
from broker.doctor.finding import (
    ALL_ARE_UNFORMED,
    BACK_ON_ANOTHER_DISK,
    SOME_ARE_IDLE,
    Finding,
    Kind,
)
from broker.local_group.status import OUT_OF_SERVICE_ROLE, REFILLING_ROLE, WAITING_ROLES

CLOCK_OFF_MS: Final = 1_000.0
LOG_TIME_OFF_MS: Final = 60_000.0
NEARLY_FULL: Final = 0.8  # of a bound
SLOW_FSYNC_MS: Final = 500.0  # as a leader's disk counts as stalled
SPARE_SEGMENTS: Final = 2  # room for fewer is nearly full
EXPIRES_MS: Final = 30 * 24 * 3600 * 1000
_HOUR_MS: Final = 3600 * 1000
_DAY_MS: Final = 24 * _HOUR_MS
_NO_HEALTH: Final = HealthFacts()
_ORDER: Final = {kind: number for number, kind in enumerate(Kind)}

Named = tuple[NamedMember, ...]


def judge(facts: GroupFacts) -> tuple[Finding, ...]:
    """Everything that is wrong, the gravest first; nothing for a group that is well."""
    picture = _picture(facts)
    found = {
        *_leaders(picture),
        *_out_of_service(picture),
        *_newer_epochs(picture),
        *_differing(picture),
        *_impossible(picture),
        *_doubled(picture),
        *_disks(picture),
        *_quorum(picture),
        *_silent(picture),
        *_states(picture),
        *_space(picture),
        *_lags(picture),
        *_links(picture),
        *_surroundings(picture),
        *_certificates(picture),
        *_addresses(picture),
        *_levels(picture),
        *_bounds(picture),
    }
    return tuple(sorted(found, key=lambda each: (_ORDER[each.kind], each.member, each.detail)))


@dataclass(frozen=True, slots=True)
class _Picture:
    """The facts, sorted.

    Attributes:
        own: who answered of this group.
        formed: of those, the members that take part.
        gone: of those, who takes part and is a member no more.
        named: the members by the log, as the best informed has it, or by configuration where
            nobody says.
    """

    facts: GroupFacts
    group: str
    own: tuple[MemberFacts, ...]
    formed: tuple[MemberFacts, ...]
    gone: tuple[MemberFacts, ...]
    named: tuple[NamedMember, ...]
    leader: MemberFacts | None

    def electorates(self) -> tuple[frozenset[str], ...]:
        """Of each a majority is needed: of the voters, and, while the configuration is joint, of
        those that it comes from."""
        leaving = frozenset(each.id for each in self.named if each.votes_until_left)
        voters = frozenset(each.id for each in self.named if each.votes)
        return (voters, leaving) if leaving else (voters,)

    def names(self, member: str) -> bool:
        return any(each.id == member for each in self.named)

    def disk_of(self, member: str) -> bytes:
        return next((each.disk_id for each in self.named if each.id == member), b"")

    def name_of(self, member: MemberFacts) -> str:
        """Its id, and its address where another goes by that."""
        is_one = [each.id for each in self.own].count(member.id) == 1
        return member.id if is_one else f"{member.id} at {member.address}"


def _picture(facts: GroupFacts) -> _Picture:
    group = facts.group or group_of(facts.members)
    in_order = sorted(facts.members, key=lambda each: (each.id, each.address))
    own = tuple(each for each in in_order if each.group == group)
    apart_from_it = (*WAITING_ROLES, OUT_OF_SERVICE_ROLE, REFILLING_ROLE)
    running = tuple(each for each in own if each.role not in apart_from_it)
    named = _named(own, running)
    ids = {each.id for each in named}
    formed = tuple(each for each in running if each.id in ids)
    gone = tuple(each for each in running if each.id not in ids)
    leading = [each for each in formed if each.role == "leader" and not _is_left(each, formed)]
    leader = min(leading, key=lambda each: (-each.term, not each.is_serving), default=None)
    return _Picture(facts, group, own, formed, gone, named, leader)


def _named(own: tuple[MemberFacts, ...], running: tuple[MemberFacts, ...]) -> Named:
    """The members, by who knows best: who serves, as its configuration is in force; else who has
    the longest log."""
    informed = sorted(running, key=lambda each: (each.is_serving, each.term, each.last_index))
    named: Named = ()
    for each in informed:
        named = (each.health or _NO_HEALTH).members or named
    if not named:
        ids = {each.id for each in own} | {peer.id for each in own for peer in each.peers}
        named = tuple(NamedMember(each, votes=True) for each in sorted(ids))
    return named


def _is_left(leader: MemberFacts, formed: Iterable[MemberFacts]) -> bool:
    """Whether a majority, by its own log, is at newer terms. One alone that is takes nothing from
    it: who is cut off may stand for election as often as it likes."""
    named = (leader.health or _NO_HEALTH).members
    voters = {each.id for each in named if each.votes}
    voters = voters or {leader.id, *(peer.id for peer in leader.peers)}
    newer = {each.id for each in formed if each.term > leader.term}
    return len(voters & newer) > len(voters) // 2


def _leaders(picture: _Picture) -> Iterator[Finding]:
    """Two that led one term, whenever; or two that serve, and did so a second before."""
    now = [each for each in picture.formed if each.role == "leader"]
    before = [each for each in picture.facts.led_before if each.group == picture.group]
    by_term: defaultdict[int, dict[Node, str]] = defaultdict(dict)
    for each in (*now, *before):
        by_term[each.term].setdefault(each.node, f"{each.id} at {each.address}")
    for term, leaders in sorted(by_term.items()):
        if len(leaders) > 1:
            detail = f"{' and '.join(sorted(leaders.values()))} lead one term, {term}"
            yield Finding(Kind.TWO_LEADERS, "", detail)
    served = {(each.node, each.term) for each in before if each.is_serving}
    serving = {
        each.term: f"{each.id} at {each.address} in term {each.term}"
        for each in now
        if each.is_serving and (each.node, each.term) in served
    }
    if len(serving) > 1:
        detail = f"{' and '.join(sorted(serving.values()))} serve, and did a second ago"
        yield Finding(Kind.TWO_LEADERS, "", detail)


def _impossible(picture: _Picture) -> Iterator[Finding]:
    for member in picture.formed:
        if not has_possible_indices(member):
            detail = (
                f"its last entry is {member.last_index}, it has committed up to "
                f"{member.commit_index} and applied up to {member.applied_index}"
            )
            yield Finding(Kind.IMPOSSIBLE, member.id, detail)


def _doubled(picture: _Picture) -> Iterator[Finding]:
    """Nodes that call themselves by one id: which of them a member hears is chance."""
    by_id: defaultdict[str, list[MemberFacts]] = defaultdict(list)
    for member in picture.own:
        by_id[member.id].append(member)
    for name, nodes in by_id.items():
        if len(nodes) > 1:
            said = "; ".join(
                f"at {each.address} disk {(each.health or _NO_HEALTH).disk_id.hex() or 'unknown'}"
                for each in nodes
            )
            detail = f"{said}; the log names {picture.disk_of(name).hex() or 'none'}"
            yield Finding(Kind.SAME_ID, name, detail)


def _out_of_service(picture: _Picture) -> Iterator[Finding]:
    for member in picture.own:
        told = member.divergence
        if told is None:
            continue
        if told.recoveries:
            yield _given_up(picture, member, told)
            continue
        where = f"entry {told.differing_index} is the first that differs"
        if not told.differing_index:
            where = f"they part between entries {told.agreed_index} and {told.compared_index}"
        elif told.own_term != told.peers_term:
            where += f", of term {told.own_term} here and {told.peers_term} there"
        majority = ", ".join(told.peers) or "a majority"
        detail = (
            f"its log isn't that of {majority}: {where}; at entry {told.compared_index} its digest "
            f"is {told.own_digest:016x}, theirs {told.peers_digest:016x}. It neither votes nor "
            "acknowledges nor serves, and its disk is kept as it is"
        )
        yield Finding(Kind.OUT_OF_SERVICE, member.id, detail)


def _given_up(picture: _Picture, member: MemberFacts, told: DivergenceFacts) -> Finding:
    """It is to come back as a new member, or on the disk that the log waits for already."""
    majority = ", ".join(told.peers) or "a member"
    detail = (
        f"the group was recovered by force without it and is in epoch {told.recoveries}, as "
        f"{majority} says. It neither votes nor acknowledges nor serves; what its disk holds "
        "beyond that is no longer the group's, and is kept as it is"
    )
    own, known = (member.health or _NO_HEALTH).disk_id, picture.disk_of(member.id)
    if known and own and own != known:
        detail += f"; the log names {member.id} on another disk, {known.hex()}"
        return Finding(Kind.GIVEN_UP, member.id, detail, BACK_ON_ANOTHER_DISK)
    return Finding(Kind.GIVEN_UP, member.id, detail)


def _newer_epochs(picture: _Picture) -> Iterator[Finding]:
    for member in picture.own:
        if member.newer_epoch:
            detail = (
                f"it is of epoch {member.epoch} of the group, and a client was served in epoch "
                f"{member.newer_epoch}: it serves nobody until it is started again"
            )
            yield Finding(Kind.NEWER_EPOCH, member.id, detail)


def _differing(picture: _Picture) -> Iterator[Finding]:
    running = (*picture.formed, *picture.gone)  # what was committed is the same on those as well
    counted = dict(picture.facts.contradictions_before)
    for member in running:
        health = member.health or _NO_HEALTH
        count = health.contradictions
        # It counts since the start, and what was contradicted long ago may be settled since: of
        # one that didn't answer at the first look nobody knows whether it counted more by now.
        is_fresh = count != counted.get(member.node, count)
        if count and (is_fresh or health.suspected_index or health.differing):
            detail = f"{count} messages of peers contradicted what is settled on {member.id}"
            yield Finding(Kind.REPLICAS_DIFFER, member.id, detail)
        if health.suspected_index:
            detail = (
                f"entry {health.suspected_index} of {member.id} isn't what a peer holds, and no "
                "majority has said whose is wrong; until then no member begins its log anew"
            )
            yield Finding(Kind.REPLICAS_DIFFER, member.id, detail)
        for name in health.differing:
            detail = f"its log differs from what {member.id} and a majority hold"
            yield Finding(Kind.REPLICAS_DIFFER, name, detail)
    by_index: defaultdict[int, dict[int, list[str]]] = defaultdict(dict)
    for member in running:
        if member.commit_index:
            holders = by_index[member.commit_index]
            who = picture.name_of(member)
            holders.setdefault(member.committed_digest, []).append(who)
    for index, holders in sorted(by_index.items()):
        if len(holders) > 1:
            said = "; ".join(
                f"{', '.join(members)}: {digest:016x}"
                for digest, members in sorted(holders.items())
            )
            detail = f"logs up to entry {index}, committed, have other digests: {said}"
            yield Finding(Kind.REPLICAS_DIFFER, "", detail)


def _disks(picture: _Picture) -> Iterator[Finding]:
    for member in picture.formed:
        for peer in member.peers:
            if peer.is_older_copy:
                detail = f"{member.id} refuses it: its disk was put back as it once was"
                yield Finding(Kind.OLDER_COPY, peer.id, detail)
        own, known = (member.health or _NO_HEALTH).disk_id, picture.disk_of(member.id)
        if own and known and own != known:
            detail = f"it is on disk {own.hex()}, the log names {known.hex()}"
            yield Finding(Kind.OTHER_DISK, member.id, detail)
    for member in picture.facts.members:
        if member.group != picture.group:
            detail = (
                f"{member.address} is of group {member.group!r}, the others of {picture.group!r}"
            )
            yield Finding(Kind.OTHER_GROUP, member.id, detail)


def _quorum(picture: _Picture) -> Iterator[Finding]:
    """Whether it serves, and whether it would with one member less."""
    short = [*_short_of_voters(picture)]
    if short:
        yield from short
        return
    serves = picture.leader is not None and picture.leader.is_serving
    if not serves:
        who = "nobody says that it leads"
        if picture.leader is not None:
            who = f"{picture.leader.id} leads term {picture.leader.term} and doesn't serve"
        yield Finding(Kind.NO_LEADER, "", who)
    counting = {each.id for each in picture.formed if _counts(picture, each)}
    for voters in picture.electorates():
        good, needed = counting & voters, _majority(voters)
        if len(good) == len(voters) or len(good) > needed or len(voters) <= 2:
            continue
        bad = f"{needed} have to be well, and {_names(voters - good)} can't count"
        if len(good) == needed:
            yield Finding(Kind.NO_MARGIN, "", f"one more failure stops the group: {bad}")
        elif serves:  # what was committed; and otherwise *no leader* says that nothing is
            yield Finding(Kind.NO_MARGIN, "", f"nothing more is committed: {bad}")


def _short_of_voters(picture: _Picture) -> Iterator[Finding]:
    """A finding for each of the electorates of which no majority answers."""
    present = {each.id for each in picture.formed}
    idle = {each.id: each.role in WAITING_ROLES for each in picture.own if each.id not in present}
    for number, voters in enumerate(picture.electorates()):
        answering, needed = voters & present, _majority(voters)
        if len(answering) < needed:
            whose = "voters until the change of members is done" if number else "voters"
            detail = f"{len(answering)} of {len(voters)} {whose} take part, {needed} are needed"
            if not voters:
                detail = "nobody answers who could say who the voters are"
            waiting = {each for each in voters - answering if idle.get(each)}
            others = {each for each in voters - answering if idle.get(each) is False}
            silent = voters - answering - idle.keys()
            missing = [
                f"{_names(who)} {what}"
                for who, what in (
                    (waiting, "answering as no member yet"),
                    (others, "answering and taking no part"),
                    (silent, "missing"),
                )
                if who
            ]
            instead = SOME_ARE_IDLE if waiting or others else ""
            if waiting and waiting == voters:
                instead = ALL_ARE_UNFORMED
            said = f": {'; '.join(missing)}" if missing else ""
            yield Finding(Kind.NO_MAJORITY, "", f"{detail}{said}", instead)


def _majority(voters: frozenset[str]) -> int:
    return len(voters) // 2 + 1


def _counts(picture: _Picture, member: MemberFacts) -> bool:
    """Whether the group could commit with it."""
    health, known = member.health or _NO_HEALTH, picture.disk_of(member.id)
    is_refused = any(
        peer.is_older_copy and peer.id == member.id
        for each in picture.formed
        for peer in each.peers
    )
    on_its_disk = not (health.disk_id and known) or health.disk_id == known
    return on_its_disk and not is_refused and not _is_full(health) and not member.log_damages


def _is_full(health: HealthFacts) -> bool:
    return health.is_log_full or health.is_apply_paused or health.is_short_of_space


def _silent(picture: _Picture) -> Iterator[Finding]:
    """Members only, as far as it is known whose an address is: who was taken out may be gone."""
    for each in picture.facts.silent:
        if each.id and picture.own and not picture.names(each.id):
            continue
        yield Finding(Kind.UNREACHABLE, each.id or each.address, f"{each.address}: {each.reason}")
    heard = {each.id for each in picture.facts.members}
    heard |= {each.id for each in picture.facts.silent}
    for named in picture.named:
        if named.id not in heard:  # whoever answers where it should be
            detail = "the log names it, and nobody who was asked is that member"
            yield Finding(Kind.UNREACHABLE, named.id, detail)


def _states(picture: _Picture) -> Iterator[Finding]:
    for member in picture.own:
        if member.role in WAITING_ROLES:
            detail = f"its directory is {member.role}: it neither votes nor counts"
            yield Finding(Kind.UNFORMED, member.id, detail)
        if member.log_damages:
            detail = (
                f"{member.log_damages} places of its log have rotted and are being got back: it "
                "neither votes nor acknowledges"
            )
            yield Finding(Kind.LOG_ROTTEN, member.id, detail)
        if member.apply_stopped:
            yield Finding(Kind.APPLY_STOPPED, member.id, member.apply_stopped)
        wrong = (member.health or _NO_HEALTH).queues_wrong
        if wrong:
            yield Finding(Kind.QUEUES_WRONG, member.id, f"{wrong} ConsumeQueues are being mended")
    waiting = {each.id for each in picture.own if each.role in WAITING_ROLES}
    for named in picture.named:
        learns = not (named.votes or named.votes_until_left or named.observes)
        if learns and named.id not in waiting:
            detail = "the log names its disk, which hasn't caught up and doesn't vote yet"
            yield Finding(Kind.NOT_VOTING, named.id, detail)
    for member in picture.gone:
        detail = f"the log names it no more, and it runs on, at {member.address}"
        yield Finding(Kind.GONE, member.id, detail)


def _space(picture: _Picture) -> Iterator[Finding]:
    for member in picture.own:
        health = member.health or _NO_HEALTH
        if _is_full(health):
            what = "no room for another segment"
            if health.is_apply_paused:
                what = "no room for what is derived from the log: applying has paused"
            yield Finding(Kind.DISK_FULL, member.id, what)
        elif health.free_bytes is not None:
            room = health.free_bytes - health.reserve_bytes
            if room < SPARE_SEGMENTS * member.segment_size_bytes:
                detail = (
                    f"{health.free_bytes} bytes are free, {health.reserve_bytes} of them kept, "
                    f"and a segment takes {member.segment_size_bytes}"
                )
                yield Finding(Kind.DISK_NEARLY_FULL, member.id, detail)
        if health.front_held:
            yield Finding(Kind.FRONT_HELD, member.id, health.front_held)


def _lags(picture: _Picture) -> Iterator[Finding]:
    """Who lacks what was committed a second before."""
    before = picture.facts.committed_before
    slow = dict(picture.facts.fsyncs_before)
    for member in picture.formed:
        matched = member.last_index
        if picture.leader is not None and picture.leader is not member:
            seen = [peer for peer in picture.leader.peers if peer.id == member.id]
            matched = min([matched, *(peer.match_index for peer in seen)])
        if matched < before:
            detail = f"it has entries up to {matched}; {before} was committed a second ago"
            yield Finding(Kind.BEHIND, member.id, detail)
        elif member.applied_index < before and not member.apply_stopped:
            detail = f"it has applied up to {member.applied_index}; {before} was committed before"
            yield Finding(Kind.BEHIND, member.id, detail)
        fsync, earlier = (member.health or _NO_HEALTH).last_fsync_ms, slow.get(member.id, 0.0)
        # Two of them: the last one may have been long ago, and is told until there is another.
        if min(fsync, earlier) > SLOW_FSYNC_MS and fsync != earlier:
            detail = f"its last syncs took {_figure(earlier)} and {_figure(fsync)} ms"
            yield Finding(Kind.DISK_SLOW, member.id, detail)


def _figure(value: float) -> str:
    """In a few digits, whatever somebody says."""
    return f"{value:.1f}" if abs(value) < 1e9 else f"{value:.3g}"


def _links(picture: _Picture) -> Iterator[Finding]:
    """Members that both answer, and not each other, at both looks: streams come and go."""
    formed = {each.id for each in picture.formed}
    refused = {peer.id for each in picture.formed for peer in each.peers if peer.is_older_copy}
    said: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for one, other in apart(picture.formed) & picture.facts.apart_before:
        if other in formed - refused:
            said[min(one, other), max(one, other)].append(f"{one} doesn't hear {other}")
    for pair, words in sorted(said.items()):
        yield Finding(Kind.DEAF, ", ".join(pair), "; ".join(sorted(words)))


def _surroundings(picture: _Picture) -> Iterator[Finding]:
    """Clocks."""
    behind = (picture.leader.health or _NO_HEALTH).log_behind_ms if picture.leader else 0.0
    if not abs(behind) <= LOG_TIME_OFF_MS:
        way = "behind" if behind > 0 else "ahead of"
        detail = f"it is {_figure(abs(behind) / 1000)} s {way} what a majority's clocks show"
        yield Finding(Kind.LOG_TIME_OFF, "", detail)
    for named in (picture.leader.health or _NO_HEALTH).members if picture.leader else ():
        off = named.clock_off_ms
        if off is not None and not abs(off) <= CLOCK_OFF_MS:  # what is no number isn't either
            way = "behind" if off < 0 else "ahead of"
            detail = f"it is {_figure(abs(off) / 1000)} s {way} what a majority's clocks show"
            yield Finding(Kind.CLOCK_OFF, named.id, detail)


def _certificates(picture: _Picture) -> Iterator[Finding]:
    """By each member's own clock, which it believes others by as well; and whether it has expired
    also by a majority's, by which others believe it, where the leader knows those."""
    led = (picture.leader.health or _NO_HEALTH).members if picture.leader else ()
    off = {each.id: each.clock_off_ms for each in led}
    for member in picture.own:
        health = member.health or _NO_HEALTH
        now_ms, expires_ms = health.now_ms or picture.facts.now_ms, health.certificate_expires_ms
        others_ms = _corrected(now_ms, off.get(member.id)) if health.now_ms else now_ms
        whose = "its" if health.now_ms else "this"
        if others_ms > now_ms and others_ms >= expires_ms:
            whose = "others'"
        early_ms, left_ms = (
            health.certificate_begins_ms - now_ms,
            expires_ms - max(now_ms, others_ms),
        )
        if expires_ms and left_ms <= 0:
            detail = f"its certificate, or its authority's, expired {-left_ms // _DAY_MS} days ago"
            yield Finding(Kind.CERTIFICATE_EXPIRED, member.id, f"{detail} by {whose} clock")
        elif early_ms > 0:
            detail = f"its certificate isn't valid before {_hours(early_ms)} from now by its clock"
            yield Finding(Kind.CERTIFICATE_EARLY, member.id, detail)
        elif expires_ms and left_ms < EXPIRES_MS:
            detail = f"its certificate, or its authority's, expires in {left_ms // _DAY_MS} days"
            yield Finding(Kind.CERTIFICATE_EXPIRES, member.id, detail)
        if next_ms := health.next_certificate_ms:
            until = "any more"
            if next_ms > now_ms:
                until = f"before {_hours(next_ms - now_ms)} from now"
            detail = f"the one in its files isn't valid {until} by its clock, so it isn't shown"
            yield Finding(Kind.CERTIFICATE_WAITS, member.id, detail)


def _corrected(now_ms: int, off_ms: float | None) -> int:
    """What a majority's clocks show when one shows `now_ms` that is so far ahead of them."""
    return now_ms if off_ms is None or not math.isfinite(off_ms) else int(now_ms - off_ms)


def _hours(ms: int) -> str:
    return f"{-(-ms // _HOUR_MS)} hours"


def _addresses(picture: _Picture) -> Iterator[Finding]:
    """Where members believe that each other is: by their `[peers]`, or else by the log."""
    logged = {each.id: each.address for each in picture.named}
    believed: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for member in picture.formed:
        for peer in member.peers:
            believed[peer.id][peer.address] += bool(peer.address)
    for member in picture.formed:
        for peer in member.peers:
            if peer.id not in logged:
                continue  # it leaves, or its log ends before the one that names others
            usual = min(believed[peer.id].items(), key=lambda each: (-each[1], each[0]))[0]
            right = logged[peer.id] or usual
            if not peer.address:
                detail = f"neither its [peers] nor the log says where {peer.id} is"
                yield Finding(Kind.ADDRESSES_DIFFER, member.id, detail)
            elif peer.address != right:
                whose = "the log" if logged[peer.id] else "others"
                detail = f"{peer.id} is configured at {peer.address}, by {whose} at {right}"
                yield Finding(Kind.ADDRESSES_DIFFER, member.id, detail)


def _names(members: Set[str]) -> str:
    return ", ".join(sorted(members))


def _levels(picture: _Picture) -> Iterator[Finding]:
    """Whose program is older: below what is in use, which no member applies that doesn't know it,
    or only below what is installed elsewhere."""
    newest = max((each.known_level for each in picture.formed), default=0)
    used = max((each.level for each in picture.formed), default=0)
    for member in picture.formed:
        if 0 < member.known_level < used:
            if not member.apply_stopped:  # or that is said already
                detail = (
                    f"its program knows level {member.known_level}, and the group uses {used}: it "
                    "applies nothing of that, and can't be filled where a log begins behind it"
                )
                yield Finding(Kind.APPLY_STOPPED, member.id, detail)
        elif member.known_level < newest:
            detail = (
                f"its program knows level {member.known_level}, another member's {newest}, which "
                "isn't used until all know it"
            )
            yield Finding(Kind.LEVEL_BELOW, member.id, detail)
        elif member.health is None:
            detail = "its program is older than the questions that the doctor asks"
            yield Finding(Kind.LEVEL_BELOW, member.id, detail)


def _bounds(picture: _Picture) -> Iterator[Finding]:
    """What is in use is the log's, and so the group's: by who has most of it. Snapshots' sizes are
    each member's."""
    fullest: dict[str, FillFacts] = {}
    for member in picture.formed:
        for fill in (member.health or _NO_HEALTH).fills:
            if not fill.limit:
                continue
            known = fullest.get(fill.what)
            if known is None or known.used * fill.limit < fill.used * known.limit:
                fullest[fill.what] = fill
    for what, fill in sorted(fullest.items()):
        if fill.used >= NEARLY_FULL * fill.limit:
            yield Finding(Kind.BOUND_NEAR, "", f"{fill.used} of {fill.limit} {what}")
