"""One bit after the other flips in a member's files, and each is judged.

    flip      a bit of a random file, below a member that runs; in pairs another member's as well
    read      everything through the client, from the member that was hit where it leads
    scrub     a whole pass of it goes by that began after the flip
    judge     is the byte what it was, or the file another? If not, the member stops and starts: a
              file that only a start reads is found there, or never
    rebuild   a member that refuses to start, or has ended, gets an empty disk
    compare   the members' logs and ConsumeQueues, and everything is read from the one that was hit

A member writes some of its files anew again and again, and when it stops. So that a start meets the
flip all the same, it befalls such a file once more while the member is down.

What must hold: no reader is ever given another byte, afterwards the members hold the same, and who
was hit votes. Whether each flip was found, and by whom, is told by kind of file.
"""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import Final

from chaos.errors import GroupNeverLed, ScenarioInvalid
from chaos.flips.content import QUEUES, TOPIC, Content, differences
from chaos.flips.hearing import Heard, hearing
from chaos.flips.members import SEGMENT_BYTES, Members, members
from chaos.flips.places import LOG, MEANINGLESS, Fate, Flip, draw, spans
from dledger.client import Client, ClientError

NODES: Final = 3
FIRST_MESSAGES: Final = 3_500  # two segments, of which the first goes, and then some
BETWEEN: Final = 8  # messages from one flip to the next: state and snapshots go on
PASSES: Final = 2  # the one under way may have been past the place
MAX_PROBLEMS: Final = 20


class Outcome(StrEnum):
    """What came of one flip; the first four are finds."""

    REPAIRED = "repaired"  # while the member ran, and somebody said so
    AT_START = "at a start"  # found by the next start, which did without the file or mended it
    REBUILT = "rebuilt"  # the start refused, or the member ended by itself
    WRITTEN_OVER = "written over"  # the file was replaced before anybody read it
    MEANINGLESS = "meaningless"  # nobody reads those bytes
    UNNOTICED = "unnoticed"  # through a pass of the scrub and a start


FOUND: Final = (Outcome.REPAIRED, Outcome.AT_START, Outcome.REBUILT)


@dataclass(frozen=True, slots=True)
class FlipOptions:
    """What is done. `directory` is empty, and is left with what was in it at the end."""

    flips: int
    pairs: int
    seed: int
    directory: Path
    only: tuple[str, ...] = ()  # kinds of files; none: all


@dataclass(slots=True)
class Flipped:
    """Everything that a campaign found."""

    options: FlipOptions
    outcomes: dict[str, Counter[Outcome]] = field(default_factory=lambda: defaultdict(Counter))
    events: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    problems: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)  # where a meaningful flip was never noticed
    read: int = 0
    done: int = 0
    made: int = 0  # of those done, where each member that was to be hit was

    @property
    def asked(self) -> int:
        """How many flips and pairs were asked for."""
        return self.options.flips + self.options.pairs

    @property
    def made_all(self) -> bool:
        """Whether as many were made: the others show nothing."""
        return self.made >= self.asked

    @property
    def holds(self) -> bool:
        """Nobody was given another byte, and the members are the same again, by all flips."""
        return not self.problems and self.made_all

    @property
    def found_all(self) -> bool:
        """Whether somebody noticed each flip that means something."""
        return not any(kinds[Outcome.UNNOTICED] for kinds in self.outcomes.values())

    def total(self, outcome: Outcome) -> int:
        """Over all kinds of files."""
        return sum(kinds[outcome] for kinds in self.outcomes.values())

    def facts(self) -> dict[str, object]:
        """As JSON."""
        return {
            "seed": self.options.seed,
            "flips": self.options.flips,
            "pairs": self.options.pairs,
            "done": self.done,
            "made": self.made,
            "kinds": {
                kind: {
                    **{each.value: counts[each] for each in Outcome},
                    "events": dict(self.events[kind]),
                }
                for kind, counts in sorted(self.outcomes.items())
            },
            "messages_read": self.read,
            "unnoticed": self.left,
            "problems": self.problems,
            "holds": self.holds,
            "made_all": self.made_all,
            "found_all": self.found_all,
        }


Tell = Callable[[str], None]


async def flip_bits(options: FlipOptions, tell: Tell) -> Flipped:
    """All flips, one after the other, then all pairs. Ends early when the group is beyond help.

    Raises:
        GroupNeverLed: it was made and never came to serve.
        ScenarioInvalid: nothing is to be flipped, or no member has files of one of the kinds.
    """
    done = Flipped(options)
    if not done.asked:
        raise ScenarioInvalid("flips", "neither flips nor pairs: nothing would be tested")
    with hearing() as heard:
        async with (
            members(options.directory, NODES) as group,
            Client.connect(group.addresses) as client,
        ):
            campaign = _Campaign(group, client, heard, done, tell)
            await campaign.prepare()
            for number in range(done.asked):
                if not await campaign.one(is_pair=number >= options.flips):
                    break
            done.read = campaign.content.read
    return done


@dataclass(slots=True)
class _Campaign:
    group: Members
    client: Client
    heard: Heard
    done: Flipped
    tell: Tell
    content: Content = field(init=False)
    chance: Random = field(init=False)

    @property
    def only(self) -> tuple[str, ...]:
        """The kinds of files that are hit; none: all."""
        return self.done.options.only

    def __post_init__(self) -> None:
        self.content = Content(self.done.options.seed)
        self.chance = Random(f"flips {self.done.options.seed}")

    async def prepare(self) -> None:
        """There are closed segments, snapshots, and a log that begins later than entry 1."""
        self.tell("filling the log")
        await self.client.create_topic(TOPIC, queues=QUEUES)
        for _ in range(4):
            await self.content.send(self.client, FIRST_MESSAGES // 2)
            await self.group.level()
        self.tell("letting its front go")
        await self.group.let_front_go(SEGMENT_BYTES)
        await self.content.begin(self.client)
        known = {
            kind
            for name, node in self.group.nodes.items()
            for kind in spans(self.group.directory(name), node.replica.log.end_offset)
        }
        if unknown := sorted(set(self.only) - known):
            there = ", ".join(sorted(known))
            raise ScenarioInvalid("flips", f"no files of the kind {unknown[0]}; there are {there}")

    async def one(self, *, is_pair: bool) -> bool:
        """A flip, or a pair of them, from a level group to a level group. False: there is no use in
        going on."""
        done, number = self.done, self.done.done + 1
        flips: list[tuple[str, Flip]] = []
        try:
            await self.content.send(self.client, BETWEEN)
            await self.group.level()
            self.heard.begin()
            flips = await self._flipped(is_pair=is_pair)
            self._problems(number, await self.content.read_all(self.client))
            for name, flip in flips:
                others = [self.group.directory(other) for other, _ in flips if other != name]
                outcome = await self._judged(name, flip, others)
                done.outcomes[flip.place.kind][outcome] += 1
                events = set(self.heard.of(self.group.directory(name), others))
                done.events[flip.place.kind].update(events)
                if outcome is Outcome.UNNOTICED:
                    done.left.append(f"{number}: {flip.place.file} at {flip.place.at}")
                where = f"{flip.place.kind} of {name} at {flip.place.at}"
                self.tell(f"{number}: {where}: {outcome.value}")
                flip.undo()
            if len(flips) < 1 + is_pair:
                self.tell(f"{number}: not made: too few members have files of the kinds")
            await self._compare(number, [name for name, _ in flips])
        except (GroupNeverLed, ClientError) as error:
            hit = [f"{flip.place.file} at {flip.place.at}" for _, flip in flips]
            self._problems(number, [str(error), *hit, *self.group.describe()])
            return False
        done.done = number
        done.made += len(flips) == 1 + is_pair
        return len(done.problems) < MAX_PROBLEMS

    async def _flipped(self, *, is_pair: bool) -> list[tuple[str, Flip]]:
        """The members that are hit, and their flips. Every other time the first of them leads, and
        was just started: it has nothing in its memory, and reads what it gives from its files."""
        names = self._some_with_places(1 + is_pair)
        if not names:
            return []
        if self.chance.random() < 0.5:
            await self.group.stop(names[0])
            if (refused := await self.group.start(names[0])) is not None:
                raise GroupNeverLed(f"{names[0]} doesn't start, though nothing is wrong: {refused}")
            await self.group.level()
            await self.group.lead(names[0], self.client)
            await self.group.level()
            self.heard.begin()
        found: list[tuple[str, Flip]] = []
        for name in names:
            end = self.group.nodes[name].replica.log.end_offset
            while True:
                place = draw(self.group.directory(name), end, self.chance, self.only)
                if place is None:
                    break
                # A file may just have been replaced by a newer one; another is drawn then.
                with contextlib.suppress(OSError):
                    if all(place.kind != LOG or not _meet(flip, place.at) for _, flip in found):
                        found.append((name, place.flip()))
                        break
        return found

    def _some_with_places(self, count: int) -> list[str]:
        """So many members that have a file that may be hit; none: there aren't as many."""
        found = [
            name
            for name in sorted(self.group.configs)
            for end in [self.group.nodes[name].replica.log.end_offset]
            if draw(self.group.directory(name), end, Random(0), self.only) is not None
        ]
        return self.chance.sample(found, count) if len(found) >= count else []

    async def _judged(self, name: str, flip: Flip, others: Sequence[Path]) -> Outcome:
        """What came of it; the member runs on, whole, afterwards. A file that was written anew
        while somebody spoke of another one was not repaired."""
        await self._scrubbed(name)
        if self.group.failure(name) is not None:
            await self.group.stop(name)
            await self.group.rebuild(name)
            return Outcome.REBUILT
        if flip.fate() is not Fate.STILL and self.heard.of_file(flip.place.file, others):
            return Outcome.REPAIRED
        return await self._judged_by_a_start(name, flip, others)

    async def _judged_by_a_start(self, name: str, flip: Flip, others: Sequence[Path]) -> Outcome:
        await self.group.stop(name)
        so_far = len(self.heard.events)
        met = flip
        if flip.fate() is not Fate.STILL:
            with contextlib.suppress(OSError):  # the file is no longer there
                met = flip.place.flip()
        refused = await self.group.start(name)
        if refused is not None:
            self.done.events[flip.place.kind][type(refused).__name__] += 1
            await self.group.rebuild(name)
            return Outcome.REBUILT
        await self.group.level()
        await self._scrubbed(name)
        if met.fate() is Fate.STILL:
            met.undo()
            is_meant = flip.place.kind not in MEANINGLESS
            return Outcome.UNNOTICED if is_meant else Outcome.MEANINGLESS
        heard = self.heard.since(so_far).of(self.group.directory(name), others)
        is_found = heard or self.heard.of_file(flip.place.file, others)
        return Outcome.AT_START if is_found else Outcome.WRITTEN_OVER

    async def _scrubbed(self, name: str) -> None:
        """A whole pass that begins after now is over, and what it found is put right; or the member
        has ended.

        Raises:
            GroupNeverLed: neither, in time.
        """
        node = self.group.nodes[name]
        wanted = node.replica.scrubber.statistics().passes + PASSES

        def is_over() -> bool:
            replica = node.replica
            return replica.failure is not None or (
                replica.scrubber.statistics().passes >= wanted
                and not replica.repairs.is_at_work
                and not replica.mender.statistics().queues_wrong
            )

        await self.group.until(is_over, f"{name} isn't scrubbed and sound")

    async def _compare(self, number: int, hit: Sequence[str]) -> None:
        """The members hold the same, and who was hit gives all of it."""
        await self.group.level()
        for name in hit:
            await self.group.lead(name, self.client)
            self._problems(number, await self.content.read_all(self.client))
        await self.group.level()
        replicas = [node.replica for node in self.group.nodes.values()]
        end = min(each.log.end_offset for each in replicas)
        directories = {name: self.group.directory(name) for name in self.group.configs}
        self._problems(number, differences(directories, end, SEGMENT_BYTES))

    def _problems(self, number: int, found: Sequence[str]) -> None:
        for text in found:
            self.done.problems.append(f"flip {number}: {text}")
            self.tell(f"PROBLEM: {text}")


def _meet(flip: Flip, at: int) -> bool:
    """Whether two members' flips may be in one entry, which nobody but the third could give."""
    return flip.place.kind == LOG and flip.place.at >> 16 == at >> 16
