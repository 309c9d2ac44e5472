"""The nemeses: what goes wrong, by name.

Each strikes its victims and heals them again; `docs/chaos.md` has the table. A nemesis does one
thing to processes, links or disks through the `Arena` and knows nothing of schedules. Where
something is drawn, it is drawn from the strike's own random source, so that a seed repeats it as
far as real time allows.

Source: Jepsen's nemeses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from chaos.errors import NothingStruck
from chaos.real.absences import (
    bring_back,
    dismiss_member,
    kill_member,
    pause_member,
    resume_member,
)
from chaos.real.blow import Act, Blow
from chaos.real.churn import come_back, demote, leave, promote
from chaos.real.damage import (
    FILES,
    HOW,
    WHERE,
    WHICH,
    await_repair,
    put_back,
    replace_rotten,
    rot,
    rot_below,
    set_aside,
)
from chaos.real.links import (
    around,
    bridge,
    clear,
    cut_off,
    cutting,
    deaf,
    isolated,
    lossy,
    mute,
    repeating,
    ring,
    scattered,
    silencing,
    slow,
    unanswered,
    unheard,
    unreached,
    worsening,
)
from chaos.real.lost_disks import WAYS, lose, make_good
from chaos.real.processes import (
    kill,
    pause,
    restart_again_and_again,
    resume,
    retime,
    start,
    terminate,
    time_as_before,
)
from chaos.real.scenario import Choices, Option
from chaos.real.surroundings import (
    OPERATIONS,
    cut_power,
    drifting_clock,
    fail_disk,
    flipping_clock,
    full_disk,
    ordering,
    replace_failed_disk,
    rescind,
    slow_disk,
    stepped_clock,
)
from dledger.client import ClientError, Outcome

TRANSFER_DEADLINE_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class Nemesis:
    """One kind of fault.

    Attributes:
        target: whom it strikes unless the scenario says otherwise; empty: nobody in particular.
        options: names and defaults; of a choice, everything there is, the default first.
        strike, heal: do it, and say in a few words what was done (may be empty).
        is_momentary: whether the strike is all of it: there is nothing to heal.
        ends_leadership: whether a leader that is hit leads no longer, so that the time to the
            next leader's first acknowledgement is worth measuring.
    """

    name: str
    summary: str
    target: str
    options: Mapping[str, Option | Choices]
    strike: Act
    heal: Act
    ends_leadership: bool = False
    is_momentary: bool = False

    def defaults(self) -> dict[str, Option]:
        """Each option as it is unless a scenario says otherwise."""
        return {
            name: value[0] if isinstance(value, tuple) else value
            for name, value in self.options.items()
        }


async def _transfer(blow: Blow) -> str:
    try:
        leader = await blow.client.transfer_leadership(deadline_s=TRANSFER_DEADLINE_S)
    except ClientError as error:
        if error.outcome is Outcome.DID_NOT_HAPPEN:
            raise NothingStruck(f"refused: {error.message}") from error
        return f"perhaps: {error.message}"
    return f"to {leader.node_id}"


async def _nothing(_: Blow) -> str:
    return ""


_NONE: Final[Mapping[str, Option | Choices]] = {}

NEMESES: Final[dict[str, Nemesis]] = {
    each.name: each
    for each in (
        Nemesis("kill", "SIGKILL", "leader", _NONE, kill, start, ends_leadership=True),
        Nemesis("terminate", "SIGTERM, and waits for the end", "one", _NONE, terminate, start),
        Nemesis(
            "restart-loop",
            "SIGKILL and start, several times",
            "one",
            {"times": 3},
            restart_again_and_again,
            start,
        ),
        Nemesis("pause", "SIGSTOP", "leader", _NONE, pause, resume, ends_leadership=True),
        Nemesis("kill-member", "SIGKILL of a group's member", "", _NONE, kill_member, bring_back),
        Nemesis(
            "dismiss-member",
            "SIGTERM of a group's member, which works off what it has and says goodbye",
            "",
            _NONE,
            dismiss_member,
            bring_back,
        ),
        Nemesis(
            "pause-member", "SIGSTOP of a group's member", "", _NONE, pause_member, resume_member
        ),
        Nemesis(
            "transfer",
            "hands leadership over",
            "",
            _NONE,
            _transfer,
            _nothing,
            is_momentary=True,
        ),
        Nemesis(
            "leave",
            "members are let go, and killed; they are taken in again on empty directories",
            "follower",
            _NONE,
            leave,
            come_back,
            ends_leadership=True,
        ),
        Nemesis(
            "demote",
            "members go on as observers; then they vote again",
            "follower",
            _NONE,
            demote,
            promote,
            ends_leadership=True,
        ),
        Nemesis(
            "isolate",
            "cuts the victims from all other nodes",
            "leader",
            _NONE,
            cutting(isolated),
            clear,
            ends_leadership=True,
        ),
        Nemesis("scatter", "cuts everybody from everybody", "", _NONE, cutting(scattered), clear),
        Nemesis(
            "silence",
            "drops every packet between nodes; connections notice the heal as TCP does",
            "",
            _NONE,
            silencing(scattered),
            clear,
        ),
        Nemesis(
            "vanish",
            "drops every packet from and to the victims, clients' too; nothing is reset",
            "leader",
            _NONE,
            silencing(cut_off),
            clear,
            ends_leadership=True,
        ),
        Nemesis(
            "deafen",
            "victims send and don't hear",
            "leader",
            _NONE,
            cutting(deaf),
            clear,
            ends_leadership=True,
        ),
        Nemesis(
            "mute",
            "victims hear and can't send",
            "leader",
            _NONE,
            cutting(mute),
            clear,
            ends_leadership=True,
        ),
        Nemesis(
            "cut-off",
            "cuts the victims from peers and clients",
            "leader",
            _NONE,
            cutting(cut_off),
            clear,
            ends_leadership=True,
        ),
        Nemesis(
            "client-cut",
            "cuts clients from the victims, whose peers reach them",
            "leader",
            _NONE,
            cutting(unreached),
            clear,
        ),
        Nemesis(
            "client-deaf",
            "what clients ask arrives, the answers don't",
            "leader",
            _NONE,
            cutting(unanswered),
            clear,
        ),
        Nemesis(
            "client-mute",
            "what clients ask doesn't arrive",
            "leader",
            _NONE,
            cutting(unheard),
            clear,
        ),
        Nemesis("ring", "each sees a majority, no two the same", "", _NONE, cutting(ring), clear),
        Nemesis("bridge", "two halves, one node sees both", "", _NONE, cutting(bridge), clear),
        Nemesis(
            "slow-network",
            "packets of the victims take longer",
            "all",
            {"delay_ms": 20, "jitter_ms": 30},
            worsening(around, slow),
            clear,
        ),
        Nemesis(
            "lossy-network",
            "packets of the victims get lost and are sent again",
            "all",
            {"loss": 0.05},
            worsening(around, lossy),
            clear,
        ),
        Nemesis(
            "one-way-loss",
            "what the victims send gets lost and is sent again; what they are sent doesn't",
            "leader",
            {"loss": 0.3},
            worsening(mute, lossy),
            clear,
        ),
        Nemesis(
            "far-network",
            "every packet between nodes takes so long that no answer comes within a timeout",
            "",
            {"delay_ms": 1000, "jitter_ms": 500},
            worsening(scattered, slow),
            clear,
        ),
        Nemesis(
            "repeating-network",
            "connections break after delivery, so that messages are sent twice",
            "all",
            {"chance": 0.02},
            worsening(around, repeating),
            clear,
        ),
        Nemesis(
            "power-cut",
            "SIGKILL, and what was not synced is lost",
            "one",
            _NONE,
            cut_power,
            start,
            ends_leadership=True,
        ),
        Nemesis(
            "slow-disk",
            "each fsync takes longer",
            "one",
            {"delay_ms": 300},
            ordering(slow_disk),
            rescind,
        ),
        Nemesis(
            "full-disk",
            "the disk is full, to the byte, after so many more bytes",
            "one",
            {"free_bytes": 3 << 20},
            ordering(full_disk),
            rescind,
        ),
        Nemesis(
            "failing-disk",
            "an operation fails, and the node must stop",
            "one",
            {"operation": OPERATIONS, "errno": "EIO"},
            fail_disk,
            replace_failed_disk,
            ends_leadership=True,
        ),
        Nemesis(
            "rot",
            "SIGKILL, and a cold segment is spoilt",
            "follower",
            {"how": HOW},
            rot,
            replace_rotten,
        ),
        Nemesis(
            "live-rot",
            "a bit of a closed segment flips below a node that runs, which gets it back",
            "leader",
            {"where": WHERE, "which": WHICH},
            rot_below,
            await_repair,
        ),
        Nemesis(
            "old-copy",
            "a file is copied; at the heal SIGKILL, and the copy is put back",
            "follower",
            {"file": FILES},
            set_aside,
            put_back,
        ),
        Nemesis(
            "lost-disk",
            "a directory is emptied below its node, or is no longer mounted: it must be no member",
            "one",
            {"how": WAYS},
            lose,
            make_good,
            ends_leadership=True,
        ),
        Nemesis(
            "clock-step",
            "the wall clock jumps",
            "one",
            {"offset_ms": -60_000},
            ordering(stepped_clock),
            rescind,
        ),
        Nemesis(
            "clock-drift",
            "the wall clock runs too fast or too slow",
            "one",
            {"rate": 1.25},
            ordering(drifting_clock),
            rescind,
        ),
        Nemesis(
            "clock-strobe",
            "the wall clock flips to and fro",
            "one",
            {"offset_ms": 200, "period_ms": 5},
            ordering(flipping_clock),
            rescind,
        ),
        Nemesis(
            "timer-drift",
            "SIGTERM; elections and heartbeats go by ticks of another length",
            "one",
            {"tick_ms": 8},
            retime,
            time_as_before,
        ),
    )
}
