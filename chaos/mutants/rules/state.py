"""Defects in replicated state, `broker/state`: the same on every member, from the log alone."""

from __future__ import annotations

from chaos.mutants.mutant import Mutant

STATE = (
    Mutant(
        "deleted-topic-keeps-its-queues",
        "broker/state/machine.py",
        "            self._queues.delete_topic(name)\n",
        "            pass\n",
    ),
    Mutant(
        "sequences-not-remembered",
        "broker/state/machine.py",
        "        if producer != NO_PRODUCER:\n",
        "        if False:\n",
    ),
    Mutant(
        "offset-moved-back",
        "broker/state/offsets.py",
        "if command.is_reset or offset > after.get(queue_id, -1):",
        "if True:",
    ),
    Mutant(
        "existing-topic-created-again",
        "broker/state/topics.py",
        "        if existing is not None:\n",
        "        if False:\n",
    ),
    Mutant(
        "state-from-the-wall-clock",
        "broker/state/topics.py",
        "TopicState(name, incarnation, created_time_ms, [0] * queue_count)",
        "TopicState(name, incarnation, __import__('time').time_ns(), [0] * queue_count)",
    ),
    Mutant(
        "producer-times-differ-after-replay",
        "broker/state/machine.py",
        "            batch = StoredBatch(sequence, count, base, physical, header.append_time_ms)\n",
        "            time_ms = header.append_time_ms * (header.index > self._derived_through)\n"
        "            batch = StoredBatch(sequence, count, base, physical, time_ms)\n",
    ),
    Mutant(
        "deleted-topic-leaves-its-offsets",
        "broker/state/machine.py",
        "        self.offsets.on_topic_deleted(name)\n",
        "",
    ),
    Mutant(
        "deleted-topic-leaves-its-sequences",
        "broker/state/machine.py",
        "        self.sequences.on_topic_deleted(name)\n",
        "",
    ),
    Mutant(
        "deleted-topic-leaves-its-queues-counted",
        "broker/state/topics.py",
        "        self._queue_count -= len(self._topics.pop(name).next_offsets)\n",
        "        del self._topics[name]\n",
    ),
    Mutant(
        "producers-forgotten-by-the-wall-clock",
        "broker/state/sequences.py",
        "        self._forget(batch.store_time_ms)\n",
        "        self._forget(__import__('time').time_ns() // 1_000_000)\n",
    ),
    Mutant(
        "surplus-producers-forgotten-at-the-wrong-end",
        "broker/state/sequences.py",
        "            oldest = next(iter(self._recent))\n",
        "            oldest = next(reversed(self._recent))\n",
        masked="no run has as many producers as are remembered, nor lasts a week",
    ),
    Mutant(
        "snapshot-without-its-last-records",
        "broker/state/snapshot.py",
        '    yield b"".join(gathered)\n\n\ndef pack_text',
        '    yield b""\n\n\ndef pack_text',
    ),
    Mutant(
        "snapshot-of-the-entry-before",
        "broker/state/machine.py",
        "        return seal(self.applied_index, sections)\n",
        "        return seal(max(0, self.applied_index - 1), sections)\n",
    ),
    Mutant(
        "snapshot-shows-what-comes-later",
        "broker/state/topics.py",
        "(t.name, t.incarnation, t.created_time_ms, tuple(t.next_offsets))",
        "(t.name, t.incarnation, t.created_time_ms, t.next_offsets)",
    ),
    Mutant(
        "snapshot-loses-who-was-used-last",
        "broker/state/sequences.py",
        "        keys, values = list(self._recent), list(self._recent.values())\n",
        "        keys = sorted(self._recent)\n"
        "        values = [self._recent[key] for key in keys]\n",
    ),
    Mutant(
        "restored-topic-forgets-its-birth",
        "broker/state/topics.py",
        "TopicState(name, *made, [])",
        "TopicState(name, made[0], 0, [])",
    ),
    Mutant(
        "restored-producer-remembers-one-batch",
        "broker/state/sequences.py",
        "self._recent[key] = tuple(batches)",
        "self._recent[key] = tuple(batches[-1:])",
    ),
    Mutant(
        "restored-offsets-are-not-counted",
        "broker/state/offsets.py",
        "        self._put(topic, group, offsets, is_new=before is None)\n",
        "        self._put(topic, group, offsets, is_new=False)\n",
    ),
    Mutant(
        "restored-machine-forgets-the-time",
        "broker/state/machine.py",
        "self.append_time_ms, self.messages_applied = own.take(_OWN)",
        "_, self.messages_applied = own.take(_OWN)",
    ),
    Mutant(
        "all-topics-of-one-incarnation",
        "broker/state/machine.py",
        "incarnation=header.index,",
        "incarnation=1,",
    ),
    Mutant(
        "batch-for-a-missing-queue-ends-the-node",
        "broker/state/topics.py",
        "        if queue_id >= len(topic.next_offsets):\n",
        "        if False:\n",
        masked="a leader proposes nothing that would be void",
    ),
    Mutant(
        "sequence-not-judged-when-applied",
        "broker/state/machine.py",
        "        if refusal is None and producer != NO_PRODUCER:\n",
        "        if False:\n",
        masked="a leader proposes nothing that would be void",
    ),
)
