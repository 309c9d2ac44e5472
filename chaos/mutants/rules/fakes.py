"""Defects in the fake nodes, `dledger/testing`: answers that no real node would give."""

from __future__ import annotations

from chaos.mutants.mutant import Mutant

_SAME = "tests/testing/test_same_refusals.py::"
_FAKES = "tests/testing/test_fakes.py::"
_NO_FAKES = "the simulator's nodes are real ones"

FAKES = (
    Mutant(
        "fake-topics-of-one-name-are-one",
        "dledger/testing/fake_model.py",
        "if incarnation not in (0, present):",
        "if present < 0:",
        masked=_NO_FAKES,
        tests=(f"{_SAME}test_batch_for_a_former_topic_is_not_stored[fake]",),
    ),
    Mutant(
        "fake-topic-leaves-offsets-behind",
        "dledger/testing/fake_model.py",
        "self.offsets = {key: each for key, each in self.offsets.items() if key[1] != name}",
        "pass",
        masked=_NO_FAKES,
        tests=(f"{_SAME}test_topic_leaves_nothing_to_its_successor[fake]",),
    ),
    Mutant(
        "fake-desk-outlives-its-topic",
        "dledger/testing/fake_deliveries.py",
        "        group.model.when_deleted.append(self._forget)\n",
        "",
        masked=_NO_FAKES,
        tests=(f"{_SAME}test_style_of_a_group_goes_with_its_only_topic[fake]",),
    ),
    Mutant(
        "fake-commits-beyond-the-end",
        "dledger/testing/fake_nodes.py",
        "if wanted.offset > len(queue.records):",
        "if wanted.offset < 0:",
        masked=_NO_FAKES,
        tests=(f"{_SAME}test_offsets_are_committed_where_messages_are[fake]",),
    ),
    Mutant(
        "fake-takes-batches-for-brokers-own-topics",
        "dledger/testing/fake_model.py",
        "        check_own(batch.topic)\n",
        "",
        masked=_NO_FAKES,
        tests=(f"{_SAME}test_brokers_own_topics_are_only_read[fake-%DLQ%g]",),
    ),
    Mutant(
        "fake-topics-of-any-name",
        "dledger/testing/fake_topics.py",
        "if not TOPIC_PATTERN.fullmatch(name):",
        "if len(name) > 255:",
        masked=_NO_FAKES,
        tests=(f"{_SAME}test_topics_have_names_and_numbers_of_queues",),
    ),
    Mutant(
        "fake-holds-who-waits-for-a-topic-that-is-gone",
        "dledger/testing/fake_nodes.py",
        "self.model.queues(request.topic, incarnation)",
        "pass",
        masked=_NO_FAKES,
        tests=(f"{_SAME}test_held_calls_end_with_the_topic[fake]",),
    ),
    Mutant(
        "fake-members-hold-a-topic-that-is-gone",
        "dledger/testing/fake_members.py",
        "        group.model.when_deleted.append(self._forget)\n",
        "",
        masked=_NO_FAKES,
        tests=(f"{_FAKES}test_deleted_topic_is_nobodys_at_once",),
    ),
    Mutant(
        "fake-failures-outlive-their-topic",
        "dledger/testing/fake_retries.py",
        "        group.model.when_deleted.append(self._forget)\n",
        "",
        masked=_NO_FAKES,
        tests=(f"{_FAKES}test_deleted_topic_is_nobodys_at_once",),
    ),
    Mutant(
        "fake-groups-miss-topics-made-after-them",
        "dledger/testing/fake_members.py",
        "wish = settings.start if is_older else kpb.START_FIRST",
        "wish = settings.start",
        masked=_NO_FAKES,
        tests=(f"{_SAME}test_groups_miss_nothing_of_a_topic_made_after_them",),
    ),
)
