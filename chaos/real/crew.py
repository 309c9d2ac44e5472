"""The members of consumer groups under test: processes, what they wrote down, what became of it.

    made      `start`        at work      each member has a process (`chaos.real.member`)
    at work   `kill`, …      as struck    faults hit processes by number, never a name that moved on
    at work   `drained`      through      the groups have committed everything that is stored, and
                                          done what failed
    through   `dismiss`      over         SIGTERM, goodbye; then the books are read

This owns those processes and their books; it signals no other process. A member that ends though
nobody stopped it is a finding. What the books show is `chaos.checkers.deliveries`' matter.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, Final

from chaos.checkers.deliveries import Group, Handling, How, Style, Told, Troubles
from chaos.errors import RunBroken
from chaos.real.patience import MOST_S, Patience
from chaos.real.workload import TOPIC
from dledger.client import Client, ClientError
from dledger.terminal.loops import uninterrupted

GONE_TIMEOUT_S: Final = 45.0  # SIGTERM: handlers have 30 s to end, and commit
ASK_EVERY_S: Final = 0.25
ASK_DEADLINE_S: Final = 3.0
POLL_S: Final = 0.05
BOOKS_FOLDER: Final = "members"
CREW_FILE: Final = "crew.json"
GROUPS: Final = {
    "any-order": Style.ANY_ORDER,
    "in-order": Style.IN_ORDER,
    "one-by-one": Style.SINGLY,
}


@dataclass(slots=True)
class Process:
    """One process of a member. `number`: which of the member's, from 1 on."""

    group: str
    member: str
    number: int
    popen: subprocess.Popen[bytes]
    book: Path
    begun_us: int
    is_meant_to_end: bool = False
    asked_to_end_us: int | None = None  # by SIGKILL or SIGTERM
    stopped_at_us: int | None = None  # by SIGSTOP, and not gone on since
    pauses: list[tuple[int, int]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Member and number."""
        return f"{self.member}#{self.number}"

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self.popen.poll() is None


@dataclass(frozen=True, slots=True)
class Death:
    """A member that was killed: which process, and when, by the machine's monotonic clock."""

    group: str
    process: str
    at_us: int


class Crew:
    """All members of all groups; made by `crew`."""

    def __init__(self, folder: Path, addresses: Sequence[str], members: int, seed: int) -> None:
        self._folder = folder
        self._addresses = ",".join(addresses)
        self._seed = seed
        self.names = {
            name: [f"{name}-{number}" for number in range(1, members + 1)] for name in GROUPS
        }
        self._processes: list[Process] = []
        self._told: dict[str, list[Told]] = {name: [] for name in GROUPS}
        self._known: dict[str, dict[int, int]] = {name: {} for name in GROUPS}
        self.deaths: list[Death] = []
        self.struck: dict[str, Process] = {}  # by a strike's label: whom it hit

    # --- processes ----------------------------------------------------------------------------

    def start_all(self) -> None:
        """Every member has a process."""
        for group, members in self.names.items():
            for member in members:
                self.start(group, member)

    def start(self, group: str, member: str) -> None:
        """A process for the member, unless it has one."""
        if self.process_of(member) is not None:
            return
        number = 1 + sum(each.member == member for each in self._processes)
        book = self._folder / f"{member}.{number}.jsonl"
        words = [
            *(self._addresses, group, member, GROUPS[group]),
            *(TOPIC, str(book), f"{self._seed} {member} {number}"),
        ]
        with self._errors_of(book).open("wb") as errors:
            popen = subprocess.Popen(
                [sys.executable, "-P", "-m", "chaos.real.member", *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )
        self._processes.append(Process(group, member, number, popen, book, _now_us()))

    def process_of(self, member: str) -> Process | None:
        """The one that runs; None: there is none."""
        found = [each for each in self._processes if each.member == member and each.is_running]
        return found[-1] if found else None

    def draw(self, chance: Random) -> Process | None:
        """One that runs, and isn't paused; None: there is none."""
        fit = [each for each in self._processes if each.is_running and each.stopped_at_us is None]
        return chance.choice(fit) if fit else None

    def kill(self, process: Process) -> None:
        """SIGKILL."""
        process.is_meant_to_end = True
        self.resume(process)  # what was paused until now counts as paused
        process.asked_to_end_us = _now_us()
        self.deaths.append(Death(process.group, process.name, process.asked_to_end_us))
        self._signal(process, signal.SIGKILL)

    def terminate(self, process: Process) -> None:
        """SIGTERM: it is asked to end."""
        process.is_meant_to_end = True
        process.asked_to_end_us = _now_us()
        self._signal(process, signal.SIGTERM)

    def pause(self, process: Process) -> None:
        """SIGSTOP."""
        process.stopped_at_us = _now_us()
        self._signal(process, signal.SIGSTOP)

    def resume(self, process: Process) -> None:
        """SIGCONT; nothing if it isn't paused."""
        if process.stopped_at_us is not None:
            self._signal(process, signal.SIGCONT)
            process.pauses.append((process.stopped_at_us, _now_us()))
            process.stopped_at_us = None

    async def gone(self, process: Process) -> bool:
        """Waits until it has ended; whether it has in time."""
        deadline = time.monotonic() + GONE_TIMEOUT_S
        while process.is_running and time.monotonic() < deadline:  # noqa: ASYNC110  a process
            await asyncio.sleep(POLL_S)
        return not process.is_running

    def _signal(self, process: Process, number: signal.Signals) -> None:
        if process.is_running:
            os.kill(process.popen.pid, number)  # it isn't reaped, so the number is still its own

    def ended_by_themselves(self) -> list[str]:
        """What to say of processes that nobody stopped; each once."""
        found: list[str] = []
        for process in self._processes:
            if not process.is_meant_to_end and not process.is_running:
                process.is_meant_to_end = True
                lines = self._errors_of(process.book).read_text(errors="replace").splitlines()[-2:]
                code = process.popen.returncode
                found.append(f"{process.name} ended by itself with {code}: {' / '.join(lines)}")
        return found

    @staticmethod
    def _errors_of(book: Path) -> Path:
        return book.with_suffix(".log")

    # --- what the brokers say -----------------------------------------------------------------

    async def watch(self, client: Client) -> None:
        """Asks again and again how far the groups are, until it is cancelled."""
        while True:
            for group in GROUPS:
                try:
                    await self._ask(client, group)
                except ClientError:
                    continue
            await asyncio.sleep(ASK_EVERY_S)

    async def _ask(self, client: Client, group: str) -> dict[int, int]:
        offsets = await client.fetch_offsets(group, TOPIC, deadline_s=ASK_DEADLINE_S)
        at_us = _now_us()
        known = self._known[group]
        for queue_id, offset in offsets.items():
            if known.get(queue_id) != offset:
                known[queue_id] = offset
                self._told[group].append(Told(at_us, queue_id, offset))
        return offsets

    async def drained(self, client: Client, queues: int, lasted_s: float) -> str:
        """Waits until the groups have committed everything that is stored; what is missing when
        nothing has moved for too long, empty if nothing is. `lasted_s`: a run that went on for so
        long may have left as much to be done."""
        patience = Patience(most_s=max(MOST_S, lasted_s))
        while True:
            missing, reached = "", 0
            try:
                ends = [
                    (await client.queue_offsets(TOPIC, each, deadline_s=ASK_DEADLINE_S)).max_offset
                    for each in range(queues)
                ]
                for group in GROUPS:
                    offsets = await self._ask(client, group)
                    reached += sum(offsets.values())
                    left = sum(ends) - sum(offsets.values())
                    if left:
                        missing = f"{group} has {left:,} messages left to commit"
            except ClientError as error:
                missing = str(error)
            if not missing and (left := len(self._failed())):
                missing = f"{left:,} messages that failed haven't been done"
            if not missing or patience.is_over(reached):
                return missing
            await asyncio.sleep(ASK_EVERY_S)

    def _failed(self) -> set[tuple[str, str]]:
        """By group and value: messages that a handler failed at and none has done since. They were
        committed as they went back to the brokers, and come again (ADR 58)."""
        failed: set[tuple[str, str]] = set()
        done: set[tuple[str, str]] = set()
        for process in self._processes:
            for each in _handlings(process.name, process.book):
                kind = failed if each.how is How.FAILED else done if each.how is How.DONE else None
                if kind is not None:
                    kind.add((process.group, each.value))
        return failed - done

    # --- the end ------------------------------------------------------------------------------

    async def dismiss(self) -> list[str]:
        """Everybody says goodbye and ends; what to say of those that don't, or end badly."""
        running = [each for each in self._processes if each.is_running]
        for process in running:
            self.resume(process)
            self.terminate(process)
        found: list[str] = []
        for process in running:
            if not await self.gone(process):
                found.append(f"{process.name} still runs {GONE_TIMEOUT_S:g} s after SIGTERM")
            elif process.popen.returncode:
                found.append(f"{process.name} ends with {process.popen.returncode}")
        return found

    def end(self) -> None:
        """No process is left, whatever state it is in."""
        for process in self._processes:
            if process.is_running:
                process.popen.kill()
            process.popen.wait()
            if process.popen.stdin is not None:
                process.popen.stdin.close()

    def save(self, zero_us: int) -> None:
        """What the books don't say lies beside them; the processes have ended.

        Args:
            zero_us: when the run's clock began, by the machine's.
        """
        facts = {
            "zero_us": zero_us,
            "deaths": [asdict(death) for death in self.deaths],
            "groups": [
                {
                    "name": name,
                    "style": style,
                    "told": self._told[name],
                    "processes": [
                        {
                            "name": each.name,
                            "book": each.book.name,
                            "lines": len(_lines(each.book)),
                            "pauses": each.pauses,
                            "asked_to_end_us": each.asked_to_end_us,
                        }
                        for each in self._processes
                        if each.group == name
                    ],
                }
                for name, style in GROUPS.items()
            ],
        }
        (self._folder / CREW_FILE).write_text(json.dumps(facts) + "\n", encoding="utf-8")


@asynccontextmanager
async def crew(
    folder: Path, addresses: Sequence[str], members: int, seed: int
) -> AsyncIterator[Crew]:
    """So many members of each group, not started yet; none is left afterwards.

    Args:
        folder: gets the members' books; is made.
        members: of each group; 0: there are no groups.
    """
    if members:
        folder.mkdir()
    made = Crew(folder, addresses, members, seed)
    try:
        yield made
    finally:
        with uninterrupted():
            made.end()


@dataclass(frozen=True, slots=True)
class Deliveries:
    """What a run's members did, as their folder has it."""

    groups: list[Group]
    deaths: list[Death]
    zero_us: int  # when the run's clock began, by the members'


def read_deliveries(folder: Path) -> Deliveries | None:
    """What a run has left in its members' folder; None: it had no members, or didn't come to its
    end.

    Raises:
        RunBroken: what lies there can't be read, or isn't all that the run had left; or an earlier
            release left it, and said less.
    """
    file = folder / CREW_FILE
    if not file.exists():
        return None
    try:
        facts = json.loads(file.read_text(encoding="utf-8"))
        groups = [_group(folder, each) for each in facts["groups"]]
        return Deliveries(
            groups, [Death(**each) for each in facts["deaths"]], int(facts["zero_us"])
        )
    except KeyError as error:
        why = f"made by an earlier release, which didn't tell {error}: this one can't judge it"
        raise RunBroken(file, why) from error
    except (ValueError, TypeError, OSError) as error:
        raise RunBroken(file, f"is no account of members: {error}") from error


def _group(folder: Path, facts: dict[str, Any]) -> Group:
    processes = facts["processes"]
    for one in processes:
        _check_book(folder / one["book"], one["lines"])
    return Group(
        facts["name"],
        Style(facts["style"]),
        [each for one in processes for each in _handlings(one["name"], folder / one["book"])],
        [Told(*each) for each in facts["told"]],
        {one["name"]: [(a, b) for a, b in one["pauses"]] for one in processes},
        Troubles(
            ends={
                one["name"]: int(one["asked_to_end_us"])
                for one in processes
                if one["asked_to_end_us"] is not None
            }
        ),
    )


def _check_book(book: Path, lines: int) -> None:
    """Raises: RunBroken: it isn't as long as when its run ended. One that stops between two lines
    would show less than was found, and the run might hold."""
    if (found := len(_lines(book))) != lines:
        raise RunBroken(book, f"cut short: it has {found:,} lines, the run wrote {lines:,}")


def _handlings(process: str, book: Path) -> list[Handling]:
    """What a process' book says. A line that was cut short by SIGKILL is none."""
    found: dict[int, Handling] = {}  # by the number of the call
    for line in map(json.loads, _lines(book)):
        us, what, call = int(line["us"]), str(line["what"]), int(line["call"])
        if what != "begin" and call not in found:
            raise ValueError(f"{book.name}: call {call} didn't begin")
        if what == "begin":
            value, asked_us = str(line["value"]), line.get("asked")
            found[call] = Handling(process, value, us, us, How.OPEN, asked_us)
        elif what == "settled":
            found[call] = replace(found[call], settled_us=us)
        else:
            found[call] = replace(found[call], ended_us=us, how=How(what))
    return list(found.values())


def _lines(book: Path) -> list[bytes]:
    """The lines that are whole; none of a process that was killed before it had begun."""
    return book.read_bytes().split(b"\n")[:-1] if book.exists() else []


def _now_us() -> int:
    return time.monotonic_ns() // 1000
