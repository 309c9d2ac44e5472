"""Topics as Spark tables, `dledger/spark`: rows that are missing, there twice or others."""

from __future__ import annotations

from typing import Final

from chaos.mutants.mutant import Mutant

_NO_SPARK: Final = "no Spark reads or writes while a group is simulated"
_SINK: Final = "tests/spark/test_sink.py::"
_STEPS: Final = "tests/spark/test_steps.py"
_OTHER_SIDE: Final = "tests/spark/test_other_side.py::"
_FOLLOWING: Final = "tests/spark/test_following.py::"
_GOES_ON: Final = "test_stream_goes_on_when_its_topic_has_fewer_queues_and_more_again"
_READING: Final = "tests/spark/test_reading.py::"

TOPIC_TABLES = (
    Mutant(
        "rows-are-numbered-from-zero-in-each-batch",
        "dledger/spark/sink.py",
        "        numbers = self._numbers.get((topic, target.incarnation), {})\n",
        "        numbers: dict[int, int] = {}\n",
        masked=_NO_SPARK,
        tests=(_SINK + "test_rows_are_stored_in_their_order",),
    ),
    Mutant(
        "attempt-under-a-name-of-its-own",
        "dledger/spark/sink.py",
        '        name = f"{self._writing.producer}-{self._partition}"\n',
        '        name = f"{self._writing.producer}-{os.urandom(4).hex()}"\n',
        masked=_NO_SPARK,
        tests=(_SINK + "test_two_attempts_at_once_end_with_one",),
    ),
    Mutant(
        "rows-before-their-intent",
        "dledger/spark/sink.py",
        "        if new and self._writing.has_intents:\n",
        "        if False:\n",
        masked=_NO_SPARK,
        tests=(_SINK + "test_other_rows_than_before_are_refused",),
    ),
    Mutant(
        "batch-committed-without-looking-for-others",
        "dledger/spark/sink.py",
        "    progress.check_all_told(intents, writing.batch, {each.partition for each in told})\n",
        "",
        masked=_NO_SPARK,
        tests=(_SINK + "test_partitions_that_a_repeated_batch_lacks_are_told_of",),
    ),
    Mutant(
        "batch-over-and-written-again",
        "dledger/spark/progress.py",
        "    if later:\n",
        "    if False:\n",
        masked=_NO_SPARK,
        tests=(_SINK + "test_attempt_that_outlived_its_batch_stores_nothing",),
    ),
    Mutant(
        "rows-to-all-queues-that-are-read",
        "dledger/spark/rows.py",
        "len(topic.bounds), topic.write_queues, topic.changed)",
        "len(topic.bounds), len(topic.bounds), topic.changed)",
        masked=_NO_SPARK,
        tests=(_SINK + "test_rows_go_to_queues_that_take_messages",),
    ),
    Mutant(
        "repeated-rows-by-the-queues-of-now",
        "dledger/spark/steps.py",
        "        queues = intent.write_queues or target.read_queues  #",
        "        queues = target.write_queues  #",
        masked=_NO_SPARK,
        tests=(_STEPS, _SINK + "test_topic_resized_between_attempts_gets_each_row_once"),
    ),
    Mutant(
        "next-step-forgets-queues-of-the-one-before",
        "dledger/spark/steps.py",
        "    intent = TopicIntent(target.incarnation, before | own, ",
        "    intent = TopicIntent(target.incarnation, own, ",
        masked=_NO_SPARK,
        tests=(_STEPS,),
    ),
    Mutant(
        "step-begins-where-the-task-began",
        "dledger/spark/steps.py",
        "from_zero=from_zero and not taken)",
        "from_zero=from_zero)",
        masked=_NO_SPARK,
        tests=(_SINK + "test_topic_resized_between_attempts_gets_each_row_once",),
    ),
    Mutant(
        "rows-chosen-by-no-state-of-the-topic",
        "dledger/spark/sending.py",
        "        queues_changed=send.changed,\n",
        "",
        masked=_NO_SPARK,
        tests=(_SINK + "test_topic_resized_while_a_task_writes_gets_each_row_once",),
    ),
    Mutant(
        "nameless-write-goes-on-in-other-queues",
        "dledger/spark/sink.py",
        "and rows.target.changed > self._writing.as_of:\n",
        "and False:\n",
        masked=_NO_SPARK,
        tests=(_SINK + "test_write_without_a_name_ends_if_its_topic_was_resized_in_the_middle",),
    ),
    Mutant(
        "refused-rows-count-as-stored",
        "dledger/spark/sending.py",
        '        if not result.HasField("error"):\n',
        "        if True:\n",
        masked=_NO_SPARK,
        tests=(_SINK + "test_answer_that_is_lost_is_asked_for_again_within_the_attempt",),
    ),
    Mutant(
        "range-ends-with-the-next-ones-first",
        "dledger/spark/topics.py",
        "            yield replace(self, start=start, end=min(start + most, self.end))\n",
        "            yield replace(self, start=start, end=min(start + most + 1, self.end))\n",
        masked=_NO_SPARK,
        tests=(_READING + "test_ranges_are_cut_and_together_the_whole",),
    ),
    Mutant(
        "batch-begins-behind-its-first-message",
        "dledger/spark/following.py",
        "            yield QueueRange(name, *made, queue_id, low, high)\n",
        "            yield QueueRange(name, *made, queue_id, low + 1, high)\n",
        masked=_NO_SPARK,
        tests=(_FOLLOWING + "test_stream_goes_on_where_its_offset_says",),
    ),
    Mutant(
        "planned-topic-is-any-of-its-name",
        "dledger/spark/topics.py",
        "(part.incarnation, part.created_ms):\n        raise TopicReplaced(",
        "(part.incarnation, part.created_ms) and False:\n        raise TopicReplaced(",
        masked=_NO_SPARK,
        tests=(_OTHER_SIDE + "test_range_of_a_topic_of_the_same_incarnation_elsewhere_is_refused",),
    ),
    Mutant(
        "checkpoint-of-another-group-goes-on",
        "dledger/spark/following.py",
        '    if before["created"] != now["created"]:\n',
        "    if False:\n",
        masked=_NO_SPARK,
        tests=(_OTHER_SIDE + "test_checkpoint_of_another_broker_group_is_noticed",),
    ),
    Mutant(
        "stream-goes-on-in-the-topic-made-anew",
        "dledger/spark/following.py",
        '    if before["incarnation"] != now["incarnation"]:\n',
        "    if False:\n",
        masked=_NO_SPARK,
        tests=(_FOLLOWING + "test_topic_made_anew_ends_a_stream_or_begins_anew_in_it",),
    ),
    Mutant(
        "stream-waits-in-a-deleted-topic",
        "dledger/spark/following.py",
        "    if now is None:\n        raise DataLost(",
        "    if now is None:\n        return\n        raise DataLost(",
        masked=_NO_SPARK,
        tests=(_FOLLOWING + "test_deleted_topic_is_waited_for_or_ends_the_stream",),
    ),
    Mutant(
        "stream-waits-for-its-offset-to-come-by",
        "dledger/spark/following.py",
        "        if end < read:\n",
        "        if False:\n",
        masked=_NO_SPARK,
        tests=(_OTHER_SIDE + "test_queue_that_ends_before_what_was_read_is_a_loss",),
    ),
    Mutant(
        "stream-forgets-queues-that-went",
        "dledger/spark/following.py",
        "    told = _told(topic, [*(high for _, high in topic.bounds), *gone])\n",
        "    gone = ()\n    told = _told(topic, [high for _, high in topic.bounds])\n",
        masked=_NO_SPARK,
        tests=(_FOLLOWING + _GOES_ON,),
    ),
    Mutant(
        "stream-passes-over-a-queue-that-went-unread",
        "dledger/spark/following.py",
        "        if read < gone.get(str(queue_id), read):\n",
        "        if False:\n",
        masked=_NO_SPARK,
        tests=(_FOLLOWING + "test_queue_that_went_unread_is_a_loss",),
    ),
    Mutant(
        "queue-that-came-back-begins-at-zero",
        "dledger/spark/following.py",
        "*(begins.get(str(each), 0) for each in range(len(at), count))",
        "*(0 for each in range(len(at), count))",
        masked=_NO_SPARK,
        tests=(_FOLLOWING + "test_queue_that_was_gone_before_the_stream_begins_where_it_ended",),
    ),
    Mutant(
        "end-with-fewer-queues-makes-no-batch",
        "dledger/spark/following.py",
        "    return [*at[:count], *(",
        "    return [*at, *(",
        masked=_NO_SPARK,
        tests=(
            _FOLLOWING + "test_batch_that_a_release_before_planned_with_fewer_queues_is_repeated",
        ),
    ),
    Mutant(
        "batches-of-any-size",
        "dledger/spark/following.py",
        "        if not isinstance(limit, ReadMaxRows):\n",
        "        if True:\n",
        masked=_NO_SPARK,
        tests=(_FOLLOWING + "test_batch_has_no_more_messages_than_allowed",),
    ),
    Mutant(
        "former-leaders-nothing-is-the-end",
        "dledger/spark/brokers.py",
        "            self._check_more(request)\n",
        '            raise OffsetOutOfRange(f"nothing at offset {offset}")\n',
        masked=_NO_SPARK,
        tests=(_OTHER_SIDE + "test_former_leader_that_has_nothing_yet_is_no_loss",),
    ),
    Mutant(
        "answer-with-a-gap-is-rows",
        "dledger/reading/decode.py",
        "        if (wrong := np.flatnonzero(found != expected)).size:\n",
        "        if (wrong := np.flatnonzero(found != expected)).size > count:\n",
        masked=_NO_SPARK,
        tests=(_READING + "test_messages_of_another_place_are_no_answer",),
    ),
)
