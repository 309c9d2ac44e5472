"""Running an audit's tasks on Spark: the same plan, the same work, other processes.

Tasks become the elements of an RDD; those with a host get it as their preferred location, under
each name by which an executor there may be known, so that executors beside the nodes read local
files. It is no more than a preference (`audit.engines.placed` sees to the rest). A job of next to
nothing took 35 to 50 ms so, and 110 to 150 as a `mapInArrow` of the DataFrame API, which has to be
planned first. A partition costs 20 to 50 ms whatever is in it, so that tasks which take less share
one. Only results come back: digests, not data.
"""

from __future__ import annotations

import pickle
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from audit.engines.engine import MIB, Progress, R, T, Task, no_progress
from audit.engines.package import TASKS
from audit.engines.standstill import Standstill
from audit.errors import EngineFailed, EngineUnavailable, Unreachable, UsageMistake
from dledger.spark.errors import BadOption, ClusterUnreachable, SparkUnavailable
from dledger.spark.session import WAIT_VARIABLE, seconds_to_wait, start_session

if TYPE_CHECKING:
    from pyspark import SparkStageInfo
    from pyspark.sql import SparkSession

SPARK_TASK_BYTES: Final = 1024 * MIB
SMALL_BYTES: Final = 64 * MIB
PARTITION_BYTES: Final = 512 * MIB  # a quarter of a second's work, or more
_WATCH_INTERVAL_S: Final = 0.5
_SETTINGS: Final = {
    "spark.app.name": "dledger audit",
    # A task isn't given to another machine because its own is busy for three seconds, but at once
    # if there is no executor.
    "spark.locality.wait": "3600s",
}
_BEHIND_WORKERS_WORDS: Final = "PYTHONPATH was:"  # of a worker that couldn't start


class SparkEngine:
    """Runs tasks on the session's executors.

    Args:
        session: stopped by `close` if this engine started it.
    """

    name = "spark"
    task_bytes = SPARK_TASK_BYTES

    def __init__(self, session: SparkSession, *, stops_session: bool) -> None:
        self._session = session
        self._stops_session = stops_session
        self.parallelism: int = max(session.sparkContext.defaultParallelism, 1)

    @property
    def is_spread(self) -> bool:
        """See `Engine.is_spread`."""
        return _is_cluster(str(self._session.sparkContext.master))

    @classmethod
    def start(cls, master: str | None) -> SparkEngine:
        """An engine with a session of its own.

        Raises:
            UsageMistake: the master's address is none.
            EngineUnavailable: it can't run here.
            Unreachable: the master doesn't answer, or gives no executor in time.
        """
        try:
            session = start_session(master, _SETTINGS, TASKS)
        except BadOption as error:
            raise UsageMistake(str(error)) from error
        except SparkUnavailable as error:
            hint = "--engine local needs neither Spark nor Java"
            raise EngineUnavailable(f"{error}. {hint}.") from error
        except ClusterUnreachable as error:
            raise Unreachable(error.master, error.reason) from error
        return cls(session, stops_session=True)

    def width(self, tasks: Sequence[Task]) -> int:
        """See `Engine.width`."""
        return max(1, min(self.parallelism, len(tasks)))

    def run(
        self, work: Callable[[T], R], tasks: Sequence[T], progress: Progress = no_progress
    ) -> list[R]:
        """See `Engine.run`.

        Raises:
            EngineFailed: the cluster failed the job.
        """
        if not tasks:
            return []
        with self.jobs(), self._watched(tasks, progress):
            if any(task.host for task in tasks):
                return self._run_located(work, tasks)
            return self._run_anywhere(work, tasks)

    @contextmanager
    def jobs(self) -> Iterator[SparkSession]:
        """The session, for jobs that aren't lists of tasks.

        Raises:
            EngineFailed: the cluster failed one of them, or has no executors any more.
            UsageMistake: how long to wait for them isn't to be told.
        """
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        try:
            bound_s = seconds_to_wait()
        except BadOption as error:
            raise UsageMistake(str(error)) from error
        stuck = threading.Event()
        try:
            with self._ended_if_stuck(Standstill(bound_s, time.monotonic), stuck):
                yield self._session
        except (PySparkException, Py4JError) as error:
            if stuck.is_set():
                raise EngineFailed(
                    f"no executor runs anything for {bound_s:g} s: those that did are gone "
                    f"({WAIT_VARIABLE} sets how long to wait)"
                ) from error
            raise EngineFailed(f"the Spark job failed: {_reason(error)}") from error

    def close(self) -> None:
        """See `Engine.close`."""
        if self._stops_session:
            self._session.stop()

    @contextmanager
    def _ended_if_stuck(self, standstill: Standstill, stuck: threading.Event) -> Iterator[None]:
        """Jobs of this thread are cancelled, so that they raise, if they stand still while this
        lasts; all of a session that is ours, as SQL has threads of its own."""
        context = self._session.sparkContext
        group = f"dledger-audit-{uuid.uuid4()}"

        def look() -> bool:
            if not standstill.is_over_bound(self._stages()):
                return True
            stuck.set()
            context.cancelAllJobs() if self._stops_session else context.cancelJobGroup(group)
            return False

        context.setJobGroup(group, "dledger audit")
        try:
            with _looking(look, "audit-standstill"):
                yield
        finally:
            context._jsc.clearJobGroup()

    def _stages(self) -> list[SparkStageInfo]:
        """Those that aren't finished."""
        tracker = self._session.sparkContext.statusTracker()
        found = [tracker.getStageInfo(each) for each in tracker.getActiveStageIds()]
        return [each for each in found if each]

    def _run_anywhere(self, work: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
        """Tasks that take less than a partition costs share one."""
        elements = list(enumerate(tasks))
        count = partitions(tasks, self.parallelism)
        return _run(self._session.sparkContext.parallelize(elements, count), work)

    def _run_located(self, work: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
        """Each task on its host if an executor is there and free, anywhere else if not."""
        from pyspark.core.rdd import RDD
        from pyspark.serializers import CPickleSerializer

        context = self._session.sparkContext
        jvm: Any = context._jvm
        elements = jvm.java.util.ArrayList()
        known = sorted(
            {each.host() for each in context._jsc.sc().statusTracker().getExecutorInfos()}
        )
        wanted = {task.host for task in tasks if task.host}
        names = {host: names_of(host, known) for host in wanted}
        for position, task in enumerate(tasks):
            element = pickle.dumps((position, task), protocol=5)
            hosts = jvm.java.util.ArrayList()
            for name in names[task.host] if task.host else ():
                hosts.add(name)
            pair = jvm.scala.Tuple2(element, _scala_seq(jvm, hosts))
            elements.add(pair)
        tag = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("[B"))
        located = context._jsc.sc().makeRDD(_scala_seq(jvm, elements), tag).toJavaRDD()
        return _run(RDD(located, context, CPickleSerializer()), work)

    @contextmanager
    def _watched(self, tasks: Sequence[T], progress: Progress) -> Iterator[None]:
        """Tells `progress` of finished Spark tasks while this lasts, each taken for an average
        one, and of the rest at the end."""
        total = sum(task.weight for task in tasks)
        told = 0

        def look() -> bool:
            nonlocal told
            done = sum(stage.numCompletedTasks for stage in self._stages())
            now = total * min(done, len(tasks)) // len(tasks)
            if now > told:
                progress(now - told)
                told = now
            return True

        with _looking(look, "audit-progress"):
            yield
        progress(total - told)


def partitions(tasks: Sequence[Task], parallelism: int) -> int:
    """How many partitions the tasks are put into: enough to keep all cores busy to the end, and
    no more than are worth their while; one a core where even that is more than the work."""
    weight = sum(task.weight for task in tasks)
    rounds = 1 if weight < SMALL_BYTES else 2
    return min(len(tasks), max(rounds * parallelism, weight // PARTITION_BYTES))


def names_of(host: str, known: Iterable[str]) -> list[str]:
    """The host, and those names of executors' hosts that stand for the same: by an address that
    both have, as addresses are told where executors are known by name, and the other way round."""
    addresses = _addresses(host)
    return [host, *(each for each in known if each != host and addresses & _addresses(each))]


@cache
def _addresses(host: str) -> frozenset[str]:
    """None if the name can't be looked up here."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return frozenset()
    return frozenset(str(address[0]) for *_, address in found)


def _is_cluster(master: str) -> bool:
    """Whether tasks may run elsewhere. A cluster in one process or beside it is here."""
    return not master.startswith("local")


def _reason(error: Exception) -> str:
    """The line that tells most: a Java trace's innermost cause, or the last of a worker's."""
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    if _BEHIND_WORKERS_WORDS in lines[1:]:
        last = lines[lines.index(_BEHIND_WORKERS_WORDS) - 1]
        return f"on a worker: {last.strip()[:500]}"
    if lines and lines[0].endswith("from the Python worker:"):
        said = [line for line in lines if not line.lstrip().startswith(("at ", "JVM stacktrace"))]
        return f"on a worker: {said[-1].strip()[:500]}"
    causes = [line for line in lines if line.startswith("Caused by: ")]
    return (causes or lines or [repr(error)])[-1 if causes else 0][:500]


@contextmanager
def _looking(look: Callable[[], bool], name: str) -> Iterator[None]:
    """While this lasts `look` is called now and then by a thread, until it says that it has seen
    enough. What Spark doesn't answer is asked again; if it is gone, the jobs themselves say so."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    over = threading.Event()

    def watch() -> None:
        goes_on = True
        while goes_on and not over.wait(_WATCH_INTERVAL_S):
            with suppress(PySparkException, Py4JError):
                goes_on = look()

    watcher = threading.Thread(target=watch, name=name, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _run(elements: Any, work: Callable[[T], R]) -> list[R]:
    """The results of `(position, task)` in an RDD, by their positions."""
    done = dict(elements.map(lambda each: (each[0], work(each[1]))).collect())
    return [done[position] for position in range(len(done))]


def _scala_seq(jvm: Any, elements: Any) -> Any:
    """A Java list as the immutable Seq that Scala signatures ask for."""
    return jvm.scala.jdk.javaapi.CollectionConverters.asScala(elements).toSeq()
