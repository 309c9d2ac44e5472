"""What must hold after every event, and whenever something leaves a node.

This joins the pure `chaos.invariants` to simulated nodes, and looks below them: an entry counts as
durable when its very bytes are on the platter, whatever core, flusher or file layer say. It reads
and never changes anything. A check that fails raises, so that a run stops where the damage was
done and not where somebody noticed it.

Cheap enough to be asked after every event because an event touches one node: unless something
that the invariants speak of has changed in that node, they hold as they did before.
"""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import TYPE_CHECKING

from broker.assembly import committed_log
from chaos.invariants import InvariantBroken, InvariantChecker
from chaos.sim.acknowledged import Acknowledged
from chaos.sim.archive import Archive
from chaos.sim.clock_watch import ClockWatch
from chaos.sim.defect import Defect
from chaos.sim.disk import SimulatedDisk
from chaos.sim.incarnations import Incarnations
from chaos.sim.machine import Life, Machine
from chaos.sim.machine_config import DATA, HARD_STATE
from chaos.sim.plan import Tuning
from chaos.sim.woken import check_pulls
from dledger.core.types import Configuration, Index, Role
from dledger.hard_state import decode_hard_state
from dledger.reading.entry import EntryHeader, parse_header, verify_frame
from dledger.records.errors import InvalidFrame
from dledger.records.layout import UNIT, file_name
from dledger.wire.raft_pb2 import PeerMessage
from store.starting.errors import OutOfService

if TYPE_CHECKING:
    from collections.abc import Sequence

QUEUES = DATA / "consumequeue"
MOST_APPENDS = 4  # to one peer by one event: what was pending, what the event leads to
CRC_BYTES = 4  # behind the content of an `AtomicFile`


class Watch:
    """The invariants of one run."""

    def __init__(self, nodes: Sequence[Machine], tuning: Tuning) -> None:
        self.archive: Archive | None = None  # the whole history, where logs let their front go
        self.checks = 0
        self.incarnations = Incarnations()
        self.clocks = ClockWatch(nodes)
        self.places: dict[int, EntryHeader] = {}  # index -> where and what, as last asked
        self.segment_bytes = tuning.segment_bytes
        self._needs_platter = tuning.flush == "sync"
        self.pictures = {node.name: Picture(node, self) for node in nodes}
        self.checker = InvariantChecker(are_identities_running=True)
        self._disks = [node.disk for node in nodes]
        self._all = list(self.pictures.values())
        self._paths: dict[int, Path] = {}
        self._acknowledged = Acknowledged()
        self._terms: dict[str, int] = {}  # in which each acknowledged, in its present life
        self._led: dict[str, tuple[int, int]] = {}  # (term, commit index) of those that lead
        self._fingerprints: dict[str, tuple[object, ...]] = {}
        self._derived: dict[str, int] = {}  # what each checkpoint last said, in its present life
        self._notes: dict[str, int] = {}  # what each checkpoint noted, as last looked at
        self._in_doubt: dict[str, bool] = {}  # as of each node's last event
        self._append_entries = tuning.max_append_entries
        self._appends: dict[str, dict[str, int]] = {}  # to each peer, by each node's present event
        self._ends: dict[str, int] = {}  # each node's last entry before that event

    @property
    def committed(self) -> int:
        """The highest index that any node has called committed."""
        return len(self.checker.committed)

    def after_event(self, node: Machine) -> None:
        """Everything still holds, now that an event of `node` has been handled."""
        life = node.life
        if self._appends:
            self._appends.pop(node.name, None)
        if life is None or life.failed is not None:
            self.pictures[node.name].is_running = False
            return
        replica = life.replica
        self._ends[node.name] = replica.log.last_index
        self._in_doubt[node.name] = replica.repairs.is_at_work
        if life.calls:
            check_pulls(node, life)
        noted = replica.log.checkpoint.state.consume_queue_index
        if noted != self._derived.get(node.name):
            self._check_derived(node, life)
        if noted != self._notes.get(node.name, 0):
            self._check_note(node, life)
        self._check_core(node, life)
        if life.is_shut:  # at rest, and about to close the files that others would read here
            self.pictures[node.name].is_running = False

    def _check_core(self, node: Machine, life: Life) -> None:
        core, log = life.core, life.replica.log
        fingerprint = core.outline, life.replica.driver.applied_index, log.last_digest
        if self._fingerprints.get(node.name) == fingerprint:
            return
        if node.altered_from:
            self.pictures[node.name].is_running = False  # it doesn't hold what it should
            return
        self._fingerprints[node.name] = fingerprint
        self.checks += 1
        self.incarnations.after_event(node, life)
        self.pictures[node.name].take(life)
        self._observe(is_observed=True)
        try:
            self.clocks.after_event(node, life)
            if core.last_index != log.last_index:
                raise InvariantBroken(f"{node.name}: the core ends elsewhere than the log")
            self.checker.check_one(self.pictures[node.name], self._all)
            self._check_commit_of_leader(self.pictures[node.name])
        except InvariantBroken as error:
            raise Defect("invariant", str(error)) from error
        finally:
            self._observe(is_observed=False)

    def on_stopped(self, node: Machine) -> None:
        """A process is gone."""
        self.pictures[node.name].is_running = False
        self._ends.pop(node.name, None)

    def on_boot(self, node: Machine) -> None:
        """A process started: its memory is new, what it had promised is not."""
        self._fingerprints.pop(node.name, None)
        self._in_doubt.pop(node.name, None)
        self._acknowledged.forget(node.name)
        self._terms.pop(node.name, None)
        self._derived.pop(node.name, None)
        self.clocks.look(node.loop.now_us)
        self.pictures[node.name].is_running = False
        self.checker.on_restart(node.name)
        self._notes.pop(node.name, None)
        self._check_replayed(node)

    def _check_note(self, node: Machine, life: Life) -> None:
        """Noted is never more than durable here: everything through the entry that the checkpoint
        notes is on this node's own platter, in either flush mode. A start takes it for committed,
        whatever lies there."""
        log = life.replica.log
        noted = log.checkpoint.state.consume_queue_index
        if node.altered_from:
            return
        if noted <= log.start.index:
            self._notes[node.name] = noted
            return  # it has nothing of what it speaks of, and needs none
        node.disk.is_observed = True
        header = node.sound_header(noted)
        node.disk.is_observed = False
        if header is None:
            return
        self._notes[node.name] = noted
        if self.durable_digest(node.disk, header, needs_platter=True) != header.digest:
            raise Defect("noted beyond durable", f"{node.name} noted entry {noted}")

    def _check_replayed(self, node: Machine) -> None:
        """What a start takes for committed has been committed, in the same bytes."""
        if node.life is None or node.altered_from:
            return
        through, committed = node.life.replica.machine.applied_index, self.checker.committed
        if through == 0:
            return
        log = node.life.replica.log
        node.disk.is_observed = True
        is_rotten = through >= log.first_index and node.sound_header(through) is None
        digest = 0 if is_rotten else log.digest_at(through)
        node.disk.is_observed = False
        if not is_rotten and (through > len(committed) or digest != committed[through - 1]):
            raise Defect("replayed beyond committed", f"{node.name} starts at entry {through}")

    def _check_derived(self, node: Machine, life: Life) -> None:
        """What the checkpoint calls derived durably is so: the units of those entries are on the
        platter, under names that are. A start takes its word for it."""
        index = life.replica.log.checkpoint.state.consume_queue_index
        self._derived[node.name] = index
        if node.was_mended or node.altered_from:
            return
        through = min(index, life.replica.machine.applied_index)
        if through < life.replica.log.first_index:
            return  # a start that begins behind what it had noted: nothing of that is vouched for
        self._observe(is_observed=True)
        is_sound = node.sound_header(through) is not None
        end = committed_log(life.replica.parts).end_of_entry(through) if is_sound else 0
        self._observe(is_observed=False)
        for path, content, durable in node.disk.unsettled(QUEUES):
            if path.relative_to(QUEUES).parts[0].startswith("."):
                continue  # what a deleted topic left
            for at in range(0, len(content), UNIT.size):
                unit = content[at : at + UNIT.size]
                if not any(unit) or durable[at : at + len(unit)] == unit:
                    continue
                physical = int.from_bytes(unit[:8], "big")
                if life.replica.log.start.end_offset <= physical < end:
                    raise Defect(
                        "noted before sync",
                        f"{node.name} calls entry {index} derived durably, {path} isn't",
                    )

    def _check_commit_of_leader(self, picture: Picture) -> None:
        """A leader's commit index moves onto entries of its own term only (§5.4.2): figure 8's
        loss needs a rare schedule, the broken rule shows itself at once."""
        known = self._led.get(picture.name)
        if not picture.leads:
            self._led.pop(picture.name, None)
        elif known is None or known[0] != picture.term:
            self._led[picture.name] = (picture.term, picture.commit_index)
        elif picture.commit_index > known[1]:
            term = picture.term_at(picture.commit_index)
            if term != picture.term:
                raise InvariantBroken(
                    f"{picture.name} leads term {picture.term} and committed entry "
                    f"{picture.commit_index} of term {term} by counting"
                )
            self._led[picture.name] = (picture.term, picture.commit_index)

    def _observe(self, *, is_observed: bool) -> None:
        for disk in self._disks:
            disk.is_observed = is_observed

    # --- what leaves a node ------------------------------------------------------------------

    def on_sent(self, node: Machine, to: str, message: PeerMessage) -> None:
        """Nothing leaves that a crash at this moment could make untrue (ADR 3), and next to nothing
        of who knows that its log isn't the group's."""
        life = node.life
        is_out = life is not None and (
            life.replica.comparison.is_silent or isinstance(life.failed, OutOfService)
        )
        if is_out and not message.HasField("digest_request"):
            raise Defect("speaks out of service", f"{node.name} says {message.WhichOneof('body')}")
        match message.WhichOneof("body"):
            case "pre_vote_response" if message.pre_vote_response.granted:
                self._check_sound(node, "a pre-vote")
            case "pre_vote_request":
                self._check_sound(node, "a campaign")
            case "vote_response" if message.vote_response.granted:
                self._check_sound(node, "a vote")
                self._on_vote(node, message.term, to)
            case "vote_request":
                self._check_sound(node, "a campaign")
                self._on_vote(node, message.term, node.name)
            case "append_response" if message.append_response.accepted:
                self._check_sound(node, "an acknowledgement")
                self._on_term(node, message.term)
                self._on_acknowledgement(node, message.append_response.match_index)
            case "append_request" if message.append_request.frames:
                self._on_append(node, to, message.append_request.frames)
            case _:
                pass

    def _check_sound(self, node: Machine, what: str) -> None:
        """Who knows that it has lost committed entries, since before this event, promises nothing
        that only a disk can that holds all of them."""
        is_in_doubt = node.life is not None and node.life.replica.repairs.is_at_work
        if is_in_doubt and self._in_doubt.get(node.name):
            raise Defect("promised in doubt", f"{node.name} sends {what} while its log is rotten")

    def _on_append(self, node: Machine, to: str, frames: bytes) -> None:
        """No turn holds a node's loop for long: an append has few entries, and whoever is far
        behind is sent few of them at once (ADR 27). What was proposed within the event is no part
        of it, nor is what each of that leads to, as the next ones for who is behind: each Send that
        waited for one in front of it has a real loop's turn of its own."""
        count = at = index = 0
        while at < len(frames):
            header = parse_header(frames, at)
            at, index = at + header.total_size, header.index
            count += 1
        if count > self._append_entries:
            raise Defect("loop held", f"{node.name} sent {to} {count} entries in one append")
        before, proposed = self._ends.get(node.name, 0), 0
        if node.life is not None:
            if index > before:
                return
            proposed = max(0, node.life.replica.driver.core.last_index - before)
        appends = self._appends.setdefault(node.name, {})
        appends[to] = appends.get(to, 0) + 1
        if appends[to] > MOST_APPENDS + proposed:
            raise Defect("loop held", f"{node.name} sent {to} {appends[to]} appends in one event")

    def _on_vote(self, node: Machine, term: int, candidate: str) -> None:
        try:
            # Another disk knows nothing of the votes of the one before, and needs not: whoever
            # counts its votes has the entry that names it. An older copy is the same disk.
            self.checker.on_vote_sent(term, f"{node.name}/{node.identity.disk.hex()}", candidate)
        except InvariantBroken as error:
            raise Defect("invariant", str(error)) from error
        content = node.disk.durable(HARD_STATE)
        if content is None:
            raise Defect("vote before fsync", f"{node.name} voted without a hard state on disk")
        state = decode_hard_state(content[:-CRC_BYTES])
        if (state.term, state.vote) != (term, candidate) and state.term <= term:
            raise Defect(
                "vote before fsync",
                f"{node.name} voted for {candidate} in term {term}, its disk has {state}",
            )

    def _on_term(self, node: Machine, term: int) -> None:
        """Who takes entries in a term has it on disk: after a crash it must not take those of an
        older leader, nor vote in a term that it had left (figure 2: persistent state). Looked at
        once for each life and term."""
        if node.life is None or self._terms.get(node.name, 0) >= term:
            return
        if node.has_rotten_hard_state:
            return
        content = node.disk.durable(HARD_STATE)
        held = decode_hard_state(content[:-CRC_BYTES]).term if content is not None else 0
        if held < term:
            raise Defect(
                "acknowledged before fsync",
                f"{node.name} acknowledged entries in term {term}, its disk has term {held}",
            )
        self._terms[node.name] = term

    def _on_acknowledgement(self, node: Machine, match_index: int) -> None:
        """Everything up to `match_index` is on the platter: of this life, looked at once each, and
        again where another entry has taken its place."""
        life = node.life
        if life is None or node.altered_from or match_index == 0:
            return
        node.disk.is_observed = True
        log = life.replica.log
        first = self._acknowledged.first_news(node.name, log, match_index)
        for index in range(first, match_index + 1):
            header = node.sound_header(index)
            if header is None:
                continue
            if self.durable_digest(node.disk, header) != header.digest:
                raise Defect(
                    "acknowledged before fsync",
                    f"{node.name} acknowledged entry {match_index}, its disk doesn't hold {index}",
                )
            self._acknowledged.note(node.name, index, header.digest)
        node.disk.is_observed = False

    def on_answered(self, node: Machine, physical_offset: int) -> None:
        """A producer is told that its batch at `physical_offset` is stored. Whether what the node
        calls committed is so is looked at when its event has been handled."""
        life = node.life
        if life is None:
            return
        if physical_offset < life.replica.log.start.end_offset:
            return  # stored long ago, and gone meanwhile
        index = life.replica.log.index_at(physical_offset)
        if index > life.core.commit_index:
            raise Defect("answered before commit", f"{node.name} answered entry {index}")

    # --- the platter -------------------------------------------------------------------------

    def durable_digest(
        self, disk: SimulatedDisk, header: EntryHeader, *, needs_platter: bool | None = None
    ) -> int | None:
        """The digest of the entry on the platter where `header`'s lies; None if there is none.
        Where flushing is asynchronous the page cache is all that was promised, unless
        `needs_platter` says otherwise."""
        base = header.physical_offset - header.physical_offset % self.segment_bytes
        at = header.physical_offset - base
        path = self._paths.get(base)
        if path is None:
            path = self._paths[base] = DATA / "commitlog" / file_name(base)
        end = at + header.total_size
        frame = disk.bytes_between(
            path,
            at,
            end,
            on_platter=needs_platter if needs_platter is not None else self._needs_platter,
        )
        try:
            found = verify_frame(frame, 0, None)
        except InvalidFrame:
            return None
        return found.digest if found.index == header.index else None


class Picture:
    """A `chaos.invariants.NodeView` of a simulated node, as of its last event. An entry's identity
    is the running digest at it: it covers the entry and everything before."""

    __slots__ = (
        "_may_count",
        "_node",
        "_watch",
        "applied_index",
        "commit_index",
        "is_running",
        "last_index",
        "leads",
        "name",
        "sets_that_may_count",
        "term",
        "vote",
        "voter_sets",
    )

    def __init__(self, node: Machine, watch: Watch) -> None:
        self.name = str(node.name)
        self.is_running = False
        self.term = self.last_index = self.commit_index = self.applied_index = 0
        self.vote: str | None = None
        self.leads = False
        self.voter_sets: tuple[frozenset[str], ...] = ()
        self.sets_that_may_count: tuple[frozenset[str], ...] = ()
        self._node = node
        self._watch = watch
        self._may_count: tuple[Configuration, ...] = ()

    def take(self, life: Life) -> None:
        """The picture shows the node as it is now."""
        core = life.core
        self.is_running = True
        self.term, self.vote = core.term, core.vote
        self.leads = core.role is Role.LEADER
        may_count = core.configurations_that_may_count
        if may_count != self._may_count:
            self._may_count = may_count
            self.voter_sets = voter_sets(core.configuration)
            self.sets_that_may_count = tuple(each for one in may_count for each in voter_sets(one))
        self.last_index, self.commit_index = core.last_index, core.commit_index
        self.applied_index = life.replica.driver.applied_index

    @property
    def _life(self) -> Life:
        if self._node.life is None:
            raise RuntimeError(f"{self.name} is down")
        return self._node.life

    def term_at(self, index: int) -> int:
        if index < self._life.core.base.index and self._watch.archive is not None:
            return self._watch.archive.term_at(index)
        return self._life.core.term_at(Index(index))

    def identity_at(self, index: int) -> Hashable:
        committed = self._watch.checker.committed
        is_known = index <= min(self.commit_index, len(committed))
        if is_known and self._node.altered_from:
            return committed[index - 1]
        log = self._life.replica.log
        # The last one's is known, as all others follow from it; where it stands is asked for once
        # it is called committed, and is looked for on the disks.
        if index == log.last_index and (index <= len(committed) or index > self.commit_index):
            return log.last_digest
        start = log.start
        if index < start.index:
            return committed[index - 1]  # retired; the digest at the base speaks for it
        if index == start.index:
            return start.digest
        header = self._node.sound_header(index) if is_known else log.header_at(index)
        if header is None:
            return committed[index - 1]  # its bytes have rotted; reading them is the node's
        if index > len(committed):
            self._watch.places[index] = header
        return header.digest

    def durable_identity_at(self, index: int) -> Hashable | None:
        """On its disk, or on one that was lost: what it acknowledged may be counted later."""
        header = self._watch.places.get(index)
        if header is None:
            return None
        node = self._node
        if self._holds_another(node.disk, node.altered_from, header):
            return header.digest
        found = self._watch.durable_digest(node.disk, header)
        for disk in node.lost:
            found = found or self._watch.durable_digest(disk, header)
        if any(self._holds_another(disk, index, header) for disk, index in node.lost_altered):
            return header.digest
        return found

    def _holds_another(self, disk: SimulatedDisk, altered_from: int, header: EntryHeader) -> bool:
        """Whether that entry is on a disk with an altered entry before it: with a digest that is
        another one for that, and the same bytes."""
        is_behind = 0 < altered_from < header.index
        return is_behind and self._watch.durable_digest(disk, header) is not None


def voter_sets(configuration: Configuration) -> tuple[frozenset[str], ...]:
    """Those of whom a majority has to agree; two of them while it is joint."""
    sets = (configuration.voters, configuration.voters_outgoing)
    return tuple(frozenset(map(str, each)) for each in sets if each)
