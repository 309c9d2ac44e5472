"""Defects in reads and the services' rules, `broker/reading` and `broker/services`."""

from __future__ import annotations

from chaos.mutants.mutant import Mutant

READING = (
    Mutant(
        "what-is-not-applied-found-by-its-id",
        "broker/reading/committed.py",
        "< self.end_of_entry(self._applied_index()):",
        "< self._log.end_offset:",
        masked="no simulated client asks for a message by its id",
        tests=("tests/broker/test_units.py",),
    ),
    Mutant(
        "gap-told-by-an-unconfirmed-leader",
        "broker/services/messages.py",
        "        if any(_is_absence(each) for each in answers):\n",
        "        if False:\n",
    ),
    Mutant(
        "stale-read-of-the-end",
        "broker/services/offsets.py",
        "        await self._gate.confirm()\n        return QueueBounds(",
        "        self._gate.check_serving()\n        return QueueBounds(",
    ),
    Mutant(
        "stale-read-of-an-offset",
        "broker/services/offsets.py",
        "        await self._gate.confirm()\n        self._reader.topic(topic)\n",
        "        self._gate.check_serving()\n        self._reader.topic(topic)\n",
        masked="120 s of seeds did not show it",
        tests=("tests/broker/test_services.py",),
    ),
    Mutant(
        "many-queues-told-of-a-later-topic",
        "broker/services/queue_pulls.py",
        "            if topic is not None and not wish.topic.incarnation:\n",
        "            if False:\n",
        masked="no simulated topic is deleted and made anew in one turn under who waits for it",
        tests=("tests/broker/test_services.py",),
    ),
    Mutant(
        "pull-skips-a-message",
        "broker/reading/queues.py",
        "        return Found(records, count, offset + voids + count, low, high, "
        "state.incarnation, voids)\n",
        "        at = int.from_bytes(records[:4], 'big') if count > 5 else 0\n"
        "        return Found(records[at:], count - (at > 0), offset + voids + count, low, high, "
        "state.incarnation, voids)\n",
    ),
    Mutant(
        "rotten-unit-served",
        "broker/reading/queues.py",
        "        good = proven(records, units, place) if taken else 0\n",
        "        good = taken\n",
        tests=("tests/broker/test_reads.py",),
    ),
    Mutant(
        "unit-of-another-queue-served",
        "broker/reading/proof.py",
        "        expected = (size, place.queue_id, offsets[count], physical)\n",
        "        expected = (size, _HEAD.unpack_from(records, at)[1], offsets[count], physical)\n",
        masked="no flipped bit leads to another queue's record of the same offset and size",
        tests=("tests/broker/test_reads.py",),
    ),
    Mutant(
        "unit-of-an-earlier-topic-served",
        "broker/reading/proof.py",
        "            if not is_of_topic or physical <= place.created_at:\n",
        "            if not is_of_topic:\n",
        masked="no flipped bit leads to the record of an earlier topic",
        tests=("tests/broker/test_reads.py",),
    ),
    Mutant(
        "rotten-unit-told-to-nobody",
        "broker/reading/queues.py",
        "            self._suspect(topic, place.queue_id)\n",
        "            pass\n",
        tests=("tests/broker/test_reads.py",),
    ),
    Mutant(
        "unit-that-points-nowhere-is-an-error",
        "broker/reading/queues.py",
        '        except OutOfRange:\n            return b"".join(pieces), False\n',
        "        finally:\n            pass\n",
        tests=("tests/broker/test_reads.py",),
    ),
    Mutant(
        "implausible-sizes-are-read",
        "broker/reading/queues.py",
        "        count, voids = plausible(units), 0\n",
        "        count, voids = len(units) // UNIT.size, 0\n",
        masked="what is read for nothing is thrown away; it may be gibibytes",
        tests=("tests/broker/test_reads.py",),
    ),
    Mutant(
        "implausible-sizes-are-read-behind-void-units",
        "broker/reading/queues.py",
        "            count = plausible(units)\n",
        "            count = len(units) // UNIT.size\n",
        masked="what is read for nothing is thrown away; it may be gibibytes",
        tests=("tests/broker/test_reads.py",),
    ),
    Mutant(
        "whole-batch-walked-for-one-of-its-records",
        "dledger/records/record.py",
        "    while here < at and left:\n",
        "    while here != at and left:\n",
        masked="a slower look says the same",
        tests=("tests/store/test_record.py",),
    ),
    Mutant(
        "rot-in-the-log-refused-and-forgotten",
        "broker/services/soundness.py",
        "            self._fail(error)\n",
        "",
        masked="the node goes on refusing what it can't read, and nobody is told",
        tests=("tests/broker/test_services.py",),
    ),
)
