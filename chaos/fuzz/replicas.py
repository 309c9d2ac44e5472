"""What nodes have left behind, harmed, and read by the tools: each ends soon and says what it is.

Works on copies of the data directories of a group that has ended, one of which is harmed at a time:
bytes, lengths, names and kinds of files. A tool that is given them is a process of its own with
bounded memory and time, and ends with one of its exit codes and without a traceback. Where the
harm is a byte of the log that all have, and nothing else, the verdict must be that they differ.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from chaos.fuzz.target import TRACEBACK

EACH: Final = 1_000  # requests of strangers for each try of a tool
MOST: Final = 100
TOOL_S: Final = 120.0
TOOL_BYTES: Final = 1 << 30  # of memory of its own: what it maps and reads again isn't counted
IDENTICAL: Final = 0
DIFFERENT: Final = 1
CODES: Final = (IDENTICAL, DIFFERENT, 2, 3)
TOLD_BYTES: Final = 400
# The limit is set by the child itself: nothing may run between fork and exec in a threaded process.
_CHILD: Final = """
import resource, sys
resource.setrlimit(resource.RLIMIT_DATA, (int(sys.argv[1]), int(sys.argv[1])))
sys.argv = ["dledger", *sys.argv[2:]]
from dledger_cli import main
main()
"""
HUGE: Final = 1 << 40  # bytes of a file that has nothing in it
LONG_AGO: Final = "9" * 20


@dataclass(frozen=True, slots=True)
class Ran:
    """How a tool ended; `code` is None if it didn't."""

    code: int | None
    output: bytes
    complaints: bytes


class Specimens:
    """Copies of each node's data directory in the folder `copies`, of which one is harmed.

    Args:
        originals: by the node's id; only read.
    """

    def __init__(self, originals: dict[str, Path], copies: Path) -> None:
        self._originals = originals
        self._copies = copies
        for node in originals:
            self.renew(node)

    def renew(self, node: str) -> None:
        """The node's copy is what its original is."""
        with suppress(FileNotFoundError):
            shutil.rmtree(self.path(node))
        shutil.copytree(self._originals[node], self.path(node), symlinks=True)

    @property
    def nodes(self) -> list[str]:
        return list(self._originals)

    def path(self, node: str) -> Path:
        return self._copies / node

    def files(self, node: str) -> list[Path]:
        return sorted(path for path in self.path(node).rglob("*") if path.is_file())

    def named(self, *nodes: str) -> list[str]:
        """Options that give these to a tool."""
        return [f"--replica={node}={self.path(node)}" for node in nodes]


async def read_what_is_left(
    chance: Random, originals: dict[str, Path], copies: Path, requests: int
) -> tuple[list[str], int]:
    """What was wrong with tools, and how often one was tried."""
    tries = min(requests // EACH, MOST)
    if not tries:
        return [], 0
    specimens = await asyncio.to_thread(Specimens, originals, copies)
    sound = await _run(["audit", "replicas", "--derived", "--json", *specimens.named(*originals)])
    wrong = _judged(sound, "nothing")
    if sound.code == DIFFERENT:
        wrong.append(f"the replicas differ: {sound.output[:TOLD_BYTES]!r}")
    end = _common_end(sound)
    for number in range(tries):
        node = chance.choice(specimens.nodes)
        if end and number % 2 == 0:
            harm, arguments = _rot(chance, specimens, node, end), _replicas(specimens)
        else:
            harm, arguments = _harm(chance, specimens, node), _any_tool(chance, specimens, node)
        ran = await _run(arguments)
        wrong += _judged(ran, harm)
        if harm.startswith("rot") and ran.code in CODES and ran.code != DIFFERENT:
            wrong.append(f"{harm} of {node}, and the verdict is {ran.code}")
        await asyncio.to_thread(specimens.renew, node)
    await asyncio.to_thread(shutil.rmtree, copies)
    return wrong, tries + 1


# --- tools ----------------------------------------------------------------------------------------


def _replicas(specimens: Specimens) -> list[str]:
    named = specimens.named(*specimens.nodes)
    return ["audit", "replicas", "--derived", "--processes", "1", *named]


def _any_tool(chance: Random, specimens: Specimens, node: str) -> list[str]:
    if chance.random() < 0.3:
        return ["audit", "stats", *specimens.named(node)]
    return _replicas(specimens)


async def _run(arguments: list[str]) -> Ran:
    words = (sys.executable, "-P", "-c", _CHILD, str(TOOL_BYTES), *arguments)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *words, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
    )
    try:
        async with asyncio.timeout(TOOL_S):
            output, complaints = await process.communicate()
    except TimeoutError:
        return Ran(None, b"", b"")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return Ran(process.returncode, output, complaints)


def _judged(ran: Ran, harm: str) -> list[str]:
    if ran.code is None:
        return [f"a tool has no end after {harm}"]
    said = ran.output + ran.complaints
    if TRACEBACK in said or ran.code not in CODES:
        return [f"a tool ended with {ran.code} after {harm}: {said[-TOLD_BYTES:]!r}"]
    return []


def _common_end(sound: Ran) -> int:
    """Of the bytes that all replicas have, if all have the same; else 0."""
    if sound.code != IDENTICAL:
        return 0
    return min(int(each["end"]) for each in json.loads(sound.output)["coverage"])


# --- harm -----------------------------------------------------------------------------------------


def _rot(chance: Random, specimens: Specimens, node: str, end: int) -> str:
    """One byte of the log is another one."""
    at = chance.randrange(end)
    bases = {int(path.name): path for path in (specimens.path(node) / "commitlog").iterdir()}
    base = max(base for base in bases if base <= at)
    with bases[base].open("r+b") as file:
        file.seek(at - base)
        (was,) = file.read(1)
        file.seek(at - base)
        file.write(bytes((was ^ chance.randrange(1, 256),)))
    return f"rot at byte {at}"


def _harm(chance: Random, specimens: Specimens, node: str) -> str:
    """One to three of the files are not what they were."""
    done: list[str] = []
    for _ in range(chance.randrange(1, 4)):
        files = specimens.files(node)
        if not files:
            break
        path = chance.choice(files)
        way = chance.choice(WAYS)
        way(chance, path)
        done.append(f"{way.__name__[1:]} of {path.relative_to(specimens.path(node))}")
    return ", ".join(done)


def _flips(chance: Random, path: Path) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        for _ in range(chance.randrange(1, 30) if size else 0):
            file.seek(chance.randrange(min(size, chance.choice((64, 4_096, size)))))
            file.write(chance.randbytes(chance.choice((1, 4, 8))))


def _cut(chance: Random, path: Path) -> None:
    os.truncate(path, chance.randrange(path.stat().st_size + 1))


def _growth(chance: Random, path: Path) -> None:
    os.truncate(path, path.stat().st_size + chance.choice((1, 19, 4_096, 1 << 30, HUGE)))


def _noise(chance: Random, path: Path) -> None:
    path.write_bytes(chance.randbytes(chance.choice((0, 1, 40, 5_000))))


def _removal(chance: Random, path: Path) -> None:
    path.unlink()


def _new_name(chance: Random, path: Path) -> None:
    name = chance.choice(
        (LONG_AGO, f"{1:020d}", f"{8 << 40:020d}", "x", "..x", "\udcff", "-1", "a b")
    )
    path.rename(path.with_name(name))


def _folder(chance: Random, path: Path) -> None:
    path.unlink()
    path.mkdir()


def _pipe(chance: Random, path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _link(chance: Random, path: Path) -> None:
    path.unlink()
    path.symlink_to(chance.choice(("/dev/zero", path.name, "nowhere", "/")))


def _twin(chance: Random, path: Path) -> None:
    """What another file holds."""
    others = [other for other in path.parent.iterdir() if other.is_file() and other != path]
    if others:
        shutil.copyfile(chance.choice(others), path)


WAYS: Final[tuple[Callable[[Random, Path], None], ...]] = (
    *(_flips, _flips, _flips, _cut, _growth, _noise, _removal),
    *(_new_name, _folder, _pipe, _link, _twin),
)
