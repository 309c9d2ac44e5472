"""Defects in tags chosen at the broker (docs/adr/0059-tags-at-the-broker.md): what is passed over,
how far a pull says that it has looked, what groups agree on."""

from __future__ import annotations

from typing import Final

from chaos.mutants.mutant import Mutant

_TESTS: Final = ("tests/broker/test_filters.py",)
_TEXTS: Final = ("tests/broker/test_texts.py",)
_CLIENT: Final = ("tests/client/test_tags.py", "tests/client/members/test_tags.py")
_MARKS: Final = ("tests/store/test_unit_marks.py",)
_TAGS: Final = "broker/reading/tags.py"
_QUEUES: Final = "broker/reading/queues.py"
_PULLS: Final = "broker/services/queue_pulls.py"
_GROUPS: Final = "broker/state/groups.py"
_NO_ROT: Final = "ConsumeQueues don't rot in the simulator while members read by tags"
_AGREED: Final = "all members of a simulated group want the same tags"
_NO_SUCH_CLIENT: Final = "the simulator's clients have no such code"

FILTERS: Final = (
    Mutant(
        "tag-believed-by-its-hash",
        _QUEUES,
        "        if carries(records, at, at + size, tags):\n",
        "        if tags:\n",
        masked="members choose once more by themselves",
        tests=_TESTS,
    ),
    Mutant(
        "looked-further-than-was-given",
        _QUEUES,
        "        end = int(look.wanted[taken]) if taken < len(look.wanted) else look.end\n",
        "        end = look.end\n",
        tests=_TESTS,
    ),
    Mutant(
        "looked-no-further-than-the-last-one-given",
        _QUEUES,
        "        end = int(look.wanted[taken]) if taken < len(look.wanted) else look.end\n",
        "        end = int(numbers[taken - 1]) + 1 if taken else look.end\n",
        masked="whoever pulls again looks at the rest again: slower, and no message is lost",
        tests=_TESTS,
    ),
    Mutant(
        "units-that-are-none-passed-over",
        _TAGS,
        "    end = len(good) if good.all() else int(np.argmin(good))\n",
        "    end = len(good)\n",
        masked=_NO_ROT,
        tests=_TESTS,
    ),
    Mutant(
        "hash-that-has-flipped-is-believed",
        _TAGS,
        "    is_wanted[sure:] = True\n",
        "",
        masked="one bit of one hash, between two pulls of a group that wants that tag",
        tests=_TESTS,
    ),
    Mutant(
        "units-vouched-for-unseen",
        "store/unit_marks.py",
        "            if crc32c(piece, self._marks[(at - self.first) // STEP]) != expected:\n",
        "            if False:\n",
        masked="as above",
        tests=_MARKS,
    ),
    Mutant(
        "marks-of-units-that-went-stay",
        "store/consumequeue.py",
        "            marks.forget_before(first)\n",
        "            pass\n",
        masked="it costs memory and no truth",
        tests=_MARKS,
    ),
    Mutant(
        "marks-forgotten-and-the-first-one-stays",
        "store/unit_marks.py",
        "            self.first += steps * STEP\n",
        "",
        masked="as above",
        tests=_MARKS,
    ),
    Mutant(
        "files-that-are-wrong-teach-the-marks",
        "store/consumequeue.py",
        "        if marks.crc != crc:\n            return False\n"
        "        self._marks[(topic, queue_id)] = marks\n        return True\n",
        "        self._marks[(topic, queue_id)] = marks\n        return marks.crc == crc\n",
        masked="as above",
        tests=_MARKS,
    ),
    Mutant(
        "marks-outlive-their-topic",
        "store/consumequeue.py",
        "        for known in (self._queues, self._begun, self._marks):\n",
        "        for known in (self._queues, self._begun):\n",
        masked="a topic's folder is never used again",
        tests=_MARKS,
    ),
    Mutant(
        "void-units-taken-for-what-their-mark-says",
        _TAGS,
        "    voids = voids[voids < end]\n",
        "    voids, good = voids[:0], good & (sizes > 0)\n    end = min(end, len(good))\n",
        tests=_TESTS,
    ),
    Mutant(
        "filter-of-another-version",
        _PULLS,
        "        tags = tags_for(group.versions[holder.version].tags, wish.topic.name)\n",
        "        tags = tags_for(next(iter(group.versions.values())).tags, wish.topic.name)\n",
        masked=_AGREED,
        tests=_TESTS,
    ),
    Mutant(
        "older-members-pass-over-what-is-wanted-now",
        _GROUPS,
        "        return is_known and filters.tags_for(own.tags, topic) == "
        "filters.tags_for(now.tags, topic)\n",
        "        return is_known\n",
        masked=_AGREED,
        tests=_TESTS,
    ),
    Mutant(
        "other-tags-are-let-in",
        _GROUPS,
        '        return (*found, "tags") if filters.differ(self.tags, other.tags) else found\n',
        "        return found\n",
        masked=_AGREED,
        tests=_TESTS,
    ),
    Mutant(
        "filters-not-in-the-snapshot",
        _GROUPS,
        "            if each.tags is not None\n",
        "            if each.tags is not None and version < 0\n",
        tests=_TESTS,
    ),
    Mutant(
        "long-tag-that-no-snapshot-holds",
        "broker/state/filters.py",
        "    return pack_text(tag, MAX_TAGS_BYTES)\n",
        "    return pack_text(tag)\n",
        masked=_AGREED,
        tests=_TEXTS,
    ),
    Mutant(
        "leader-lets-a-group-want-a-tag-that-ends-older-members",
        "broker/services/attendance.py",
        "        why = malformed(wish) or too_long(wish.settings.tags)\n",
        "        why = malformed(wish)\n",
        masked=_AGREED,
        tests=_TEXTS,
    ),
    Mutant(
        "filters-of-a-level-that-has-none",
        "broker/state/consuming.py",
        "    else:\n        settings = replace(settings, max_attempts=0)\n",
        "    settings = replace(settings, tags=filters_of(command.settings))\n",
        masked="no leader writes them on that level",
        tests=_TESTS,
    ),
    Mutant(
        "passed-over-and-not-told",
        _PULLS,
        "                return found + [(at, each) for at, each in passed.items() if "
        "_is_apart(at, found)]\n",
        "                return found\n",
        tests=_TESTS,
    ),
    Mutant(
        "many-queues-looked-through-in-one-turn",
        _PULLS,
        "                looks -= got.filtered_count\n",
        "",
        masked="it takes longer, and no message is lost",
        tests=_TESTS,
    ),
    Mutant(
        "what-is-not-wanted-ends-the-hold",
        _PULLS,
        "        if found.count or not found.filtered_count:\n",
        "        if True:\n",
        masked="an answer that comes too early is asked for again",
        tests=_TESTS,
    ),
    Mutant(
        "queue-empty-though-only-looked-at-in-part",
        "dledger/client/fetching.py",
        "        if answer.count or answer.next_offset < answer.max_offset or",
        "        if answer.count or",
        masked=_NO_SUCH_CLIENT,
        tests=_CLIENT,
    ),
    Mutant(
        "passed-over-at-the-broker-and-read-again",
        "dledger/client/topic_reading.py",
        "        begins, ends = chunk.answer.asked.offset, chunk.answer.next_offset\n",
        "        begins = ends = chunk.answer.asked.offset\n",
        masked=_NO_SUCH_CLIENT,
        tests=_CLIENT,
    ),
)
