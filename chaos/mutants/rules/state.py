"""Defects in replicated state, `broker/state`: the same on every member, from the log alone."""

from __future__ import annotations

from chaos.mutants.mutant import Mutant

STATE = (
    Mutant(
        "deleted-topic-keeps-its-queues",
        "broker/state/commands.py",
        "            self._queues.delete_topic(topic.folder)\n",
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
        "broker/state/effects.py",
        "        state.offsets.on_topic_deleted(topic.name)\n",
        "",
    ),
    Mutant(
        "deleted-topic-leaves-its-queues-counted",
        "broker/state/topics.py",
        "        self._queue_count -= len(topic.next_offsets)\n",
        "",
    ),
    Mutant(
        "snapshot-without-its-last-records",
        "broker/state/snapshot.py",
        '    yield b"".join(gathered)\n\n\ndef pack_text',
        '    yield b""\n\n\ndef pack_text',
    ),
    Mutant(
        "snapshot-of-the-entry-before",
        "broker/state/replicated.py",
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
        "restored-topic-forgets-its-birth",
        "broker/state/topics.py",
        "TopicState(name, *made, [])",
        "TopicState(name, made[0], 0, [])",
    ),
    Mutant(
        "restored-offsets-are-not-counted",
        "broker/state/offsets.py",
        "        self._put(topic, group, offsets, is_new=before is None)\n",
        "        self._put(topic, group, offsets, is_new=False)\n",
    ),
    Mutant(
        "all-topics-of-one-incarnation",
        "broker/state/commands.py",
        "incarnation=header.index,",
        "incarnation=1,",
    ),
    Mutant(
        "batch-for-a-missing-queue-ends-the-node",
        "broker/state/topics.py",
        "        if not 0 <= queue_id < len(topic.next_offsets):\n",
        "        if False:\n",
        masked="a leader proposes nothing that would be void",
        tests=("tests/broker/test_machine.py",),
    ),
    Mutant(
        "sequence-not-judged-when-applied",
        "broker/state/machine.py",
        "        if refusal is None and producer != NO_PRODUCER:\n",
        "        if False:\n",
        masked="a leader proposes nothing that would be void",
        tests=("tests/broker/test_machine.py",),
    ),
    Mutant(
        "deleted-topic-leaves-its-sequences",
        "broker/state/effects.py",
        "        state.producers.on_topic_deleted(topic.incarnation)\n",
        "",
    ),
    Mutant(
        "all-producers-looked-at-for-a-deleted-topic",
        "broker/state/producers.py",
        "        for key, queue_ids in self._senders.pop(incarnation, {}).items():\n",
        "        self._senders.pop(incarnation, {})\n"
        "        for key, queue_ids in [\n"
        "            (_key(each), [at for topic, at in each.queues if topic == incarnation])\n"
        "            for each in tuple(self)\n"
        "        ]:\n",
        masked="it costs time and no truth",
        tests=("tests/broker/test_owners.py",),
    ),
    Mutant(
        "forgotten-producer-is-still-a-topics-sender",
        "broker/state/producers.py",
        "            del self._senders[incarnation][_key(producer)]\n",
        "            pass\n",
        tests=("tests/broker/test_owners.py",),
    ),
    Mutant(
        "unknown-producer-taken-for-a-new-one",
        "broker/state/producers.py",
        "        if producer is None:\n            return ProducerUnknown(identity)\n",
        "        if producer is None:\n"
        "            producer = Producer(identity, identity, '', 0)\n"
        "            self._add(producer)\n"
        "            return producer\n",
    ),
    Mutant(
        "producers-in-use-forgotten",
        "broker/state/producers.py",
        "            if now_ms - producer.used_ms >= unused_ms:\n",
        "            if now_ms - producer.used_ms >= 0:\n",
        masked="a leader names nobody who was used lately",
        tests=("tests/broker/test_owners.py",),
    ),
    Mutant(
        "forgetting-begins-at-the-wrong-end",
        "broker/state/producers.py",
        "            for producer in islice(producers, limit - len(found)):\n"
        "                if now_ms - producer.used_ms < unused_ms:\n"
        "                    break\n",
        "            for producer in islice(reversed(producers), limit - len(found)):\n",
        masked="120 s of seeds did not show it",
        tests=("tests/broker/test_append.py",),
    ),
    Mutant(
        "use-does-not-keep-a-producer",
        "broker/state/producers.py",
        "        self._use(producer, now_ms)\n\n    def on_topic_deleted",
        "\n    def on_topic_deleted",
    ),
    Mutant(
        "name-taken-over-without-fencing",
        "broker/state/producers.py",
        "            return producer\n        if identity in producer.superseded:\n"
        "            return ProducerFenced(producer.name)\n",
        "            return producer\n        if identity in producer.superseded:\n"
        "            return producer\n",
    ),
    Mutant(
        "name-forgets-its-numbers-when-taken-over",
        "broker/state/producers.py",
        "            self._supersede(held, identity)\n",
        "            self._supersede(held, identity)\n            held.queues = {}\n",
    ),
    Mutant(
        "registration-sent-again-is-a-second-one",
        "broker/state/producers.py",
        "            return None if same else ProducerFenced(wanted.name)\n",
        "            del self._tokens[wanted.token]\n",
        masked="a second registration is one that nobody uses",
        tests=("tests/broker/test_owners.py",),
    ),
    Mutant(
        "fenced-producer-takes-its-name-back",
        "broker/state/producers.py",
        "            if wanted.previous and wanted.previous != held.producer_id:\n",
        "            if False:\n",
        masked="no producer of a run asks for its name back",
        tests=("tests/broker/test_owners.py",),
    ),
    Mutant(
        "snapshot-loses-who-was-used-last",
        "broker/state/producers.py",
        "pack(_records(tuple(self)))",
        "pack(_records(sorted(self, key=lambda each: each.producer_id)))",
    ),
    Mutant(
        "producer-that-a-snapshot-shows-is-changed",
        "broker/state/producers.py",
        "        if producer.snapshots == self._snapshots:\n",
        "        if True:\n",
    ),
    Mutant(
        "restored-producer-remembers-one-batch",
        "broker/state/producers.py",
        "            last.queues[incarnation, queue_id] = recent_of(taken)\n",
        "            last.queues[incarnation, queue_id] = recent_of(taken[-1:])\n",
    ),
    Mutant(
        "restored-machine-forgets-the-time",
        "broker/state/replicated.py",
        "self.append_time_ms, self.messages_applied = own.take(_OWN)",
        "_, self.messages_applied = own.take(_OWN)",
    ),
    Mutant(
        "incarnation-not-judged-when-applied",
        "broker/state/topics.py",
        "        if incarnation not in (0, topic.incarnation):  ",
        "        if False:  ",
        masked="a leader proposes nothing that would be void",
        tests=("tests/broker/test_owners.py", "tests/broker/test_machine.py"),
    ),
    Mutant(
        "late-delete-of-a-later-topic-applied",
        "broker/state/effects.py",
        "        if not meant.means(topic.incarnation):\n",
        "        if False:\n",
        masked="no client is told which topic its delete has ended",
        tests=("tests/broker/test_machine.py",),
    ),
    Mutant(
        "late-commit-in-a-later-topic-applied",
        "broker/state/commands.py",
        "        topic = self._effects.meant(TopicRef(command.topic, command.topic_incarnation))\n",
        "        topic = self._effects.meant(TopicRef(command.topic))\n",
        masked="who races for topics commits nothing in them",
        tests=("tests/broker/test_machine.py",),
    ),
    Mutant(
        "records-that-lie-end-every-replica",
        "broker/state/machine.py",
        "        except (FormatError, DivergenceFound) as error:\n",
        "        except ZeroDivisionError as error:\n",
        masked="a leader proposes nothing that would be void",
        tests=("tests/broker/test_machine.py",),
    ),
    Mutant(
        "level-jumps",
        "broker/state/level.py",
        "return None if wanted == self.current + 1 else",
        "return None if wanted > self.current else",
        masked="leaders take one step at a time",
        tests=("tests/broker/test_machine.py",),
    ),
    Mutant(
        "level-gate-skipped",
        "broker/state/commands.py",
        'if COMMAND_LEVELS.get(name or "", FIRST_LEVEL) > self._state.level.current:',
        "if False:",
        masked="there is no command of a later level yet",
        tests=("tests/broker/test_machine.py",),
    ),
    Mutant(
        "level-taken-that-is-not-known",
        "broker/state/commands.py",
        "        if wanted > self._known_level:\n",
        "        if False:\n",
        masked="no program is put back to an older one in a run",
        tests=("tests/broker/test_machine.py", "tests/node/test_levels.py"),
    ),
    Mutant(
        "older-program-takes-derived-files-for-wrong",
        "broker/state/replay.py",
        "    except ApplyStopped:\n",
        "    except ApplyStopped:\n        raise\n",
        masked="no program is put back to an older one in a run",
        tests=("tests/node/test_levels.py",),
    ),
    Mutant(
        "restored-machine-is-of-the-first-level",
        "broker/state/level.py",
        "        (self.current,) = single_record(SECTION, payloads, _OWN)\n",
        "        single_record(SECTION, payloads, _OWN)\n",
        tests=("tests/broker/test_machine.py",),
    ),
)
