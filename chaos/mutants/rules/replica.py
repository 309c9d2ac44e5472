"""Defects in how a replica is joined, kept and stopped: `broker/replica.py`, housekeeping."""

from __future__ import annotations

from chaos.mutants.mutant import Mutant

_SILENTLY = ("tests/node/test_nothing_ends_silently.py",)

REPLICA = (
    Mutant(
        "term-and-vote-taken-from-the-page-cache",
        "store/starting/opening.py",
        "        if file.settle() is None:\n",
        "        file.keep_space()\n        if file.read() is None:\n",
        seed=398,
    ),
    Mutant(
        "wrong-queues-of-a-start-not-mended",
        "broker/replica.py",
        "        self.mender.suspect_all(recovered.wrong_queues)\n",
        "",
        tests=("tests/integration/test_queue_rot.py",),
    ),
    Mutant(
        "queue-files-taken-on-trust-at-a-start",
        "broker/state/replay.py",
        "            if not compared.is_right(*key) or not queues.settle(*key):\n",
        "            if not queues.settle(*key):\n",
    ),
    Mutant(
        "units-of-a-start-not-compared",
        "broker/state/replay.py",
        "        if gathered is not None and key not in self.wrong:\n",
        "        if False:\n",
    ),
    Mutant(
        "mended-without-its-files-laid-out",
        "broker/mending.py",
        "                self._queues.lay_out(*key)\n",
        "                pass\n",
    ),
    Mutant(
        "noted-while-a-queue-is-wrong",
        "broker/replica.py",
        "        return 0 if self.mender.is_at_work else self.driver.settled_index\n",
        "        return self.driver.settled_index\n",
        masked="a start compares everything, whatever was noted",
        tests=("tests/integration/test_queue_rot.py",),
    ),
    Mutant(
        "noted-before-the-sync",
        "broker/housekeeping.py",
        "            for stage in work.stages():\n"
        "                await self._hand.run_all(stage)\n"
        "            if settled and not self.is_checkpoint_held:\n"
        "                await self._hand.run(partial(notes.note, settled))\n",
        "            if settled and not self.is_checkpoint_held:\n"
        "                await self._hand.run(partial(notes.note, settled))\n"
        "            for stage in work.stages():\n"
        "                await self._hand.run_all(stage)\n",
    ),
    Mutant(
        "noted-after-the-first-step-of-a-sync",
        "broker/housekeeping.py",
        "                await self._hand.run_all(stage)\n",
        "                await self._hand.run_all(stage[:1])\n",
    ),
    Mutant(
        "a-file-of-each-sync-step-is-left-out",
        "store/queue_flush.py",
        "        yield paths[first : first + STEP_FILES]\n",
        "        yield paths[first : first + STEP_FILES - 1]\n",
    ),
    Mutant(
        "rest-behind-a-queues-last-unit-left-at-a-start",
        "store/consumequeue.py",
        "        if is_whole and has_rest:\n",
        "        if is_whole and not self._place(queue, next_offset)[1]:\n",
    ),
    Mutant(
        "held-pulls-beyond-a-turns-share-not-woken",
        "broker/reading/held.py",
        "            self._later(self._begin_turn)\n            self._wake_some()\n",
        "            self._wake_some()\n",
        masked="fewer pulls than that are held in the simulator",
        tests=("tests/broker/test_reads.py",),
    ),
    Mutant(
        "large-batch-taken-whose-later-piece-is-wrong",
        "broker/leader/batches.py",
        "            return replace(batch, checked=error)\n",
        "            return replace(batch, checked=starts)\n",
        masked="a batch of the simulator's clients is one piece",
        tests=("tests/broker/test_turns.py",),
    ),
    Mutant(
        "tag-of-another-record",
        "store/tagging.py",
        "    good = begins & (places >= properties[records]) & "
        "(places + len(TAGS) <= ends[records])\n",
        "    good = begins & (places + len(TAGS) <= ends[records])\n",
        masked="a large batch's; a batch of the simulator's clients is built by the loop",
        tests=("tests/store/test_tagging.py",),
    ),
    Mutant(
        "later-sends-overtake-one-in-pieces",
        "broker/services/messages.py",
        "            async with self._in_order:\n                pending",
        "            if producer_id is not None:\n                pending",
        masked="a Send of the simulator's clients is one piece",
        tests=("tests/broker/test_turns.py",),
    ),
    Mutant(
        "bytes-of-a-pull-in-pieces-not-counted",
        "broker/services/messages.py",
        "                        self.budget.take(max_bytes)\n                        taken",
        "                        taken",
    ),
    Mutant(
        "page-of-topics-begins-behind-its-first",
        "broker/services/topics.py",
        "page[-1].name if len(names) > size",
        "names[size] if len(names) > size",
        masked="the simulator has fewer topics than a page",
        tests=("tests/broker",),
    ),
    Mutant(
        "noted-what-was-applied-meanwhile",
        "broker/housekeeping.py",
        "await self._hand.run(partial(notes.note, settled))",
        "await self._hand.run(partial(notes.note, notes.settled()))",
    ),
    Mutant(
        "noted-after-a-sync-that-failed",
        "broker/housekeeping.py",
        "            self.is_checkpoint_held = True\n",
        "",
    ),
    Mutant(
        "round-torn-away-by-the-stop",
        "broker/housekeeping.py",
        "            await self._round\n",
        "            self._round.cancel()\n",
        masked="the last round notes what only a power cut at that moment shows",
        tests=("tests/broker/test_housekeeping.py",),
    ),
    Mutant(
        "rounds-go-on-after-a-failed-disk",
        "broker/housekeeping.py",
        "            self._failed(error)\n            return\n",
        "            del error\n",
    ),
    Mutant(
        "housekeeping-never-begins",
        "broker/replica.py",
        "        self.housekeeping.start(self._ports.rhythm.housekeeping_s)\n",
        "",
        masked="a start replays more, and comes to the same state",
        tests=("tests/node/test_replica.py",),
    ),
    Mutant(
        "ticker-not-started",
        "broker/replica.py",
        "        self.ticker.start()\n",
        "",
    ),
    Mutant(
        "links-not-started",
        "broker/replica.py",
        "        self.transport.start()\n",
        "",
    ),
    Mutant(
        "durable-news-dropped",
        "broker/replica.py",
        "        self.log.on_durable = partial(from_worker, self.driver.on_durable)\n",
        "",
    ),
    Mutant(
        "durable-news-told-on-the-flushers-thread",
        "broker/replica.py",
        "self.log.on_durable = partial(from_worker, self.driver.on_durable)",
        "self.log.on_durable = self.driver.on_durable",
    ),
    Mutant(
        "failed-flush-not-told",
        "broker/replica.py",
        "        self.log.on_failed = partial(from_worker, self.driver.on_storage_failed)\n",
        "",
    ),
    Mutant(
        "broken-streams-not-told",
        "broker/replica.py",
        "        self.driver.suspect(peer)\n",
        "        del peer\n",
        masked="the election timeout comes to the same, later",
        tests=("tests/node/test_replica.py",),
    ),
    Mutant(
        "term-and-vote-not-given-to-the-core",
        "broker/replica.py",
        "            hard_state=recovered.hard_state,\n",
        "",
    ),
    Mutant(
        "applied-index-not-given-to-the-driver",
        "broker/replica.py",
        "            core, node, driver_ports, applied, apply_slice_bytes",
        "            core, node, driver_ports, Index(0), apply_slice_bytes",
    ),
    Mutant(
        "full-queues-called-busy",
        "broker/replica.py",
        "return self.log.statistics().is_full or self.driver.statistics().is_apply_paused",
        "return self.log.statistics().is_full",
        masked="a producer sends again either way",
        tests=("tests/node/test_replica.py",),
    ),
    Mutant(
        "hand-over-skipped",
        "broker/replica.py",
        "            await self._hand_over()\n",
        "",
        masked="the others elect somebody, later",
        tests=("tests/node/test_replica.py",),
    ),
    Mutant(
        "drain-skipped",
        "broker/replica.py",
        "            await self._drain()\n",
        "",
        masked="who waits is told that it may have been stored, and asks again",
        tests=("tests/node/test_replica.py",),
    ),
    Mutant(
        "nobody-told-at-the-stop",
        "broker/replica.py",
        '        self.leadership.end_serving("the node stopped")\n',
        "",
        masked="whoever is left waiting has a deadline of its own",
        tests=("tests/node/test_replica.py",),
    ),
    Mutant(
        "driver-goes-on-behind-a-stop",
        "broker/replica.py",
        "        self.driver.stop()\n",
        "",
    ),
    Mutant(
        "files-closed-before-the-doors",
        "broker/replica.py",
        "            await self._rest()\n            await shut_doors()\n",
        "            await self._rest()\n            await self.close()\n"
        "            await shut_doors()\n",
    ),
    Mutant(
        "last-round-skipped",
        "broker/replica.py",
        "                    await self.housekeeping.make_round()\n",
        "                    pass\n",
    ),
    Mutant(
        "last-round-after-a-failure",
        "broker/replica.py",
        "                if self.failure is None:\n"
        "                    await self.housekeeping.make_round()\n",
        "                await self.housekeeping.make_round()\n",
    ),
    Mutant(
        "log-marked-clean-after-a-failure",
        "broker/replica.py",
        "is_clean=self.failure is None",
        "is_clean=True",
    ),
    Mutant(
        "failure-ends-nothing",
        "broker/replica.py",
        "exc_info=error)\n        self._stop_asked.set()\n",
        "exc_info=error)\n",
    ),
    Mutant(
        "failed-node-goes-on-serving",
        "broker/replica.py",
        '        self.leadership.end_serving("the node failed")\n',
        "",
        masked="the stop that follows ends it a moment later",
        tests=("tests/node/test_replica.py",),
    ),
    Mutant(
        "note-ahead-of-the-log-is-trusted",
        "store/starting/derived.py",
        "    return noted if noted <= log.ends_by(log.recovery.watermark) else 0\n",
        "    return noted\n",
        masked="only an earlier version notes so",
        tests=("tests/starting",),
    ),
    Mutant(
        "ticks-on-after-an-error-that-nobody-expected",
        "broker/replica.py",
        "            self.membership.on_tick()\n        except Exception as error:",
        "            self.membership.on_tick()\n        except ZeroDivisionError as error:",
        masked="nothing raises there",
        tests=_SILENTLY,
    ),
    Mutant(
        "lives-on-as-a-ghost-if-its-last-words-fail",
        "dledger/driver.py",
        "            finally:\n"
        "                self._fail(error)  # whatever became of the last effects\n",
        "            except ZeroDivisionError:\n                pass\n",
        masked="they don't fail",
        tests=_SILENTLY,
    ),
)
