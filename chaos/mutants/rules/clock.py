"""Defects in the log's own clock, and in what forgetting counts (ADR 26)."""

from __future__ import annotations

from chaos.mutants.mutant import Mutant

CLOCK = (
    Mutant(
        "own-clock-taken-for-the-majoritys",
        "dledger/log_clock.py",
        "        reached_us = agreed(voters, shown.__getitem__)\n",
        "        reached_us = wall_ms * 1000\n",
    ),
    Mutant(
        "time-of-the-fastest-clock",
        "dledger/log_clock.py",
        "        reached_us = agreed(voters, shown.__getitem__)\n",
        "        reached_us = max(map(shows_us, voters.members()))\n",
    ),
    Mutant(
        "median-of-those-who-answered",
        "dledger/log_clock.py",
        "        reached_us = agreed(voters, shown.__getitem__)\n",
        "        heard = [shows_us(each) for each in voters.members() if shows_us(each)]\n"
        "        reached_us = sorted(heard)[len(heard) // 2]\n",
        seed=62,
    ),
    Mutant(
        "time-of-the-slowest-clock",
        "dledger/log_clock.py",
        "        reached_us = agreed(voters, shown.__getitem__)\n",
        "        reached_us = min(map(shows_us, voters.members()))\n",
    ),
    Mutant(
        "time-faster-than-twice",
        "dledger/log_clock.py",
        "            reached_us = min(reached_us, self._fast_us(now_us))\n",
        "            pass\n",
    ),
    Mutant(
        "time-slower-than-half",
        "dledger/log_clock.py",
        "        slow_us = self._reading_us + (max(0, now_us - self._read_at_us) + 1) // 2\n",
        "        slow_us = self._reading_us\n",
    ),
    Mutant(
        "time-steps-in-mid-term",
        "dledger/log_clock.py",
        "        self._new_until_us = now_us + NEW_US\n",
        "        self._new_until_us = now_us + 1_000 * NEW_US\n",
    ),
    Mutant(
        "new-leader-does-not-step",
        "dledger/log_clock.py",
        "        self._new_until_us = now_us + NEW_US\n",
        "        self._new_until_us = now_us\n",
        tests=("tests/node/test_append_times.py",),
    ),
    Mutant(
        "append-time-runs-backwards",
        "dledger/log_clock.py",
        "        return min(max(slow_us, reached_us, self._least_us), MAX_TIME_MS * 1000)\n",
        "        return min(reached_us, MAX_TIME_MS * 1000)\n",
    ),
    Mutant(
        "append-time-below-what-was-shown",
        "dledger/log_clock.py",
        "        return min(max(slow_us, reached_us, self._least_us), MAX_TIME_MS * 1000)\n",
        "        return min(max(slow_us, reached_us), MAX_TIME_MS * 1000)\n",
        masked="a clock has to be put back between a choice and its entry",
        tests=("tests/node/test_log_clock.py",),
    ),
    Mutant(
        "follower-forgets-where-time-was",
        "dledger/log_clock.py",
        "        if append_time_ms * 1000 > self._reading_us:\n",
        "        if False:\n",
    ),
    Mutant(
        "answers-from-before-the-election-make-time-step",
        "dledger/log_clock.py",
        "            if now_us - shown.heard_at_us <= NEW_US\n",
        "            if True\n",
        masked="two clocks have to err one after the other, the first while it is cut off",
        tests=("tests/node/test_log_clock.py",),
    ),
    Mutant(
        "silent-clock-goes-on-counting",
        "dledger/log_clock.py",
        "            if shown is None or now_us - shown.heard_at_us > SILENT_US:\n",
        "            if shown is None:\n",
        masked="a leader that hears no majority for ten seconds is none any more",
        tests=("tests/node/test_log_clock.py",),
    ),
    Mutant(
        "elected-before-the-clock-is-read",
        "dledger/driver.py",
        "            self._clock.begin_leading(self._now_us())\n"
        "            self._estimate_time()\n",
        "            self._clock.begin_leading(self._now_us())\n",
        tests=("tests/node/test_append_times.py",),
    ),
    Mutant(
        "votes-tell-no-clock",
        "dledger/codec.py",
        "            wire.vote_response.wall_ms = told_ms\n",
        "",
        tests=("tests/node/test_append_times.py",),
    ),
    Mutant(
        "clock-before-1970-is-told-as-it-is",
        "dledger/codec.py",
        "    told_ms = min(max(wall_ms, 0), MAX_TIME_MS)\n",
        "    told_ms = wall_ms\n",
    ),
    Mutant(
        "checkpoint-notes-the-wall-clock",
        "broker/noting.py",
        "note_consume_queue(settled_index, self._machine.append_time_ms)",
        "note_consume_queue(settled_index, self._driver._ports.wall_ms())",
    ),
    Mutant(
        "lived-time-without-its-cap",
        "broker/state/lived_time.py",
        "            self.lived_ms += min(max(append_time_ms - before_ms, 0), MAX_GAP_MS)\n",
        "            self.lived_ms += max(append_time_ms - before_ms, 0)\n",
        masked="no run lasts for as long as is forgotten",
        tests=("tests/broker/test_lived_time.py",),
    ),
    Mutant(
        "lived-time-begins-with-the-calendar",
        "broker/state/lived_time.py",
        "        if before_ms:\n",
        "        if True:\n",
        masked="a minute more; all replicas alike",
        tests=("tests/broker/test_lived_time.py",),
    ),
    Mutant(
        "lived-time-not-restored",
        "broker/state/lived_time.py",
        "        (self.lived_ms,) = single_record(SECTION, payloads, _RECORD)\n",
        "        single_record(SECTION, payloads, _RECORD)\n",
    ),
    Mutant(
        "entry-without-space-is-lived-twice",
        "broker/state/machine.py",
        "        state.applied_index, state.append_time_ms, state.lived_time.lived_ms = before\n",
        "        state.applied_index, state.append_time_ms, _ = before\n",
    ),
)
