"""Whether, and as what, a group can be formed, from what its members say of themselves.

Pure: a founding is a function of the descriptions, so whoever asks the same members computes the
same one. A founding that some member has taken already is the only one that there can be: it is
finished, or the group isn't formed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from broker.forming.errors import FormationRefused
from dledger.core.types import NodeId
from dledger.level import DELIVERY_LEVEL
from store.starting.founding import Founding, configuration_bytes

UNFORMED, LEGACY, JOINING, FORMED = "unformed", "legacy", "joining", "formed"
MEMBERS = (JOINING, FORMED)  # states of directories that need no forming


@dataclass(frozen=True, slots=True)
class Description:
    """A member, as it sees itself.

    Attributes:
        state: of its directory (`store.directory.DirectoryState`).
        founding: that it was prepared for; None: for none.
        last_index, last_term: the end of its log.
        peers: its table of members and addresses, sorted.
        known_level: of formats and commands, to its program; 0: it doesn't say, as none did before
            level 9.
    """

    broker_group: str
    node_id: str
    segment_size_bytes: int
    disk_id: bytes
    born_ms: int
    state: str
    founding: Founding | None
    last_index: int
    last_term: int
    peers: tuple[tuple[str, str], ...]
    known_level: int = 0


def check_program(itself: Description, level: int) -> None:
    """Returns unless the program there may be too old for what a group uses: as a member it would
    apply nothing, and where the group's logs begin behind a raise it couldn't be filled. One that
    doesn't say what it knows is of level 8 or of one before, and is believed to know that.

    Raises:
        FormationRefused: it is.
    """
    known = itself.known_level or DELIVERY_LEVEL
    if known < level:
        at_most = "" if itself.known_level else "at most "
        raise FormationRefused(
            f"the program of {itself.node_id} knows {at_most}level {known}, and the group uses "
            f"level {level}: install the version of the others there"
        )


def founding_of(members: Sequence[Description], *, adopt: bool) -> Founding | None:
    """What to form the group as; None: it is formed already.

    Args:
        members: what every member said.
        adopt: whether directories of the version before are to be taken in.

    Raises:
        FormationRefused: it can't be formed; the text names the member and what to do.
    """
    _check_agreement(members)
    _check_one_group(members)
    if all(each.state in MEMBERS for each in members):
        return None
    known = {each.founding.name: each.founding for each in members if each.founding}
    if len(known) > 1:
        raise FormationRefused(
            f"members were prepared for {len(known)} different foundings: empty the directories "
            "that are not formed, and form the group again"
        )
    for founding in known.values():
        if any(each.state == FORMED for each in members):
            _check_lost(members, founding)  # it may have grown since, and lost one of the first
        _check_founders(members, founding)
        _check_lost(members, founding)
        return founding
    _check_fresh(members, adopt=adopt)
    return _composed(members, adopt=adopt)


def prepared_beside_formed(members: Sequence[Description]) -> list[tuple[Description, str]]:
    """Who was prepared for the founding by which another one is formed, on the disk that it means,
    and the founding's name. All were prepared then: nothing can keep these from being formed."""
    founded = [each.founding for each in members if each.state == FORMED and each.founding]
    return [
        (each, founding.name)
        for each in members
        for founding in founded[:1]
        if each.state not in MEMBERS
        and each.founding is not None
        and each.founding.name == founding.name
        and founding.members.disk_of(NodeId(each.node_id)) == each.disk_id
    ]


def prepared_beside_joined(members: Sequence[Description]) -> list[tuple[Description, str]]:
    """As `prepared_beside_formed`, where some of the members came in since, by no founding, and all
    others are formed by it or prepared for it: nobody needs to be prepared any more, and who came
    in couldn't be. Empty: so it isn't."""
    has_joined = any(each.state in MEMBERS and each.founding is None for each in members)
    left = [each for each in members if each.state not in MEMBERS]
    beside = prepared_beside_formed(members) if has_joined else []
    return beside if len(beside) == len(left) else []


def _check_agreement(members: Sequence[Description]) -> None:
    """All of them belong together, and nobody is missing."""
    first = members[0]
    _check_same(members, "broker group", lambda each: each.broker_group)
    _check_same(members, "segment size", lambda each: each.segment_size_bytes)
    _check_same(members, "[peers]", lambda each: each.peers)
    names = sorted(each.node_id for each in members)
    wanted = sorted(name for name, _ in first.peers)
    if names != wanted:
        raise FormationRefused(
            f"[peers] has {', '.join(wanted)}; at their addresses are {', '.join(names)}"
        )
    disks = {each.disk_id: each.node_id for each in members}
    for each in members:
        if disks[each.disk_id] != each.node_id:
            raise FormationRefused(
                f"{each.node_id} and {disks[each.disk_id]} are on the same disk "
                f"{each.disk_id.hex()}: one directory is a copy of the other; empty one of them"
            )


def _check_one_group(members: Sequence[Description]) -> None:
    """Nobody is a member of another group than somebody else is, and not everybody is still to be
    taken in by one. Who came in since has no founding: the log names it, and who formed the group
    may be gone by now."""
    formed: dict[str, list[str]] = {}
    for each in members:
        if each.state == FORMED and each.founding is not None:
            formed.setdefault(each.founding.name, []).append(each.node_id)
    if len(formed) > 1:
        told = "; ".join(f"{', '.join(names)} in {name}" for name, names in formed.items())
        raise FormationRefused(
            f"members were formed, {told}: they are of different groups of this name. Keep those "
            "of one, empty the directories of the others, and take them in: `dledger member add`"
        )
    if all(each.state == JOINING for each in members):
        names = ", ".join(each.node_id for each in members)
        raise FormationRefused(
            f"{names} are being taken in, and none of them is a member yet: `dledger member add` "
            "or `dledger group replace` in that group goes on. To form a group of them instead, "
            "empty their directories"
        )


def _check_same(
    members: Sequence[Description], what: str, fact: Callable[[Description], object]
) -> None:
    first = members[0]
    for each in members:
        if fact(each) != fact(first):
            raise FormationRefused(
                f"{what} is {fact(each)} on {each.node_id} and {fact(first)} on {first.node_id}"
            )


def founders_of(founding: Founding) -> tuple[tuple[str, str], ...]:
    """Whom a founding makes members, and where it says that they are found, as [peers] does."""
    addresses = dict(founding.members.addresses)
    return tuple((node, addresses.get(node, "")) for node in sorted(founding.members.members()))


def as_told(peers: Sequence[tuple[str, str]]) -> str:
    """A table of members, in a line."""
    return ", ".join(f"{node} at {address}" for node, address in peers)


def _check_founders(members: Sequence[Description], founding: Founding) -> None:
    """The founding makes those members that are asked, and it has their addresses: it would be a
    group of whoever it was begun with. Once somebody is formed it is the log that says where
    members are found."""
    founders, peers = founders_of(founding), members[0].peers
    formed = [each.node_id for each in members if each.state == FORMED and each.founding]
    names, wanted = (", ".join(node for node, _ in each) for each in (founders, peers))
    if formed and names != wanted:
        raise FormationRefused(
            f"{', '.join(formed)} was formed in a group of {names}, and [peers] has {wanted}: form "
            "it as it was begun, then `dledger member add` and `member remove`; if one that was "
            "added since has lost its disk: `dledger group replace ID`"
        )
    if not formed and founders != peers:
        prepared = [each.node_id for each in members if each.founding is not None]
        directories = "directory" if len(prepared) == 1 else "directories"
        raise FormationRefused(
            f"{', '.join(prepared)} was prepared for a group of {as_told(founders)}, and [peers] "
            f"has {as_told(peers)}: if nobody ever was formed nothing is stored: empty the "
            f"{directories} of {', '.join(prepared)}, or form the group as it was begun"
        )


def _check_lost(members: Sequence[Description], founding: Founding) -> None:
    """Of those that the founding makes members nobody has lost a disk, or what was on it."""
    meant = founding.members.members()
    known = [each for each in members if each.state in MEMBERS or each.node_id in meant]
    _check_disks(known, founding)
    _check_prepared(known)


def _check_disks(members: Sequence[Description], founding: Founding) -> None:
    """Everybody who is still to be formed is the disk that the founding means."""
    for each in members:
        if each.state in MEMBERS:
            continue
        named = founding.members.disk_of(NodeId(each.node_id))
        if named == each.disk_id:
            continue
        lost = f"`dledger group replace {each.node_id}`, once the others are formed"
        if not any(one.state in MEMBERS for one in members):
            lost = "if nobody ever was formed nothing is stored: empty the directories of all"
        raise FormationRefused(
            f"{each.node_id} is on disk {each.disk_id.hex()}, and the group was prepared with "
            f"{named.hex() or 'none'}: is its disk mounted? If it is lost: {lost}"
        )


def _check_prepared(members: Sequence[Description]) -> None:
    """Nobody has forgotten that it was prepared: all were before anybody was formed."""
    formed = [each.node_id for each in members if each.state in MEMBERS]
    for each in members:
        if formed and each.state not in MEMBERS and each.founding is None:
            raise FormationRefused(
                f"{each.node_id} was prepared before {formed[0]} was formed, and doesn't know: an "
                "older copy of its directory was put back. Empty it, then "
                f"`dledger group replace {each.node_id}`"
            )


def _check_fresh(members: Sequence[Description], *, adopt: bool) -> None:
    """Nobody was formed before, and all of them come from the same version."""
    for each in members:
        if each.state in MEMBERS:
            others = ", ".join(o.node_id for o in members if o.state not in MEMBERS)
            raise FormationRefused(
                f"{each.node_id} is a member of a group already: is the disk of {others} mounted? "
                "If it is lost: `dledger group replace ID`"
            )
    legacy = [each.node_id for each in members if each.state == LEGACY]
    if adopt and len(legacy) < len(members):
        raise FormationRefused("there is nothing to adopt on every member: init without --adopt")
    if legacy and not adopt:
        raise FormationRefused(
            f"{', '.join(legacy)}: the directory was made by the version before and holds a log; "
            "`dledger group init --adopt` takes it in as it is"
        )
    empty = [each.node_id for each in members if each.last_index == 0]
    if adopt and empty and len(empty) < len(members):
        raise FormationRefused(
            f"the log of {', '.join(empty)} is empty and others' aren't: is the right disk "
            "mounted? Let it catch up in the version before, then adopt"
        )


def _composed(members: Sequence[Description], *, adopt: bool) -> Founding:
    first = members[0]
    births = sorted(each.born_ms for each in members)
    disks = {each.node_id: each.disk_id for each in members}
    return Founding(
        broker_group=first.broker_group,
        segment_size_bytes=first.segment_size_bytes,
        # The lower median: one wall clock that is wrong doesn't move it far.
        time_ms=births[(len(births) - 1) // 2],
        configuration=configuration_bytes(disks, dict(first.peers)),
        is_adopted=adopt,
    )
