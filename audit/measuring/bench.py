"""`dledger audit bench`: how fast audits are, beside what the machine gives a bare reader.

This makes replicas in a folder of its own, measures, and removes them. Each round takes the
yardsticks and then the figures, so that what else the machine does strikes both; a figure's value
is its best round, its ratio the best round's over the best yardstick's. Files are warm: they were
just written. Decoding is measured in time on a processor: it does nothing else but wait for one.

The yardsticks: one process that reads the replicas with preadv and hashes them with XXH3-64, and
the client's record codec, one record after the other.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

from xxhash import xxh3_64_intdigest

from audit.engines.engine import Engine, LocalEngine
from audit.measuring.sample import LARGE, SEGMENT_BYTES, SMALL, make_replicas
from audit.measuring.whole import audit_rate, mapped_rate, run_command, sha256_rate, wall_rate
from audit.proof.replicas import Options, audit_replicas
from audit.reading.replica import Replica
from audit.reading.survey import committed_log
from dledger.reading.chunks import read_chunks
from dledger.reading.decode import COLUMNS, Wanted, read_records
from dledger.reading.entry import EntryKind
from dledger.reading.files import BLOCK_READ_BYTES, opened, read_into
from dledger.reading.ranges import log_ranges
from dledger.reading.survey import commitlog_of
from dledger.records.layout import FIRST_RECORD_AT, file_name
from dledger.records.record import decode_records

FORMAT: Final = "dledger-audit-bench/1"
DECODED_BYTES: Final = 256 << 20  # More of the log than this says nothing new.
_HASH: Final = "bare preadv + XXH3-64, one process"
_CODEC: Final = "the client's codec, record by record"
_PER_CPU: Final = "records/s of CPU"
_MB_PER_CPU: Final = "MB/s of CPU"
_SPARKS_SHARE: Final = 1.5  # How much longer than the local engine Spark may take.
_START_S: Final = 1.0  # What a command may take beside its bytes.
_BYTES_PER_S: Final = 1e9  # What an audit of log and queues should read in a second.

Tell = Callable[[str], None]
LOG_ONLY: Final = Options(derived=False)
WHOLE: Final = Options(derived=True)


@dataclass(slots=True)
class Figure:
    """One measured thing, a value a round. `yardstick`: what it is compared with, `share`: how
    many of these it is entitled to. `at_least` and `at_most` are targets: of the ratio where there
    is a yardstick and `of_ratio`, else of the value."""

    name: str
    unit: str
    rounds: list[float] = field(default_factory=list)
    yardstick: Figure | None = None
    share: int = 1
    at_least: float | None = None
    at_most: float | None = None
    of_ratio: bool = False

    @property
    def value(self) -> float:
        """The best round."""
        return min(self.rounds) if self.at_most is not None else max(self.rounds)

    @property
    def middle(self) -> float:
        """The middle one of the rounds."""
        return median(self.rounds)

    @property
    def ratio(self) -> float | None:
        """To `share` times the yardstick's best round."""
        if self.yardstick is None:
            return None
        return self.value / (self.share * self.yardstick.value)

    @property
    def is_reached(self) -> bool | None:
        """Whether the target is; None without one."""
        judged = self.ratio if self.of_ratio else self.value
        if judged is None or (self.at_least is None and self.at_most is None):
            return None
        return (self.at_least or 0) <= judged <= (self.at_most or float("inf"))

    def facts(self) -> dict[str, object]:
        """Its JSON object."""
        return {
            "name": self.name,
            "unit": self.unit,
            "value": round(self.value, 3),
            "median": round(self.middle, 3),
            "rounds": [round(each, 3) for each in self.rounds],
            "yardstick": self.yardstick and self.yardstick.name,
            "ratio": None if self.ratio is None else round(self.ratio, 3),
            "at_least": self.at_least,
            "at_most": self.at_most,
            "of": "ratio" if self.of_ratio else "value",
            "reached": self.is_reached,
        }


@dataclass(frozen=True, slots=True)
class Bench:
    """What was measured, and on what: bytes of each replica's log, processors, how many processes
    wanted to run when it began."""

    replicas: int
    replica_bytes: int
    cpus: int
    load: float
    figures: tuple[Figure, ...]

    def facts(self) -> dict[str, object]:
        """Its JSON object."""
        return {
            "format": FORMAT,
            "replicas": self.replicas,
            "replica_bytes": self.replica_bytes,
            "body_bytes": LARGE.body_bytes,
            "cpus": self.cpus,
            "load": self.load,
            "figures": [each.facts() for each in self.figures],
            "targets_reached": all(each.is_reached is not False for each in self.figures),
        }


def measure(
    folder: Path, *, size: int, replicas: int, rounds: int, with_spark: bool, tell: Tell
) -> Bench:
    """All figures; replicas of `size` bytes lie in `folder` while this lasts.

    Raises:
        EngineUnavailable: Spark was asked for and can't run here.
        OSError: there is no room for the replicas.
    """
    load, cpus = os.getloadavg()[0], len(os.sched_getaffinity(0))
    tell(f"writing {replicas} replicas")
    made = make_replicas(folder, replicas, size)
    bare = Figure(_HASH, "MB/s")
    figures = [bare, *_local_figures(made, bare, cpus, rounds, tell)]
    small = make_replicas(folder / SMALL.name, replicas, size, SMALL)
    figures += _whole_figures(made, small, rounds, tell)
    figures += _command_figures(made, replicas * size, rounds, tell)
    figures += _decode_figures(made[0], rounds, tell)
    figures.append(_flip_figure(made, rounds, tell))
    if with_spark:
        figures += _spark_figures(made, cpus, rounds, tell)
    return Bench(replicas, size, cpus, load, tuple(figures))


def _local_figures(
    replicas: list[Replica], bare: Figure, cpus: int, rounds: int, tell: Tell
) -> list[Figure]:
    one = Figure("local engine, one process", "MB/s", [], bare, 1, 0.6, of_ratio=True)
    all_ = Figure(f"local engine, {cpus} processes", "MB/s", [], bare, cpus, 0.6, of_ratio=True)
    with closing(LocalEngine(1)) as single, closing(LocalEngine(cpus, 0)) as pool:
        _hash_rate(replicas, pool)  # Starts its processes.
        for number in range(rounds):
            tell(f"local engine, round {number + 1} of {rounds}")
            bare.rounds.append(_bare_rate(replicas))
            one.rounds.append(_hash_rate(replicas, single))
            all_.rounds.append(_hash_rate(replicas, pool))
    return [one, all_]


def _whole_figures(
    large: list[Replica], small: list[Replica], rounds: int, tell: Tell
) -> list[Figure]:
    """From end to end in one process, by a processor's time."""
    mapped = Figure("mapped files + XXH3-64", _MB_PER_CPU)
    sha256 = Figure("mapped files + SHA-256", _MB_PER_CPU, [], mapped)
    log = Figure("audit of the log", _MB_PER_CPU, [], mapped, 1, 0.5, of_ratio=True)
    wanted = _BYTES_PER_S / 1e6
    queues = Figure(f"audit with queues, {LARGE.name}", _MB_PER_CPU, [], mapped, at_least=wanted)
    tiny = Figure(f"audit with queues, {SMALL.name}", _MB_PER_CPU, [], mapped, at_least=wanted)
    with closing(LocalEngine(1)) as engine:
        for number in range(rounds):
            tell(f"whole audits, round {number + 1} of {rounds}")
            mapped.rounds.append(mapped_rate(large))
            sha256.rounds.append(sha256_rate(large))
            log.rounds.append(audit_rate(large, engine, LOG_ONLY))
            queues.rounds.append(audit_rate(large, engine, WHOLE))
            tiny.rounds.append(audit_rate(small, engine, WHOLE))
    return [mapped, sha256, log, queues, tiny]


def _command_figures(replicas: list[Replica], size: int, rounds: int, tell: Tell) -> list[Figure]:
    """The command as it is typed, by the clock; `size`: of all logs, bytes."""
    seconds = Figure("the whole command", "s", at_most=round(_START_S + size / _BYTES_PER_S, 2))
    memory = Figure("its memory", "MiB")
    for number in range(rounds):
        tell(f"the whole command, round {number + 1} of {rounds}")
        taken, resident = run_command(replicas)
        seconds.rounds.append(taken)
        memory.rounds.append(resident / 2**20)
    return [seconds, memory]


def _decode_figures(replica: Replica, rounds: int, tell: Tell) -> list[Figure]:
    """Records a second of one process, to Arrow."""
    plain = Figure(_CODEC, _PER_CPU)
    every = Figure("decoding to Arrow, every column", _PER_CPU, [], plain, at_least=400_000)
    without = tuple(each for each in COLUMNS if each != "properties")
    fewer = Figure("the same without `properties`", _PER_CPU, [], plain, at_least=400_000)
    for number in range(rounds):
        tell(f"decoding, round {number + 1} of {rounds}")
        plain.rounds.append(_plain_rate(replica))
        every.rounds.append(_decode_rate(replica, COLUMNS))
        fewer.rounds.append(_decode_rate(replica, without))
    return [plain, every, fewer]


def _flip_figure(replicas: list[Replica], rounds: int, tell: Tell) -> Figure:
    """Seconds to locate a flipped bit near the end of a segment; the bit is flipped back."""
    tell("a flipped bit")
    found = Figure("first divergent entry after a flip, segment of 64 MiB", "s", at_most=1.0)
    path = Path(commitlog_of(replicas[-1].path)) / file_name(0)
    at = min(SEGMENT_BYTES, committed_log(replicas[0]).settled) * 9 // 10
    with closing(LocalEngine(1)) as engine, _flipped(path, at):
        for _ in range(rounds):
            report = audit_replicas(replicas, engine, LOG_ONLY).report
            if [each.start <= at < each.end for each in report.findings] != [True]:
                raise AssertionError(f"a flip at {at} was reported as {report.findings}")
            found.rounds.append(report.timings.locate_s)
    return found


def _spark_figures(replicas: list[Replica], cpus: int, rounds: int, tell: Tell) -> list[Figure]:
    from audit.engines.spark import SparkEngine

    beside = Figure(f"{_HASH}, beside Spark", "MB/s")
    warm = Figure(f"Spark local[{cpus}], session warm", "MB/s", [], beside, cpus, at_least=2500)
    local = Figure(f"audit with queues, {cpus} processes, by the clock", "MB/s")
    whole = Figure("the same on Spark", "MB/s", [], local, 1, 1 / _SPARKS_SHARE, of_ratio=True)
    tell("starting Spark")
    with (
        closing(SparkEngine.start(f"local[{cpus}]")) as engine,
        closing(LocalEngine(cpus)) as pool,
    ):
        _hash_rate(replicas, engine)  # Starts its workers.
        for number in range(rounds):
            tell(f"Spark, round {number + 1} of {rounds}")
            beside.rounds.append(_bare_rate(replicas))
            warm.rounds.append(_hash_rate(replicas, engine))
            local.rounds.append(wall_rate(replicas, pool, WHOLE))
            whole.rounds.append(wall_rate(replicas, engine, WHOLE))
    tell("the whole command, JVM cold")
    seconds, resident = run_command(replicas, "--engine", "spark", "--master", f"local[{cpus}]")
    return [
        beside,
        warm,
        local,
        whole,
        Figure("the whole command on Spark, JVM cold", "s", [seconds], at_most=15.0),
        Figure("its memory: command, JVM and workers", "MiB", [resident / 2**20], at_most=1536.0),
    ]


def _bare_rate(replicas: list[Replica]) -> float:
    """MB/s of reading and hashing what an audit hashes, in its block size, and nothing more."""
    buffer = memoryview(bytearray(BLOCK_READ_BYTES))
    began, read = time.perf_counter(), 0
    for replica in replicas:
        log = committed_log(replica)
        for part in log_ranges(log, 0, log.settled):
            with opened(part.path) as descriptor:
                for at in range(0, part.end - part.base, len(buffer)):
                    view = buffer[: part.end - part.base - at]
                    read += read_into(descriptor, view, at)
                    xxh3_64_intdigest(view)
    return read / 1e6 / (time.perf_counter() - began)


def _hash_rate(replicas: list[Replica], engine: Engine) -> float:
    """MB/s of an audit's first pass."""
    timings = audit_replicas(replicas, engine, LOG_ONLY).report.timings
    return timings.digested_bytes / 1e6 / timings.digest_s


def _decode_rate(replica: Replica, columns: Sequence[str]) -> float:
    from dledger.reading.arrow import to_arrow

    log = committed_log(replica)
    began, count = time.process_time(), 0
    for part in log_ranges(log, 0, min(log.settled, DECODED_BYTES)):
        for records in read_records(part, Wanted(tuple(columns))):
            count += sum(batch.num_rows for batch in to_arrow(records))
    return count / (time.process_time() - began)


def _plain_rate(replica: Replica) -> float:
    log = committed_log(replica)
    part = log_ranges(log, 0, log.settled)[0]
    began, count = time.process_time(), 0
    with opened(part.path) as descriptor:
        for chunk in read_chunks(descriptor, part):
            holds_records = chunk.headers["kind"] == EntryKind.DATA
            starts = chunk.starts[holds_records]
            ends = (starts + chunk.headers["total_size"][holds_records]).tolist()
            for start, end in zip(starts.tolist(), ends, strict=True):
                count += len(decode_records(chunk.content[start + FIRST_RECORD_AT : end]))
    return count / (time.process_time() - began)


@contextmanager
def _flipped(path: Path, at: int) -> Iterator[None]:
    def flip() -> None:
        with path.open("r+b") as file:
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes((byte ^ 1,)))

    flip()
    try:
        yield
    finally:
        flip()
