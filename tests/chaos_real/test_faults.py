"""The disk that fails on order: what it loses in a power cut, and how it obeys."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chaos.faults import (
    NO_FAULTS,
    ClockFault,
    FaultOrders,
    FaultyClock,
    FaultyFiles,
    Orders,
    OrdersBroken,
    cut_power,
    give_orders,
)
from chaos.faults.clock import error_ms
from chaos.faults.undo import read_open
from chaos.sim.disk import SimulatedDisk
from store.atomic_file import AtomicFile, replace_file
from store.files import FileSystem, Handle

SIM_ROOT = Path("/data")


class Unlucky(random.Random):
    """Everything that may be lost is lost."""

    def choice(self, seq: Any) -> Any:
        return seq[0]

    def randrange(self, *_: Any, **__: Any) -> int:
        return 0

    def random(self) -> float:
        return 0.99


class Lucky(Unlucky):
    """Nothing is lost, synced or not."""

    def choice(self, seq: Any) -> Any:
        return seq[1]

    def randrange(self, *arguments: Any, **__: Any) -> int:
        return int(arguments[-1]) - 1


class Machine:
    """A disk under test with what a store does to disks."""

    def __init__(self, files: FileSystem, root: Path) -> None:
        self.files = files
        self.root = root
        self.handles: dict[str, Handle] = {}

    def create(self, name: str) -> None:
        if name not in self.handles:
            self.handles[name] = self.files.create(self.root / name)

    def write(self, name: str, offset: int, data: bytes) -> None:
        self.files.pwritev(self.handles[name], [data], offset)

    def sync(self, name: str) -> None:
        self.files.fdatasync(self.handles[name])

    def sync_names(self) -> None:
        self.files.fsync_directory(self.root)

    def replace(self, name: str, content: bytes) -> None:
        replace_file(self.files, self.root / name, content)

    def remove(self, name: str) -> None:
        self.files.close(self.handles.pop(name))
        self.files.unlink(self.root / name)


@pytest.fixture
def orders(tmp_path: Path) -> Orders:
    return Orders(tmp_path / "faults")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def random_steps(chance: random.Random, count: int) -> list[Callable[[Machine], None]]:
    """The same steps for any machine; names are reused, so that files are replaced and removed."""
    steps: list[Callable[[Machine], None]] = []
    alive: set[str] = set()
    for _ in range(count):
        name = f"f{chance.randrange(4)}"
        if name not in alive:
            alive.add(name)
            steps.append(lambda machine, name=name: machine.create(name))  # type: ignore[misc]
            continue
        match chance.randrange(8):
            case 0:
                alive.discard(name)
                steps.append(lambda machine, name=name: machine.remove(name))  # type: ignore[misc]
            case 1 | 2:
                steps.append(lambda machine, name=name: machine.sync(name))  # type: ignore[misc]
            case 3:
                steps.append(lambda machine: machine.sync_names())
            case 4:
                content = chance.randbytes(50)
                steps.append(lambda machine, c=content: machine.replace("atomic", c))  # type: ignore[misc]
            case _:
                at, data = chance.randrange(3000), chance.randbytes(chance.randrange(1, 900))
                steps.append(lambda machine, n=name, at=at, d=data: machine.write(n, at, d))  # type: ignore[misc]
    return steps


def contents(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in root.iterdir()}


@pytest.mark.parametrize("seed", range(40))
def test_power_cut_leaves_what_the_simulated_disk_leaves(
    root: Path, orders: Orders, seed: int
) -> None:
    """A real disk with the worst luck ends as the simulator's does, byte for byte."""
    real = Machine(FaultyFiles(orders), root)
    disk = SimulatedDisk()
    disk.mkdir(SIM_ROOT)
    disk.fsync_directory(Path("/"))
    simulated = Machine(disk, SIM_ROOT)
    for step in random_steps(random.Random(seed), 60):
        step(real)
        step(simulated)
    disk.power_off(Unlucky())
    disk.power_on()
    cut_power(orders.directory, root, Unlucky())
    left = {
        path.name: (disk.durable(path) or b"").ljust(disk.size(disk.open(path)), b"\0")
        for path in disk.paths()
    }
    assert contents(root) == left


@pytest.mark.parametrize("seed", range(5))
def test_lucky_power_cut_takes_nothing(root: Path, orders: Orders, seed: int) -> None:
    """What wasn't synced may stay all the same."""
    machine = Machine(FaultyFiles(orders), root)
    for step in random_steps(random.Random(seed), 60):
        step(machine)
    before = contents(root)
    loss = cut_power(orders.directory, root, Lucky())
    assert contents(root) == before
    assert (loss.lost, loss.torn, loss.names, loss.bytes) == (0, 0, 0, 0)


def test_torn_write_keeps_a_first_part(root: Path, orders: Orders) -> None:
    """And the bytes that were there before behind it."""
    machine = Machine(FaultyFiles(orders), root)
    machine.create("log")
    machine.write("log", 0, b"a" * 4000)
    machine.sync("log")
    machine.sync_names()
    machine.write("log", 1000, b"b" * 2000)

    class Torn(Unlucky):
        def choice(self, seq: Any) -> Any:
            return "torn"

        def randrange(self, *_: Any, **__: Any) -> int:
            return 700

    loss = cut_power(orders.directory, root, Torn())
    assert (root / "log").read_bytes() == b"a" * 1000 + b"b" * 700 + b"a" * 2300
    assert (loss.torn, loss.bytes) == (1, 1300)


def test_first_sector_is_never_torn(root: Path, orders: Orders) -> None:
    """The checkpoint builds on it."""
    machine = Machine(FaultyFiles(orders), root)
    machine.create("checkpoint")
    machine.write("checkpoint", 0, b"a" * 512)
    machine.sync("checkpoint")
    machine.sync_names()
    machine.write("checkpoint", 0, b"b" * 512)

    class Torn(Unlucky):
        def choice(self, seq: Any) -> Any:
            return "torn"

        def randrange(self, *_: Any, **__: Any) -> int:
            return 300

    cut_power(orders.directory, root, Torn())
    assert (root / "checkpoint").read_bytes() == b"a" * 512


def test_failed_sync_settles_nothing(root: Path, orders: Orders) -> None:
    """The bytes stay readable and are gone after the power cut."""
    machine = Machine(FaultyFiles(orders), root)
    machine.create("log")
    machine.sync("log")
    machine.sync_names()
    machine.write("log", 0, b"never on the platter")
    give_orders(orders.directory, FaultOrders(failing={"fdatasync": "EIO"}))
    with pytest.raises(OSError, match="ordered") as caught:
        machine.sync("log")
    assert caught.value.errno == errno.EIO
    assert (root / "log").read_bytes() == b"never on the platter"
    cut_power(orders.directory, root, Unlucky())
    assert (root / "log").read_bytes() == b""


def test_directory_that_stays_removed_takes_along_what_was_in_it(
    root: Path, orders: Orders
) -> None:
    """Each directory's names have a fate of their own: the outer removal reached the platter, the
    inner one didn't, and then nothing leads to what it would have left."""
    files = FaultyFiles(orders)
    for path in (root / "queue", root / "queue" / "0"):
        files.mkdir(path)
        files.fsync_directory(path.parent)
    files.rmdir(root / "queue" / "0")
    files.rmdir(root / "queue")

    class OuterOnly(Unlucky):
        survivors = iter((0, 1))

        def randrange(self, *_: Any, **__: Any) -> int:
            return next(self.survivors)

    assert cut_power(orders.directory, root, OuterOnly()).names == 1
    assert list(root.iterdir()) == []


def test_journal_outlives_the_process_and_goes_with_the_power(root: Path, orders: Orders) -> None:
    """A SIGKILL syncs nothing: the next process's sync settles what the first one wrote."""
    first = Machine(FaultyFiles(orders), root)
    first.create("log")
    first.sync_names()
    first.write("log", 0, b"one")
    second = Machine(FaultyFiles(orders), root)
    second.handles["log"] = second.files.open(root / "log")
    second.write("log", 3, b"two")
    assert [record["k"] for record in read_open(orders.undo_folder)] == ["write", "write"]
    second.sync("log")
    assert list(read_open(orders.undo_folder)) == []
    second.write("log", 6, b"three")
    cut_power(orders.directory, root, Unlucky())
    assert (root / "log").read_bytes() == b"onetwo"
    assert list(read_open(orders.undo_folder)) == []


def test_full_disk_takes_what_fits_and_no_more(root: Path, orders: Orders) -> None:
    """Growing fails, overwriting doesn't, and lifting the order brings the space back."""
    files = FaultyFiles(orders)
    handle = files.create(root / "segment")
    give_orders(orders.directory, FaultOrders(free_bytes=1000))
    files.fallocate(handle, 600)
    assert files.free_bytes(root) == 400
    with pytest.raises(OSError, match="ordered") as caught:
        files.fallocate(handle, 1100)
    assert caught.value.errno == errno.ENOSPC
    assert files.pwritev(handle, [b"x" * 600], 0) == 600
    assert files.pwritev(handle, [b"x" * 300, b"y" * 101], 600) == 400
    assert files.pread(handle, 500, 800) == b"x" * 100 + b"y" * 100
    with pytest.raises(OSError, match="ordered"):
        files.pwritev(handle, [b"x"], 1000)
    assert files.pwritev(handle, [b"z" * 50], 980) == 20
    give_orders(orders.directory, FaultOrders())
    files.fallocate(handle, 5000)
    assert files.free_bytes(root) > 5000


def test_full_disk_takes_again_what_was_given_back(orders: Orders, root: Path) -> None:
    """A file deleted, cut or replaced makes room, as on any disk; by the tester's own links to
    what was there it is not held."""
    files = FaultyFiles(orders)
    for name in ("old", "cut"):
        handle = files.create(root / name)
        files.fallocate(handle, 1000)
        if name == "old":
            files.close(handle)
    give_orders(orders.directory, FaultOrders(free_bytes=100))
    fresh = files.create(root / "fresh")
    files.fallocate(fresh, 100)
    files.rename(root / "fresh", root / "old")
    assert files.free_bytes(root) == 1000
    files.truncate(handle, 400)
    assert files.free_bytes(root) == 1600
    files.unlink(root / "old")
    assert files.free_bytes(root) == 1700


def test_full_disk_saves_the_next_terms_in_the_place_of_the_last(
    orders: Orders, root: Path
) -> None:
    """The file of term and vote is replaced again and again on a disk without a byte to spare."""
    files = FaultyFiles(orders)
    file = AtomicFile(files, root / "hard_state", spare_bytes=4096)
    file.replace(b"term 1")
    give_orders(orders.directory, FaultOrders(free_bytes=0))
    for term in range(2, 6):
        file.replace(b"term %d" % term)
        assert file.read() == b"term %d" % term


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "is no JSON"),
        ("[]", "is no object"),
        ('{"slow": 1}', "is no object"),
        ('{"failing": {"fsink": "EIO"}}', "'fsink' is none of"),
        ('{"failing": {"fsync": "EOOPS"}}', "is no errno"),
        ('{"clock": [{"speed": 2}]}', "clock: .*speed"),
        ('{"clock": [{"rate": 0}]}', "no clock runs so"),
        ('{"clock": [{"strobe_ms": 5, "strobe_period_ms": 0}]}', "no clock runs so"),
    ],
)
def test_orders_that_make_no_sense_are_not_ignored(orders: Orders, text: str, reason: str) -> None:
    """A fault that was silently not injected would make a test pass that tested nothing."""
    (orders.directory / "orders.json").write_text(text)
    with pytest.raises(OrdersBroken, match=reason):
        orders.current()


def test_clock_is_off_drifts_and_flips_to_and_fro() -> None:
    """By the real time alone: a node that is started again is as wrong as it was."""
    assert error_ms(ClockFault(offset_ms=-500), 10_000) == -500
    drift = ClockFault(rate=1.25, since_ms=10_000)
    assert [error_ms(drift, now) for now in (10_000, 14_000, 18_000)] == [0, 1_000, 2_000]
    assert error_ms(ClockFault(rate=0.75, since_ms=10_000), 14_000) == -1_000
    strobe = ClockFault(strobe_ms=200, strobe_period_ms=5)
    assert [error_ms(strobe, now) for now in (1_000, 1_005, 1_010, 1_015)] == [0, 200, 0, 200]


def test_faulty_clock_adds_up_what_is_ordered(orders: Orders) -> None:
    """Several orders at a time; without any it is right."""
    clock = FaultyClock(orders)
    before = clock.now_ms()
    hour, day = ClockFault(offset_ms=3_600_000), ClockFault(offset_ms=86_400_000)
    give_orders(orders.directory, FaultOrders(clock=(hour, day)))
    wrong = clock.now_ms()
    give_orders(orders.directory, NO_FAULTS)
    after = clock.now_ms()
    assert before + 90_000_000 <= wrong <= after + 90_000_000


def test_orders_of_several_faults_hold_at_once() -> None:
    """What can't add up is the worse of both, or the newer."""
    first = FaultOrders(failing={"fsync": "EIO"}, sync_delay_ms=300, free_bytes=5)
    second = FaultOrders(sync_delay_ms=100, clock=(ClockFault(offset_ms=1),))
    both = FaultOrders(
        failing={"fsync": "EIO"}, sync_delay_ms=300, free_bytes=5, clock=(ClockFault(offset_ms=1),)
    )
    assert first.and_also(second) == second.and_also(first) == both
    assert first.and_also(first.and_also(second)).clock == (ClockFault(offset_ms=1),)
