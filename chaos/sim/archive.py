"""The whole history of a group whose logs let their front go: every committed entry, kept apart.

Nodes forget what is retired, and the simulator doesn't: it takes each entry down when the first
node calls it committed. So a state that was restored and applied further is compared with what the
whole history gives, entries that are still held with those that were committed, and messages that
nobody can read any more with what producers were told. It reads, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from broker.state.compound import Judged
from broker.state.listening import Nobody, QueueKey
from broker.state.machine import MachineOptions, StateMachine
from broker.state.topic_retention import TopicRetentions
from chaos.checkers.history import History, Poll
from chaos.sim.ages import Ages, Wishes
from chaos.sim.beginnings import Beginnings
from chaos.sim.defect import Defect
from chaos.sim.machine import Life
from chaos.sim.machine_config import NEWER_LEVEL
from chaos.sim.node import SimNode
from chaos.sim.snapshots import NoQueues
from dledger.history import Outcome
from dledger.reading.compound import data_in
from dledger.reading.entry import parse_header
from dledger.records.record import decode_records
from store.errors import CorruptionFound


class Archive:
    """The entries of one run that are committed, from the first on."""

    def __init__(self, ages: Ages | None = None) -> None:
        self.ages = ages  # where nothing may go but what is old
        self.wishes = Wishes()  # of topics; filled in the end
        self.beginnings = Beginnings()  # of queues; filled in the end
        self.frames: list[bytes] = []
        self.bases: set[int] = set()  # behind which some log begins, or began
        self._machines: dict[int, StateMachine] = {}  # by known level: the furthest there was
        self._wished = TopicRetentions()  # by the whole history; filled in the end

    def after_event(self, node: SimNode, life: Life) -> None:
        """Takes down what `node` has called committed.

        Raises:
            Defect: it holds other entries than were, or one that lets go too much.
        """
        log, known = life.replica.log, len(self.frames)
        if log.start.index:
            self.bases.add(log.start.index)
        if node.altered_from or life.core.commit_index <= known:
            return
        node.disk.is_observed = True
        try:
            blob = log.read(known + 1, life.core.commit_index)
        except CorruptionFound as error:
            if not node.has_log_rot:
                raise Defect(
                    "history", f"{node.name} holds rot that nobody made: {error}"
                ) from error
            return  # who has it sound calls it committed, too
        finally:
            node.disk.is_observed = False
        at = 0
        while at < len(blob):
            header = parse_header(blob, at)
            self.frames.append(blob[at : at + header.total_size])
            at += header.total_size
            if self.ages is not None:
                self.ages.note(header, self.frames[-1])

    def read(self, first: int, last: int) -> bytes:
        """Entries `[first, last]`, back to back."""
        return b"".join(self.frames[first - 1 : last])

    def term_at(self, index: int) -> int:
        """The term of an entry."""
        return parse_header(self.frames[index - 1], 0).term

    def machine(self, through: int, options: MachineOptions, known_level: int) -> StateMachine:
        """The state that the history gives, through an entry; to be looked at before the next one
        is asked for. Most starts are further on than those before, and need not begin anew."""
        machine = self._machines.get(known_level)
        is_apt = machine is not None and machine.options == options
        if machine is None or not is_apt or machine.applied_index > through:
            machine = StateMachine(NoQueues(), options=options, known_level=known_level)
        if machine.applied_index < through:
            machine.apply(self.read(machine.applied_index + 1, through))
        furthest = self._machines.get(known_level)
        if not is_apt or furthest is None or furthest.applied_index <= machine.applied_index:
            self._machines[known_level] = machine
        return machine

    def check_held(self, node: SimNode, life: Life) -> None:
        """What the node's log still holds of it is what was committed.

        Raises:
            Defect: it isn't.
        """
        log = life.replica.log
        through = min(life.core.commit_index, len(self.frames))
        if log.first_index <= through:
            node.disk.is_observed = True
            is_same = log.read(log.first_index, through) == self.read(log.first_index, through)
            node.disk.is_observed = False
            if not is_same:
                raise Defect("history", f"{node.name} holds other entries than were committed")

    def first_of(self, queue: QueueKey) -> int:
        """From where on nobody ever lacked a message of the queue; once it was told what went."""
        held = self.beginnings.of(queue, max(self.bases, default=0))
        return max(held, self._wished.start_of(*queue))

    def tell_what_went(
        self, history: History, topics: Collection[str], nodes: Iterable[SimNode], now_us: int
    ) -> None:
        """As if somebody had polled, in time, the messages of these topics that some node holds no
        more.

        Raises:
            Defect: a batch of its own has no place, as if its leader hadn't known (ADR 20).
        """
        lives = [node.life for node in nodes if node.life is not None]
        if not lives:
            return
        machine = lives[0].replica.machine
        found: dict[QueueKey, list[tuple[int, str]]] = {}
        whole = StateMachine(NoQueues(), options=machine.options, known_level=NEWER_LEVEL)
        listener = _Arrivals()
        whole.listen(listener)
        for frame in self.frames:
            header = parse_header(frame, 0)
            listener.places.clear()
            self.wishes.note(header, frame, whole)
            whole.apply(frame)
            batches = list(data_in(header, frame)) if header.is_known else []
            if len(batches) != len(listener.places):
                raise Defect("void entry", f"entry {header.index}: its leader had not applied all")
            for (queue, is_void), (alone, batch) in zip(listener.places, batches, strict=True):
                placed = decode_records(batch[alone.first_record_at :])
                self.beginnings.note(queue, header.index, placed[-1].queue_offset + 1)
                records = [] if is_void else placed
                told = found.setdefault(queue, [])
                told += [(r.queue_offset, r.body.rstrip(b".").decode()) for r in records]
                for record in records[:1]:
                    self.wishes.on_arrival(queue, record.queue_offset, whole.lived_time.lived_ms)
        self._wished = whole.topic_retention
        for topic in [each for each in machine.topics.values() if each.name in topics]:
            for queue_id in range(len(topic.next_offsets)):
                queue = topic.incarnation, queue_id
                held = self.beginnings.of(
                    queue, max(life.replica.log.start.index for life in lives)
                )
                first = max(held, self._wished.start_of(*queue))
                gone = [each for each in found.get(queue, []) if each[0] < first]
                if gone:
                    action = Poll(topic.name, queue_id, gone[0][0], seek=True)
                    operation = history.invoke(now_us, f"archive/{topic.name}/{queue_id}", action)
                    history.complete(now_us, operation, Outcome.OK, tuple(gone))


class _Arrivals(Nobody):
    """Notes to which queue each batch of an entry went, and whether it is void."""

    def __init__(self) -> None:
        self.places: list[tuple[QueueKey, bool]] = []

    def arrived(self, queue: QueueKey) -> None:
        self.places.append((queue, False))

    def units_applied(self, index: int, units: Sequence[Judged]) -> None:
        self.places = [
            ((batch.topic.incarnation, batch.queue_id), unit.refusal is not None)
            for unit in units
            for batch in unit.batches
        ]
