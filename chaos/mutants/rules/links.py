"""Defects in the links between peers, `dledger/links`: one stream a pair, back-off, watchdog."""

from __future__ import annotations

from chaos.mutants.mutant import Mutant

LINKS = (
    Mutant(
        "watchdog-off",
        "dledger/links/dialed.py",
        "        return self._heard_at + self._patience * self._times.silence_s + allowance\n",
        "        return inf\n",
    ),
    Mutant(
        "a-call-that-is-over-is-still-heard",
        "dledger/links/dialed.py",
        "        if generation != self.generation:\n            return False\n",
        "        if self.generation is None:\n            return False\n",
        masked="the table of calls has forgotten it already",
        tests=("tests/links/test_dialed.py",),
    ),
    Mutant(
        "end-of-an-older-call-takes-the-newer-down",
        "dledger/links/dialed.py",
        "        if generation == self.generation:\n            self._lose()\n",
        "        if self.generation is not None:\n            self._lose()\n",
        masked="the table of calls has forgotten it already",
        tests=("tests/links/test_dialed.py",),
    ),
    Mutant(
        "attempts-that-lost-go-on",
        "dledger/links/dialed.py",
        "        self._end_attempts(Why.LOST)\n",
        "",
    ),
    Mutant(
        "attempts-without-a-bound",
        "dledger/links/dialed.py",
        "        return len(self._attempts) >= self._times.max_attempts\n",
        "        return False\n",
    ),
    Mutant(
        "attempts-never-given-up",
        "dledger/links/dialed.py",
        "        self._attempts[self._newest] = now + self._times.attempt_s\n",
        "        self._attempts[self._newest] = inf\n",
        tests=("tests/links/test_dialed.py",),
    ),
    Mutant(
        "hung-attempt-holds-up-the-next",
        "dledger/links/dialed.py",
        "        self._dial_at = now + self._times.attempt_every_s\n        self._effects",
        "        self._dial_at = now + self._times.attempt_s\n        self._effects",
        masked="it costs time, less than the simulator allows for a leader",
        tests=("tests/links/test_dialed.py",),
    ),
    Mutant(
        "back-off-never-reset",
        "dledger/links/dialed.py",
        "            self._has_heard = True\n            self._failures = 0\n",
        "            self._has_heard = True\n",
        masked="half a second at most",
        tests=("tests/links/test_dialed.py",),
    ),
    Mutant(
        "refusal-taken-for-a-break",
        "dledger/links/dialed.py",
        "        self._end_attempts(Why.REFUSED)\n",
        "        self._end_attempts(Why.REFUSED)\n        self._lose()\n",
        masked="nobody is refused in the simulator",
        tests=("tests/links/test_dialed.py",),
    ),
    Mutant(
        "break-of-a-dialed-stream-never-told",
        "dledger/links/dialed.py",
        "        self.streams_ended += 1\n        self._effects.append(Broken())\n",
        "        self.streams_ended += 1\n",
        masked="the election timeout notices, later",
        tests=("tests/links/test_dialed.py",),
    ),
    Mutant(
        "break-told-for-every-stream",
        "dledger/links/accepted.py",
        "        if had_some and not self._in_use:\n",
        "        if had_some:\n",
        masked="a suspicion in error costs a PreVote that is refused",
        tests=("tests/links/test_accepted.py",),
    ),
    Mutant(
        "replaced-stream-left-open",
        "dledger/links/accepted.py",
        "            del self._adopted[each]\n            self._effects.append(End(each, why))\n",
        "            del self._adopted[each]\n",
        tests=("tests/links/test_accepted.py",),
    ),
    Mutant(
        "hello-alone-takes-a-stream-into-use",
        "dledger/links/accepted.py",
        "        self._waiting[generation] = now + self._times.attempt_s\n",
        "        self._adopt(generation, now)\n",
        tests=("tests/links/test_accepted.py",),
    ),
    Mutant(
        "heard-in-the-future-after-a-pause",
        "dledger/links/dialed.py",
        "self._heard_at = min(now, self._heard_at + slept_s)",
        "self._heard_at += slept_s",
        seed=175,
    ),
)
