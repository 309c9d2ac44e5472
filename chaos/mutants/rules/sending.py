"""Defects in what a single send may ask for: deadlines, one way, compression, hooks; and in what
the client does when brokers have no room."""

from __future__ import annotations

from typing import Final

from chaos.mutants.mutant import Mutant

_MASKED: Final = "the simulator's clients have no such code"
_LANE: Final = "tests/client/test_lane.py"
_HOLDING: Final = "tests/client/test_holding.py"
_SENDING: Final = "tests/client/test_sending.py"
_HOOKS: Final = "tests/client/test_hooks.py"
_CROSSING: Final = "tests/client/test_crossing.py"
_CODECS: Final = "tests/store/test_compression.py"
_AS_DATA: Final = "tests/audit/test_compressed_bodies.py"


def _broken(name: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(name, file, old, new, masked=_MASKED, tests=tests)


SENDING: Final = (
    _broken(
        "hasty-message-fails-those-behind-it",
        "dledger/client/lane.py",
        "        while self.window and self.window[0].limit <= now:\n",
        "        while self.window and self.window[0].deadline <= now:\n",
        _LANE,
    ),
    _broken(
        "overdue-in-flight-called-not-stored",
        "dledger/client/lane.py",
        "        outcome = Outcome.MAY_HAVE_HAPPENED\n        if not (batch.doubtful",
        "        outcome = Outcome.DID_NOT_HAPPEN\n        if not (batch.doubtful",
        _LANE,
    ),
    _broken(
        "told-not-stored-and-sent-again",
        "dledger/client/lane.py",
        "            batch.state, batch.error = BatchState.REFUSED, error\n",
        "            batch.error = error\n",
        _LANE,
    ),
    _broken(
        "told-not-stored-and-sent-under-another-number",
        "dledger/client/lane.py",
        "            if batch.is_told and batch.state is BatchState.REFUSED:\n",
        "            if False:\n",
        _LANE,
    ),
    _broken(
        "overdue-behind-others-waits-for-them",
        "dledger/client/lane.py",
        "        for batch in self.window:\n            if _is_overdue(batch, now):\n",
        "        for batch in list(self.window)[:1]:\n            if _is_overdue(batch, now):\n",
        _LANE,
    ),
    _broken(
        "deadlines-of-the-told-looked-at-for-ever",
        "dledger/client/lane.py",
        "(batch.deadline for batch in self.batches() if not batch.is_over)\n",
        "(batch.deadline for batch in self.batches())\n",
        _LANE,
    ),
    _broken(
        "hasty-and-patient-share-a-batch",
        "dledger/client/dispatch.py",
        "        elif size > self._batch_bytes or lane.timeout_s != timeout_s:\n",
        "        elif size > self._batch_bytes:\n",
        _SENDING,
    ),
    _broken(
        "search-for-a-topic-outlasts-deadlines",
        "dledger/client/holding.py",
        "        self._arm(message.deadline)\n",
        "",
        _SENDING,
    ),
    _broken(
        "told-twice-when-it-is-stored-at-last",
        "dledger/client/dispatch.py",
        "        if batch.is_told:\n            self._end(batch)\n            return\n",
        "",
        _SENDING,
    ),
    _broken(
        "one-way-fails-uncounted",
        "dledger/client/producer.py",
        "        elif future is self._nobody:\n",
        "        elif future is None:\n",
        _SENDING,
    ),
    _broken(
        "room-for-some-ends-the-pause",
        "dledger/client/dispatch.py",
        " and not any(isinstance(e, Busy) for _, _, e in errors):\n",
        ":\n",
        _SENDING,
    ),
    _broken(
        "refused-together-back-together",
        "dledger/client/broker_group.py",
        "    return _BUSY_BACKOFF(state) if isinstance(error, Busy) else _BACKOFF(state)\n",
        "    return _BACKOFF(state)\n",
        _SENDING,
    ),
    _broken(
        "compressed-and-larger",
        "dledger/client/packing.py",
        "            if len(stored) < len(body):\n",
        "            if stored:\n",
        _SENDING,
    ),
    _broken(
        "small-bodies-compressed",
        "dledger/client/packing.py",
        "        if codec is not None and len(body) > self._above:\n",
        "        if codec is not None:\n",
        _SENDING,
    ),
    _broken(
        "compressed-and-not-said",
        "dledger/records/record.py",
        "            size, RECORD_MAGIC, crc, queue_id, flag, sysflag, born",
        "            size, RECORD_MAGIC, crc, queue_id, flag, 0, born",
        _CODECS,
    ),
    _broken(
        "compressed-bodies-handed-over-as-they-are",
        "dledger/records/record.py",
        "                compressed if sysflag & COMPRESSED_BIT else DecodedRecord,\n",
        "                DecodedRecord,\n",
        _CODECS,
    ),
    _broken(
        "zlib-without-a-bound",
        "dledger/records/compression.py",
        "        body = inflater.decompress(stored, MAX_MESSAGE_BYTES + 1)\n",
        "        body = inflater.decompress(stored)\n",
        _CODECS,
    ),
    _broken(
        "zstandard-believed-its-size",
        "dledger/records/compression.py",
        "        if size > MAX_MESSAGE_BYTES:\n",
        "        if False:\n",
        _CODECS,
    ),
    _broken(
        "zstandard-believed-to-be-empty",
        "dledger/records/compression.py",
        "        if size == 0:\n",
        "        if False:\n",
        _CODECS,
    ),
    _broken(
        "lz4-that-java-cannot-read",
        "dledger/records/compression.py",
        "block_linked=False",
        "block_linked=True",
        _CODECS,
    ),
    _broken(
        "broken-stream-taken-for-whole",
        "dledger/records/compression.py",
        "    if not reader.eof:\n",
        "    if False:\n",
        _CODECS,
    ),
    _broken(
        "older-zlib-not-known",
        "dledger/records/compression.py",
        "{0: Codec.ZLIB} | {codec.value: codec for codec in Codec}",
        "{codec.value: codec for codec in Codec}",
        _CODECS,
    ),
    _broken(
        "missing-library-is-a-null",
        "dledger/reading/columns.py",
        "    except CodecMissing:\n        raise\n    except BodyUnreadable:\n",
        "    except BodyUnreadable:\n",
        _AS_DATA,
    ),
    _broken(
        "compressed-bodies-as-data-are-as-stored",
        "dledger/reading/decode.py",
        "    if (sysflags & COMPRESSED_BIT).any():\n",
        "    if False:\n",
        _AS_DATA,
    ),
    _broken(
        "decompressed-without-a-bound",
        "dledger/reading/columns.py",
        "            if size >= limit:\n",
        "            if False:\n",
        _AS_DATA,
    ),
    _broken(
        "unreadable-body-ends-consume",
        "dledger_cli/consume.py",
        "            raise\n        except BodyUnreadable as error:\n",
        "            raise\n        except ZeroDivisionError as error:\n",
        "tests/cli/test_compressed.py",
    ),
    _broken(
        "stamp-that-fails-takes-the-message-along",
        "dledger/client/hooks.py",
        "            return encode(stamped)\n        except Exception as error:",
        "            return encode(stamped)\n        except NotImplementedError as error:",
        _HOOKS,
    ),
    _broken(
        "half-a-stamp-is-sent",
        "dledger/client/hooks.py",
        "            plain = encode(given)\n",
        "            plain = encode({'half': 'done', **(given or {})})\n",
        _HOOKS,
    ),
    _broken(
        "around-that-fails-ends-the-loop",
        "dledger/client/hooks.py",
        "            manager.__enter__()\n        except Exception as error:",
        "            manager.__enter__()\n        except NotImplementedError as error:",
        _HOOKS,
    ),
    _broken(
        "around-lasts-while-the-next-is-awaited",
        "dledger/client/consumer.py",
        "            if self._surrounding is not None:\n                self._surrounding.leave()",
        "            if self._surrounding is None:\n                raise AssertionError",
        _HOOKS,
    ),
    _broken(
        "around-never-hears-of-the-error",
        "dledger/client/consumer.py",
        "            self._surrounding.leave(kind, error, trace)\n",
        "            self._surrounding.leave()\n",
        _HOOKS,
    ),
    _broken(
        "stamped-in-the-loops-thread",
        "dledger/client/blocking_producer.py",
        "        if not self._packer.is_plain:\n",
        "        if False:\n",
        _HOOKS,
    ),
    _broken(
        "sent-by-reference",
        "dledger/client/blocking_producer.py",
        "            message = owned(message)\n",
        "",
        _CROSSING,
    ),
    _broken(
        "cancelled-and-failed-tells-nobody",
        "dledger/client/blocking_producer.py",
        "        if not future.may_settle():\n",
        "        if future.done() or not future.may_settle():\n",
        _CROSSING,
    ),
    _broken(
        "deadline-begins-where-there-is-room",
        "dledger/client/blocking_producer.py",
        "        deadline_s = message[6] if due is None else left_s(due)\n",
        "        deadline_s = message[6]\n",
        _CROSSING,
    ),
    _broken(
        "overdue-is-told-in-its-turn",
        "dledger/client/blocking_producer.py",
        "            self._overdue.note(crossing[3])\n",
        "            pass\n",
        _CROSSING,
    ),
    _broken(
        "overdue-in-front-holds-up-the-others",
        "dledger/client/blocking_producer.py",
        "asyncio.timeout(None if due is None else max(due - monotonic(), 0.0)):",
        "asyncio.timeout(None):",
        _CROSSING,
    ),
    _broken(
        "send-itself-outlasts-deadlines",
        "dledger/client/blocking_producer.py",
        "            if crossing.due_at is None:\n",
        "            if True:\n",
        _CROSSING,
    ),
    _broken(
        "no-two-deadlines-share-a-batch",
        "dledger/client/overdue.py",
        "    return ldexp(floor(mantissa * _PARTS), exponent) / _PARTS\n",
        "    return left\n",
        _CROSSING,
    ),
    _broken(
        "settled-twice",
        "dledger/client/sent.py",
        "        if self._is_over:\n",
        "        if False:\n",
        "tests/client/test_interruptions.py",
    ),
    _broken(
        "consume-erases-before-it-knows-the-topic",
        "dledger_cli/consume.py",
        "    await client.describe_topic(job.topic)\n",
        "",
        "tests/cli/test_consume_output.py",
    ),
    _broken(
        "next-run-of-a-group-overwrites-the-last",
        "dledger_cli/consume.py",
        "(os.O_APPEND if appends else 0)",
        "0",
        "tests/cli/test_consume_output.py",
    ),
    _broken(
        "lines-are-committed-before-they-are-on-disk",
        "dledger_cli/consume.py",
        "            await self._writer.sync()\n",
        "            pass\n",
        "tests/cli/test_consume_output.py",
    ),
    _broken(
        "texts-of-others-speak-to-the-terminal",
        "dledger/terminal/output.py",
        "        each if each.isprintable() else each.encode",
        "        each if each else each.encode",
        "tests/cli/test_texts_of_others.py",
    ),
    _broken(
        "who-comes-late-ends-with-the-first-search",
        "dledger/client/holding.py",
        "            if message.deadline > (due ",
        "            if error is None and message.deadline > (due ",
        _HOLDING,
    ),
    _broken(
        "what-is-to-move-ends-with-the-search",
        "dledger/client/holding.py",
        "                if not route.held and not any(_has_time(lane, due) for lane in frozen):\n",
        "                if not route.held:\n",
        _HOLDING,
    ),
    _broken(
        "flush-waits-for-who-comes-later",
        "dledger/client/holding.py",
        "search.done() and any(id(each) in meant for each in route.held):\n",
        "search.done():\n",
        _HOLDING,
    ),
)
