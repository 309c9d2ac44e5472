"""Defects in reads and the services' rules, `broker/reading` and `broker/services`."""

from __future__ import annotations

from chaos.mutants.mutant import Mutant

READING = (
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
    ),
    Mutant(
        "pull-skips-a-message",
        "broker/reading/queues.py",
        "        return Found(records, count, offset + count, low, high, state.incarnation)\n",
        "        at = _runs(units, 1)[0][0][1] if count > 5 else 0\n"
        "        return Found("
        "records[at:], count - (at > 0), offset + count, low, high, state.incarnation)\n",
    ),
    Mutant(
        "rotten-unit-served",
        "broker/reading/queues.py",
        "        yield from _check_places(records, units[: count * UNIT.size], name, offset)\n",
        "",
        seed=15,
    ),
)
