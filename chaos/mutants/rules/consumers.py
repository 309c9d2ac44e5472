"""Defects in members of consumer groups, `dledger/client/members`: what is handed out, committed,
given up."""

from __future__ import annotations

from chaos.mutants.mutant import Mutant

_NO_SUCH_CLIENT = "the simulator's clients have no such code"
_MACHINE = ("tests/client/members/test_member_machine.py",)
_FINISHED = ("tests/client/members/test_finished.py",)
_PUSH = ("tests/client/members/test_push.py",)
_READING = ("tests/client/members/test_reading.py",)
_BROADCAST = ("tests/client/members/test_broadcast.py",)
_LEAVING = ("tests/client/members/test_leaving.py",)
_REVOKING = ("tests/client/members/test_revoking.py",)
_FAILED = ("tests/client/members/test_failed_members.py",)
_SPELLS = ("tests/client/members/test_spells.py",)
_SIGNALS = ("tests/client/members/test_signals.py",)
_MEMBER = "dledger/client/members/member.py"
_QUEUE = "dledger/client/members/process_queue.py"
_FINISHED_FILE = "dledger/client/members/finished.py"
_SPELLS_FILE = "dledger/client/members/spells.py"
_WORKERS = "dledger/client/members/workers.py"
_MEMBERSHIP = "dledger/client/members/membership.py"
_ATTENDANCE = "dledger/client/members/attendance.py"


def _mutant(name: str, file: str, old: str, new: str, tests: tuple[str, ...]) -> Mutant:
    return Mutant(name, file, old, new, masked=_NO_SUCH_CLIENT, tests=tests)


CONSUMERS = (
    _mutant(
        "commit-above-what-is-finished",
        _FINISHED_FILE,
        "        if offset == self.frontier:\n            self.frontier = offset + 1\n",
        "        if offset >= self.frontier:\n            self.frontier = offset + 1\n",
        (*_MACHINE, *_FINISHED),
    ),
    _mutant(
        "failed-message-counts-as-finished",
        _QUEUE,
        "        work.failures += 1\n        if work.key is not None",
        "        work.failures += 1\n        self.finished.finish(work.message.queue_offset)\n"
        "        if work.key is not None",
        _MACHINE,
    ),
    _mutant(
        "runs-that-were-named-are-left-out",
        _FINISHED_FILE,
        "            runs = sorted([*named, *others[: MAX_RUNS - len(named)]])\n",
        "            runs = runs[:MAX_RUNS]\n",
        (_FINISHED[0] + "::test_what_was_named_goes_before_what_is_lower",),
    ),
    _mutant(
        "more-runs-named-than-brokers-take",
        _FINISHED_FILE,
        "            if len(named) > MAX_RUNS:\n                return self.frontier, known\n",
        "",
        (_FINISHED[0] + "::test_doubtful_runs_are_no_reason_to_name_too_many",),
    ),
    _mutant(
        "commit-that-nobody-answered-is-forgotten",
        _FINISHED_FILE,
        "        self._doubtful = sorted({*self._doubtful, *_firsts(runs)})\n",
        "        self._doubtful = []\n",
        (_FINISHED[0] + "::test_doubtful_runs_are_no_reason_to_name_too_many",),
    ),
    _mutant(
        "who-ends-has-no-time-for-on-revoke",
        _MEMBERSHIP,
        "LAST_REVOKE_S if self.member.is_stopping else 0.1",
        "0.1",
        (_REVOKING[0] + "::test_who_ends_has_time_for_on_revoke",),
    ),
    _mutant(
        "what-was-sought-back-from-is-committed",
        "dledger/client/members/reading.py",
        "        self._wished.pop(queue_id, None)  # by now it wants what lies there again\n",
        "",
        _READING,
    ),
    _mutant(
        "seeking-undoes-a-commit-that-waits-its-turn",
        "dledger/client/members/reading.py",
        "            frontier = max(self._wished.get(queue.place.queue_id, 0), known, *asked)\n",
        "            frontier = max(self._wished.get(queue.place.queue_id, 0), known)\n",
        _READING,
    ),
    _mutant(
        "handed-out-after-the-queue-was-asked-for",
        _QUEUE,
        "        if self.state is not Held.HELD or self.paused or not",
        "        if self.state is Held.GONE or self.paused or not",
        _MACHINE,
    ),
    _mutant(
        "handed-out-though-the-session-may-be-over",
        _MEMBER,
        "        return self._proved_at + STARTABLE_SHARE * self.times.session_s\n",
        '        return float("inf")\n',
        (*_MACHINE, *_PUSH),
    ),
    _mutant(
        "handed-out-for-the-whole-of-a-session",
        _MEMBER,
        "STARTABLE_SHARE: Final = 2 / 3",
        "STARTABLE_SHARE: Final = 1",
        _MACHINE,
    ),
    _mutant(
        "heartbeat-counts-from-its-answer",
        _ATTENDANCE,
        "                attendee.on_answered(sent_at)\n",
        "                attendee.on_answered(clock())\n",
        ("tests/client/members/test_attendance.py",),
    ),
    _mutant(
        "cancelled-stream-ends-all-members",
        _ATTENDANCE,
        "            if _is_cancelled():\n                raise\n\n    async def _write_on",
        "            raise\n\n    async def _write_on",
        ("tests/client/members/test_attendance.py",),
    ),
    _mutant(
        "queue-asked-for-twice-goes-by-the-first-time",
        _MEMBER,
        "            if queue.is_told and queue in queues:\n",
        "            if queue in queues:\n",
        _MACHINE,
    ),
    _mutant(
        "queue-goes-with-a-handler-that-was-given-it-back",
        _MEMBER,
        "        for queue in self.drained(now):\n"
        "            if queue.is_told and queue in queues:\n",
        "        for queue in queues:\n            if queue.state is Held.ASKED:\n",
        _REVOKING,
    ),
    _mutant(
        "queue-given-up-in-doubt-is-told-as-lost",
        _MEMBERSHIP,
        "queue is not None and not queue.may_be_released]",
        "queue is not None]",
        _REVOKING,
    ),
    _mutant(
        "any-commit-in-doubt-counts-as-giving-up",
        _MEMBERSHIP,
        "        each.queue.may_be_released |= each.release\n",
        "        each.queue.may_be_released = True\n",
        _REVOKING,
    ),
    _mutant(
        "commit-in-doubt-is-said-not-to-have-happened",
        _MEMBERSHIP,
        "            error.outcome = Outcome.MAY_HAVE_HAPPENED\n",
        "            pass\n",
        _REVOKING,
    ),
    _mutant(
        "what-went-in-doubt-is-said-not-to-be-committed",
        "dledger/client/members/reading.py",
        "any(queue.is_in_doubt for queue, _ in gone.values())",
        "False",
        _REVOKING,
    ),
    _mutant(
        "who-comes-as-all-are-ended-has-no-stream",
        _ATTENDANCE,
        "        elif self._attendees:  # who came",
        "        elif False:  # who came",
        ("tests/client/members/test_attendance.py",),
    ),
    _mutant(
        "only-the-first-of-many-queues-pulled",
        "dledger/client/members/pulling.py",
        "            queues = sorted(queues, key=lambda queue: self._asked.get(queue.place, 0))\n",
        "",
        _PUSH,
    ),
    _mutant(
        "handed-out-without-a-stream",
        _MEMBER,
        "            self.standing = Standing.OUT\n",
        "            self.standing = self.standing\n",
        _MACHINE,
    ),
    _mutant(
        "stale-epoch-is-kept",
        _MEMBER,
        "        if held is not None and held.epoch >= epoch:\n",
        "        if held is not None:\n",
        _MACHINE,
    ),
    _mutant(
        "older-epoch-is-believed",
        _MEMBER,
        "        if held is not None and held.epoch >= epoch:\n",
        "        if held is not None and held.epoch == epoch:\n",
        _MACHINE,
    ),
    _mutant(
        "leases-outlive-their-session",
        _MEMBER,
        "        self._drop_all()\n        self.session = 0\n",
        "        self.session = 0\n",
        _MACHINE,
    ),
    _mutant(
        "token-is-used-for-another-session",
        _MEMBER,
        "            self.token = self._fresh_token()\n            self.on_stream()\n",
        "            self.on_stream()\n",
        _MACHINE,
    ),
    _mutant(
        "what-was-not-told-again-is-kept",
        _MEMBER,
        "if place not in self._told]\n",
        "if not self._told]\n",
        _MACHINE,
    ),
    _mutant(
        "two-messages-of-a-key-at-a-time",
        _QUEUE,
        "            if key is None or self._begin_key(work, key):\n",
        "            if key is None or self._begin_key(work, key) or True:\n",
        _MACHINE,
    ),
    _mutant(
        "failed-message-overtakes-who-is-at-work",
        _QUEUE,
        "        if work.key is None or self._begin_key(work, work.key, first=True):\n",
        "        if True:\n",
        _MACHINE,
    ),
    _mutant(
        "in-order-goes-on-behind-a-failed-message",
        _QUEUE,
        "self._ready.appendleft(work)\n            self.suspended_until =",
        "self._fetched.append(work.message)\n            self.suspended_until =",
        _MACHINE,
    ),
    _mutant(
        "finished-by-others-is-handed-out",
        _QUEUE,
        "            elif not may_be_finished or offset not in finished:\n",
        "            else:\n",
        _MACHINE,
    ),
    _mutant(
        "what-nobody-began-with-is-forgotten",
        _QUEUE,
        "        if self.state is not Held.GONE:\n            self._ready.appendleft(work)\n",
        "",
        _MACHINE,
    ),
    _mutant(
        "message-waits-for-its-key-for-ever",
        _QUEUE,
        "            self._ready.append(line.popleft())\n",
        "            line.popleft()\n",
        _MACHINE,
    ),
    _mutant(
        "queue-is-given-up-while-handlers-run",
        _MEMBER,
        "and (not (queue.running or queue.returning) or now >= queue.asked_until)",
        "",
        (*_MACHINE, *_PUSH),
    ),
    _mutant(
        "queue-is-never-given-up-while-a-handler-runs",
        _MEMBER,
        "and (not (queue.running or queue.returning) or now >= queue.asked_until)",
        "and not queue.running",
        _PUSH,
    ),
    _mutant(
        "queue-fills-without-a-bound",
        _QUEUE,
        "        return max(min(self.bounds.messages - self.waiting_messages, span), 0)\n",
        "        return self.bounds.messages\n",
        _MACHINE,
    ),
    _mutant(
        "released-without-what-is-finished",
        _MEMBER,
        "                yield Progress(queue, frontier, runs, release)\n",
        "                yield Progress(queue, 0 if release else frontier, [], release)\n",
        _MACHINE,
    ),
    _mutant(
        "threads-keep-what-was-withdrawn",
        "dledger/client/members/workers.py",
        "                    taken.append(work)\n        for _ in range(ends):\n",
        "                    taken.append(work)\n"
        "        if not self._is_closed:\n"
        "            for work in taken:\n"
        "                self._todo.put(work)\n"
        "            taken = []\n"
        "        for _ in range(ends):\n",
        _PUSH,
    ),
    _mutant(
        "left-without-waiting-for-the-commit",
        _MEMBERSHIP,
        "                while self.member.queues and self.member.standing is not Standing.OVER:\n",
        "                while False:\n",
        _PUSH,
    ),
    _mutant(
        "replaced-member-joins-again",
        _ATTENDANCE,
        "        if isinstance(error, SessionEnded):\n            attendee.on_ended(error)\n",
        "        if error is not None:\n            attendee.on_ended(SessionEnded(str(error)))\n",
        _PUSH,
    ),
    _mutant(
        "loop-commits-what-is-in-hand",
        "dledger/client/members/reading.py",
        "        for queue_id, offset in self._loop.finished.items():\n",
        "        for queue_id, offset in self._loop.positions.items():\n",
        _READING,
    ),
    _mutant(
        "closing-a-loop-commits-unasked",
        "dledger/client/members/reading.py",
        "        if self._options.commit_every_s is not None:\n            self._wish_finished()\n",
        "        self._wish_finished()\n",
        _READING,
    ),
    _mutant(
        "who-is-cancelled-as-it-leaves-stays-a-member",
        _MEMBERSHIP,
        "        finally:\n            await self.abandon(goodbye_s)\n",
        "        except TimeoutError:\n            pass\n        await self.abandon(goodbye_s)\n",
        _LEAVING,
    ),
    _mutant(
        "goodbye-that-is-cancelled-is-never-said",
        _ATTENDANCE,
        "            if self._leaving.pop(slot, None) is not None:\n"
        "                self._attendees.pop(slot, None)\n"
        "            await self.forget(slot)\n",
        "            self._leaving.pop(slot, None)\n        await self.forget(slot)\n",
        _LEAVING,
    ),
    _mutant(
        "stopped-loop-joins-its-group",
        "dledger/client/members/reading.py",
        "        membership = None if self._is_stopped else self._begin()\n",
        "        membership = self._begin()\n",
        _LEAVING,
    ),
    _mutant(
        "cancellation-in-on-revoke-ends-the-member",
        "dledger/client/members/revoking.py",
        "            if task is not None and task.cancelling() > cancels:\n                raise\n",
        "            raise\n",
        _REVOKING,
    ),
    _mutant(
        "on-revoke-that-never-returns-keeps-the-process",
        "dledger/client/members/revoking.py",
        'name="dledger-on-revoke", daemon=True).start()',
        'name="dledger-on-revoke").start()',
        _REVOKING,
    ),
    _mutant(
        "on-revoke-takes-the-loop-s-threads",
        "dledger/client/members/revoking.py",
        '    threading.Thread(target=work, name="dledger-on-revoke", daemon=True).start()\n',
        "    loop.run_in_executor(None, work)\n",
        _REVOKING,
    ),
    _mutant(
        "blocking-on-revoke-on-the-loop-s-thread",
        "dledger/client/blocking.py",
        "on_revoke = None if chosen.on_revoke is None else on_a_thread(chosen.on_revoke)",
        "on_revoke = chosen.on_revoke",
        _REVOKING,
    ),
    _mutant(
        "member-is-sent-where-no-message-is",
        "dledger/client/arguments.py",
        "    return _in_range(name, _number(name, value), 0, (1 << 63) - 1)\n",
        "    return _in_range(name, _number(name, value), -(1 << 63), (1 << 63) - 1)\n",
        _READING,
    ),
    _mutant(
        "message-of-an-interrupted-hook-is-skipped",
        "dledger/client/consumer.py",
        "                self._reading.take_back()\n                raise\n",
        "                raise\n",
        _READING,
    ),
    _mutant(
        "end-while-a-withheld-queue-has-messages",
        "dledger/client/fetching.py",
        "            if not self._chunks and not has_any() and self._is_idle():\n",
        "            if self._is_idle():\n",
        _READING,
    ),
    _mutant(
        "file-is-left-while-it-is-written",
        "dledger/client/members/kept_offsets.py",
        "        await _to_its_end(asyncio.ensure_future(replacing))\n",
        "        await replacing\n",
        _BROADCAST,
    ),
    _mutant(
        "worker-stays-cancelled",
        _WORKERS,
        "        self._desk.fail(work, error)\n        self._calm(worker)\n",
        "        self._desk.fail(work, error)\n",
        _PUSH,
    ),
    _mutant(
        "function-s-own-cancellation-ends-the-consumer",
        _WORKERS,
        "                if not isinstance(settled.error, Exception | asyncio.CancelledError):\n",
        "                if not isinstance(settled.error, Exception):\n",
        _PUSH,
    ),
    _mutant(
        "task-of-a-handler-cannot-reject",
        "dledger/client/members/retried.py",
        "        return error.subgroup(Reject) is not None\n",
        "        return False\n",
        _PUSH,
    ),
    _mutant(
        "late-word-on-an-old-session-counts",
        _MEMBERSHIP,
        "        if session != self.member.session:\n            return\n",
        "",
        _PUSH,
    ),
    _mutant(
        "commit-of-a-queue-that-went-is-silent",
        "dledger/client/members/reading.py",
        "                    raise self._lost(queue_id)\n",
        "                    continue\n",
        _READING,
    ),
    _mutant(
        "broadcast-start-is-not-kept",
        "dledger/client/members/kept_offsets.py",
        "            await self._put(found)\n",
        "            self._kept = self._kept | found\n",
        _BROADCAST,
    ),
    _mutant(
        "what-is-kept-meanwhile-is-written-over",
        "dledger/client/members/kept_offsets.py",
        "            found |= {place: self._kept[place] "
        "for place in found if place in self._kept}\n",
        "",
        (
            _BROADCAST[0]
            + "::test_who_joins_anew_while_its_offsets_are_written_goes_on_behind_them",
        ),
    ),
    _mutant(
        "end-waits-for-queues-that-were-never-begun",
        _MEMBER,
        "                if not queue.is_located:\n",
        "                if False:\n",
        (_BROADCAST[0] + "::test_member_that_does_not_know_where_to_begin_ends_at_once",),
    ),
    _mutant(
        "broadcast-start-forgotten-with-a-session",
        _MEMBERSHIP,
        "        made_since = places - self._unlocated\n",
        "        made_since = places if as_new else set()\n",
        (_BROADCAST[0] + "::test_slow_first_start_begins_where_it_was_told",),
    ),
    _mutant(
        "broadcast-queues-newer-as-they-are-told-later",
        "dledger/client/members/kept_offsets.py",
        "_topic_of(place) in self._known:\n",
        "any(each[:2] == place[:2] for each in self._kept):\n",
        (_BROADCAST[0] + "::test_queues_of_a_new_topic_that_are_told_later_are_no_newer",),
    ),
    _mutant(
        "broadcast-topic-is-whole-by-its-first-part",
        "dledger/client/members/kept_offsets.py",
        "            self._known = known - self._in_part\n",
        "            self._known = known\n",
        (_BROADCAST[0] + "::test_queues_of_a_new_topic_that_are_told_later_are_no_newer",),
    ),
    _mutant(
        "who-cannot-be-joined-ends-all",
        "dledger/client/members/attendance.py",
        "            except Exception as error:  # noqa: BLE001  its own, and no other member's\n",
        "            except KeyError as error:\n",
        ("tests/client/members/test_attendance.py",),
    ),
    _mutant(
        "broadcast-topic-is-whole-as-its-session-ends",
        "dledger/client/members/membership.py",
        "                if self.member.is_whole and self._unlocated",
        "                if self.member.was_whole and self._unlocated",
        (_BROADCAST[0] + "::test_member_that_was_told_everything_says_so_in_its_file",),
    ),
    _mutant(
        "no-list-of-queues-is-all-of-them",
        "dledger/client/groups.py",
        "        queue_ids=some_queue_ids(queues),\n",
        "        queue_ids=some_queue_ids(queues or ()),\n",
        ("tests/client/test_any_argument.py",),
    ),
    _mutant(
        "export-behind-retention-is-another-log",
        "dledger/reading/places.py",
        "    if end.offset <= start.offset:  # what was read has gone",
        "    if False:  # what was read has gone",
        ("tests/audit/test_export.py",),
    ),
    _mutant(
        "who-is-cancelled-in-a-block-waits-for-handlers",
        "dledger/client/members/push.py",
        "        await (self.abort() if is_over else self.close())\n",
        "        await self.close()\n",
        ("tests/client/test_any_argument.py",),
    ),
    _mutant(
        "broadcast-topic-is-never-whole",
        "dledger/client/members/membership.py",
        "if self.keeper is not None and (gained or assignment.whole):\n",
        "if self.keeper is not None and gained:\n",
        (_BROADCAST[0] + "::test_member_that_was_told_everything_says_so_in_its_file",),
    ),
    _mutant(
        "broadcast-file-of-two-members",
        "dledger/client/members/kept_offsets.py",
        "            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
        "            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)\n",
        _BROADCAST,
    ),
    _mutant(
        "broken-broadcast-file-is-a-fresh-start",
        "dledger/client/members/kept_offsets.py",
        "        raise OffsetsFileUnusable(\n            f\"{self._path} isn't",
        "        return {}, set()\n"
        "        raise OffsetsFileUnusable(\n            f\"{self._path} isn't",
        _BROADCAST,
    ),
    _mutant(
        "work-that-nobody-began-counts-as-done",
        _WORKERS,
        "    if inspect.iscoroutine(answer):\n",
        "    if False and inspect.iscoroutine(answer):\n",
        _PUSH,
    ),
    _mutant(
        "generator-taken-for-work-done",
        _WORKERS,
        "    if inspect.isgenerator(answer) or inspect.isasyncgen(answer):\n",
        "    if False:\n",
        _PUSH,
    ),
    _mutant(
        "future-taken-for-work-done",
        _WORKERS,
        "    if inspect.isawaitable(answer) or isinstance(answer, concurrent.futures.Future):\n",
        "    if False:\n",
        _PUSH,
    ),
    _mutant(
        "worker-ends-silently",
        _WORKERS,
        '            self._on_exit(client_error("a handler\'s task", error))\n',
        "            pass\n",
        _PUSH,
    ),
    _mutant(
        "cancelled-worker-ends-silently",
        _WORKERS,
        '                self._on_exit(ClientClosed("a handler\'s task was cancelled"))\n',
        "                pass\n",
        _PUSH,
    ),
    _mutant(
        "what-a-thread-has-done-is-lost-silently",
        _WORKERS,
        '            self._on_exit(client_error("what a handler has done", error))\n',
        "            pass\n",
        _PUSH,
    ),
    _mutant(
        "closing-a-consumer-cancels-who-waits-at-it",
        "dledger/client/simple_consumer.py",
        "            if task.cancelled() and (caller is None or not caller.cancelling()):\n",
        "            if False:\n",
        ("tests/integration/test_simple_consumer.py",),
    ),
    _mutant(
        "commit-says-yes-of-what-went",
        "dledger/client/members/reading.py",
        "            gone, self._gone = self._uncommitted(), {}\n",
        "            gone: dict[int, int] = {}\n",
        _READING,
    ),
    _mutant(
        "commit-says-yes-though-the-queue-went-meanwhile",
        "dledger/client/members/reading.py",
        "            if _committed(queue) < offset:\n",
        "            if False:\n",
        _READING,
    ),
    _mutant(
        "commit-says-no-of-what-was-handed-over",
        "dledger/client/members/reading.py",
        "self._gone.items() if _committed(each[0]) < each[1]}",
        "self._gone.items()}",
        _READING,
    ),
    _mutant(
        "own-handler-of-a-signal-is-lost",
        "dledger/client/members/signals.py",
        "            if signal.getsignal(number) is own:\n",
        "            if own:\n",
        _SIGNALS,
    ),
    _mutant(
        "blocking-run-loses-the-programs-handler",
        "dledger/client/blocking_push.py",
        "                if signal.getsignal(number) == self._on_signal:\n",
        "                if number:\n",
        _SIGNALS,
    ),
    _mutant(
        "refusal-of-a-queue-is-told-every-time",
        _SPELLS_FILE,
        "        if self._told.get(queue.place) == spell:\n            return False\n",
        "",
        _SPELLS,
    ),
    _mutant(
        "refusal-that-is-back-is-told-of-no-more",
        _SPELLS_FILE,
        "        self._told.pop(queue.place, None)\n",
        "",
        _SPELLS,
    ),
    _mutant(
        "spell-ends-with-any-message-of-a-call",
        "dledger/client/members/sending_back.py",
        "            if returned.work.queue not in refusing:\n",
        "            if refusing is not None:\n",
        _SPELLS,
    ),
    _mutant(
        "member-that-cannot-go-on-ends-as-if-it-had-died",
        _MEMBERSHIP,
        "        if isinstance(error, UNCOMMITTABLE):\n",
        "        if error is not None:\n",
        _FAILED,
    ),
    _mutant(
        "nothing-commits-after-an-error-of-its-own",
        _MEMBERSHIP,
        "                await asyncio.sleep(REST_S)\n\n    async def _commit_in_time",
        "                return\n\n    async def _commit_in_time",
        _FAILED,
    ),
    _mutant(
        "loop-hears-nothing-of-its-member-s-end",
        _MEMBERSHIP,
        "            self._owner.on_withdrawn()\n            self._owner.on_over(error)\n",
        "            self._owner.on_over(error)\n",
        _FAILED,
    ),
    _mutant(
        "queues-of-who-was-replaced-go-in-silence",
        _MEMBERSHIP,
        "            self.on_ended(error)\n        else:\n            self._on_session_over()",
        "            self._end(error)\n        else:\n            self._on_session_over()",
        _FAILED,
    ),
)
