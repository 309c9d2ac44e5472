"""What an entry does to several owners of state at once, whichever way it came.

A command that is an entry by itself and one in a unit have the same effects; these stand here, and
so do those who know several owners (`consuming`, `moving`, `delivering`) and whoever is told. What
may have them is judged before, by who takes an entry apart.
"""

from __future__ import annotations

from broker.state.consuming import At, Consuming
from broker.state.delivering import Delivering, Moment
from broker.state.listening import Listener, Nobody
from broker.state.moving import Moves, Moving
from broker.state.offsets import OffsetCommit
from broker.state.refusals import Refusal, TopicNotFound, TopicReplaced
from broker.state.replicated import ReplicatedState
from broker.state.topics import TopicRef, TopicState
from dledger.level import GROUPS_LEVEL


class Effects:
    """On `state`; `listener` is told while they happen."""

    def __init__(self, state: ReplicatedState) -> None:
        self._state = state
        self.listener: Listener = Nobody()
        owners = state.groups, state.leases, state.offsets, state.attempts
        self.consuming = Consuming(*owners, self.meant, self._on_group_changed)
        self.moving = Moving(*owners, self.meant, self._on_group_changed, self._on_moved)
        self.delivering = Delivering(state.deliveries, state.offsets, state.groups)

    def now(self) -> At:
        """The entry that is applied, as groups see it."""
        state = self._state
        return At(state.applied_index, state.lived_time.lived_ms, state.level.current)

    def moment(self) -> Moment:
        """The entry that is applied, as deliveries see it."""
        state = self._state
        lived_ms, level = state.lived_time.lived_ms, state.level.current
        return Moment(state.applied_index, state.append_time_ms, lived_ms, level)

    def meant(self, meant: TopicRef) -> TopicState | TopicNotFound | TopicReplaced:
        """The topic that a command names."""
        topic = self._state.topics.get(meant.name)
        if topic is None:
            return TopicNotFound(meant.name)
        if not meant.means(topic.incarnation):
            return TopicReplaced(meant.name, meant.incarnation, topic.incarnation)
        return topic

    def end_topic(self, topic: TopicState) -> None:
        """Nothing is left of it; its files are gone already."""
        state = self._state
        state.topics.delete(topic.name)
        committed = tuple(state.offsets.groups(topic.name))
        state.offsets.on_topic_deleted(topic.name)
        self.consuming.on_topic_deleted(topic, committed)
        state.deliveries.on_topic_deleted(topic.incarnation)
        state.producers.on_topic_deleted(topic.incarnation)
        state.topic_retention.on_topic_deleted(topic.incarnation)
        state.queue_numbers.on_topic_deleted(topic.incarnation)
        state.topic_permissions.on_topic_deleted(topic.incarnation)
        state.retries.on_topic_deleted(topic.incarnation)
        self.listener.topic_deleted(topic)

    def commit(self, commit: OffsetCommit, topic: TopicState) -> Refusal | None:
        """Offsets of a group without members; before groups had any, of whichever."""
        if self._state.level.current < GROUPS_LEVEL:
            return self._state.offsets.commit(commit, topic.next_offsets)
        refusal = self.delivering.refusal_of_style(commit.group)
        return refusal or self.consuming.commit_offsets(commit, topic, self.now())

    def _on_group_changed(self, name: str) -> None:
        self.listener.group_changed(name)

    def _on_moved(self, moves: Moves) -> None:
        self.listener.group_moved(moves)

    def check_invariants(self) -> None:
        """What holds between owners that commands change together.

        Raises:
            InvariantViolation: names what doesn't hold.
        """
        topics, level = self._state.topics, self._state.level.current
        self.consuming.check_invariants(topics.values(), is_counted=level >= GROUPS_LEVEL)
        self.delivering.check_invariants({each.incarnation: each for each in topics.values()})
