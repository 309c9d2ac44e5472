"""Units of compound entries: each whole or not at all, and nothing refused is ever read."""

from __future__ import annotations

from typing import Final

from chaos.mutants.mutant import Mutant

_JUDGE: Final = "broker/state/compound.py"
_UNITS: Final = "broker/state/units.py"
_STATE: Final = "broker/state/replicated.py"
_OUTCOMES: Final = "broker/state/outcomes.py"
_LEADER: Final = "broker/leader/units.py"
_APPLIED: Final = "tests/broker/test_compound.py::"
_LED: Final = "tests/broker/test_units.py::"
_BYTES: Final = "tests/store/test_compound.py::"
_DATA: Final = "tests/audit/test_units.py::"
_LEADERS: Final = "leaders write no such entry"
_OFFLINE: Final = "the simulator's readers are nodes"
_NEVER_NEAR: Final = "no simulated group comes near the bounds of handouts"
_SHARED: Final = ("tests/broker/test_shared_bounds.py",)

UNITS = (
    Mutant(
        "more-failures-of-a-queue-in-an-entry-than-it-takes",
        _LEADER,
        "        return max(1, MAX_RANGES - len(",
        "        return max(SHARED_UNITS, MAX_RANGES - len(",
        masked="no simulated member fails more than a few at once",
        tests=("tests/broker/test_many_failures.py",),
    ),
    Mutant(
        "failed-beside-a-failure-that-finishes-it",
        _LEADER,
        " and not unit.is_behind(fronts)\n",
        "\n",
        masked="no simulated member says so much of one queue at once",
        tests=("tests/broker/test_many_failures.py",),
    ),
    Mutant(
        "condition-that-fails-ends-the-leader",
        _LEADER,
        "            refusal = unit.wanted.condition()\n"
        "        except BrokerError as error:  # of the condition, too\n"
        "            unit.fail(error)\n"
        "            return True\n",
        "        except BrokerError as error:\n"
        "            unit.fail(error)\n"
        "            return True\n"
        "        refusal = unit.wanted.condition()\n",
        masked="no simulated topic is deleted in front of what is sent back",
        tests=("tests/broker/test_units.py",),
    ),
    Mutant(
        "any-number-of-units-about-one-thing",
        "broker/leader/units_room.py",
        "            if self._waiting_of[key] >= MAX_OF_KEY:\n",
        "            if self._waiting_of[key] >= MAX_WAITING:\n",
        masked="it costs time and no truth",
        tests=("tests/broker/test_units.py",),
    ),
    Mutant(
        "units-under-way-counted-with-those-that-wait",
        _LEADER,
        "                self._has_left(unit)\n                places",
        "                unit.room.part.remove(unit.room.size)\n                places",
        masked="no simulated leader has so many units about one thing",
        tests=("tests/broker/test_units.py",),
    ),
    Mutant(
        "units-shared-beyond-a-segment",
        "broker/leader/units.py",
        "min(SHARED_BYTES, segment_bytes // SHARED_PART)",
        "SHARED_BYTES",
        masked="few units of a run are so large, and wait together",
        tests=("tests/broker/test_units.py",),
    ),
    Mutant(
        "refused-unit-gives-its-offsets-back",
        _JUDGE,
        "        return Judged(refusal, tuple(void), ())\n",
        "        return Judged(refusal, (), ())\n",
    ),
    Mutant(
        "one-refused-unit-refuses-the-entry",
        _UNITS,
        "        if header.index > self._derived_through:\n            self._derive_units(units)\n",
        "        bad = next((each.refusal for each in units if each.refusal), None)\n"
        "        if bad is not None:\n"
        "            units = [each._replace(refusal=bad, commands=()) for each in units]\n"
        "        if header.index > self._derived_through:\n            self._derive_units(units)\n",
    ),
    Mutant(
        "refused-unit-is-read",
        _JUDGE,
        "(each._replace(units=voided(each.units, each.base)) for each in placed)",
        "(each for each in placed)",
    ),
    Mutant(
        "commands-of-a-refused-unit-take-effect",
        _JUDGE,
        "        return Judged(refusal, tuple(void), ())\n",
        "        return Judged(refusal, tuple(void), commands)\n",
    ),
    Mutant(
        "batches-of-a-unit-without-its-commands",
        _UNITS,
        "            for command in unit.commands:\n"
        "                self._take_effect(command, plans)\n",
        "            for command in () if unit.batches else unit.commands:\n"
        "                self._take_effect(command, plans)\n",
    ),
    Mutant(
        "units-of-an-entry-judged-as-if-alone",
        "broker/state/compound.py",
        "                plan = plan_of(owners, body, self.at, growth.progress, growth.load)\n",
        "                plan = plan_of(owners, body, self.at, growth.progress)\n",
        masked=_NEVER_NEAR,
        tests=_SHARED,
    ),
    Mutant(
        "styles-of-an-entry-judged-as-if-alone",
        "broker/state/compound.py",
        " or body.group in growth.delivered:\n",
        ":\n",
        masked="no simulated group is used in two styles",
        tests=_SHARED,
    ),
    Mutant(
        "refused-units-count-for-the-bounds",
        "broker/state/compound.py",
        "        growth = _Growth(before.progress, before.load, before.delivered)\n",
        "        growth = self.growth\n        growth.plans = []\n",
        masked=_NEVER_NEAR,
        tests=_SHARED,
    ),
    Mutant(
        "deleted-topics-count-for-the-bounds",
        "broker/state/compound.py",
        "        self._grow(Load(-gone.unfinished, -gone.rows))\n",
        "",
        masked=_NEVER_NEAR,
        tests=_SHARED,
    ),
    Mutant(
        "level-gate-of-units-skipped-by-the-leader",
        _LEADER,
        "        return self._machine.level.current >= COMPOUND_LEVEL\n",
        "        return True\n",
    ),
    Mutant(
        "level-gate-of-units-skipped",
        _UNITS,
        "        if self._state.level.current < COMPOUND_LEVEL:\n",
        "        if False:\n",
        masked=_LEADERS,
        tests=(_APPLIED + "test_units_below_their_level_are_void",),
    ),
    Mutant(
        "incarnation-of-a-unit-not-compared-by-the-leader",
        _LEADER,
        "        if batch.incarnation not in (0, topic.incarnation):\n",
        "        if False:\n",
    ),
    Mutant(
        "incarnation-of-a-batch-in-a-unit-not-compared",
        _JUDGE,
        "topic, queue_id, base, incarnation=incarnation, end=",
        "topic, queue_id, base, incarnation=0, end=",
        masked="a leader writes no batch for a topic that is being deleted",
        tests=(_APPLIED + "test_batches_that_continue_nothing_keep_no_offsets",),
    ),
    Mutant(
        "incarnation-of-a-command-in-a-unit-not-compared",
        _JUDGE,
        "    if topic.incarnation != incarnation:\n",
        "    if False:\n",
        masked="offsets of raced topics are nobody's in the simulator",
        tests=(_APPLIED + "test_topics_are_named_by_incarnation",),
    ),
    Mutant(
        "units-of-one-key-in-an-entry",
        _LEADER,
        "            is_free = claims.conflict(unit.keys) is None and",
        "            is_free =",
    ),
    Mutant(
        "a-wide-command-shares-an-entry-with-its-keys",
        _JUDGE,
        '            if key.is_wide or "" in held or (key.what in held and not is_shared):\n',
        '            if "" in held or (key.what in held and not is_shared):\n',
        masked="what a topic's end takes along doesn't show",
        tests=(_APPLIED + "test_one_command_of_a_key_in_an_entry",),
    ),
    Mutant(
        "a-unit-that-waits-is-overtaken",
        _LEADER,
        "            claims.hold(unit.keys)  # also of one that waits: what is behind it doesn't "
        "overtake it\n            if is_free and fits:\n",
        "            if is_free and fits:\n                claims.hold(unit.keys)\n",
        masked="the order of units isn't looked at",
        tests=(_LED + "test_a_wide_command_waits_for_its_keys_and_holds_them_back",),
    ),
    Mutant(
        "condition-not-asked",
        _LEADER,
        "        refusal = unit.wanted.condition()\n",
        "        refusal = None\n",
        masked="units are written without one, as who refuses them is to be the state",
        tests=(_LED + "test_conditions_are_asked_when_nothing_under_way_has_the_keys",),
    ),
    Mutant(
        "offset-of-a-unit-given-out-twice",
        "broker/leader/flight.py",
        "            self._ends[batch.incarnation, batch.queue_id] = index, batch.end\n",
        "            pass\n",
    ),
    Mutant(
        "queue-goes-on-before-its-files",
        _UNITS,
        "            self._derive_units(units)\n",
        "            for unit in units:\n"
        "                for batch in unit.batches:\n"
        "                    self._state.topics.advance(batch.topic, batch.queue_id, batch.end)\n"
        "            self._derive_units(units)\n",
        masked="disks are seldom full at that very call",
        tests=(_APPLIED + "test_files_come_before_any_state",),
    ),
    Mutant(
        "nothing-is-settled",
        _LEADER,
        "            if settlement is not None and settlement != self._refused:\n",
        "            if False:\n",
    ),
    Mutant(
        "refused-units-not-noted",
        _UNITS,
        "if each.refusal and each.batches)",
        "if False)",
    ),
    Mutant(
        "settlement-believed",
        _OUTCOMES,
        "or said.refused != known:",
        "or False:",
        masked=_LEADERS,
        tests=(_APPLIED + "test_the_log_says_which_units_were_refused",),
    ),
    Mutant(
        "outcomes-not-in-snapshots",
        _STATE,
        "            *self.outcomes.snapshot(),\n",
        "",
        masked="a snapshot is seldom taken between an entry and its settlement",
        tests=(_APPLIED + "test_a_snapshot_holds_what_is_not_settled",),
    ),
    Mutant(
        "any-unit-without-a-size-is-void",
        "store/voiding.py",
        '    return unit == void_unit(queue_offset, int.from_bytes(unit[:_SIZE_AT], "big"))\n',
        "    return True\n",
        masked="rot that takes a size alone is rare",
        tests=(_BYTES + "test_no_flipped_bit_makes_or_hides_a_void_unit",),
    ),
    Mutant(
        "unit-as-long-as-it-says",
        "dledger/reading/compound.py",
        "        if not at_least <= size <= min(at_most, self._end - start):\n",
        "        if not at_least <= size <= at_most:\n",
        masked=_LEADERS,
        tests=(_BYTES + "test_every_flipped_bit_and_every_cut_is_refused",),
    ),
    Mutant(
        "bounds-of-units-not-read",
        "dledger/reading/compound.py",
        "    if not 1 <= count <= MAX_UNITS:\n        raise",
        "    if False:\n        raise",
        masked=_LEADERS,
        tests=(_BYTES + "test_bounds_and_sizes_are_looked_at_on_reading",),
    ),
    Mutant(
        "refused-messages-as-data",
        "dledger/reading/decode.py",
        "        chosen &= ~np.array(refused, dtype=np.bool_)\n",
        "",
        masked=_OFFLINE,
        tests=(_DATA + "test_data_has_all_but_what_was_refused",),
    ),
    Mutant(
        "data-beyond-what-is-settled",
        "dledger/reading/lifetimes.py",
        "        if not self._unsettled or self._unsettled[0][1] >= log.settled:\n",
        "        if True:\n",
        masked=_OFFLINE,
        tests=(_DATA + "test_what_the_log_has_not_said_yet_is_not_read_yet",),
    ),
    Mutant(
        "void-units-not-held-against-the-log",
        "audit/proof/chain.py",
        "            elif each.is_void != ((each.index, each.unit) in self.refused):\n",
        "            elif False:\n",
        masked=_OFFLINE,
        tests=(_DATA + "test_a_unit_that_is_void_otherwise_than_the_log_says_is_found",),
    ),
    Mutant(
        "void-records-found-by-id",
        "broker/reading/queues.py",
        "        return not is_void(self._queues.units(*place, 1), record.queue_offset)\n",
        "        return True\n",
        masked="no client of the simulator looks messages up by id",
        tests=(_LED + "test_what_is_void_is_found_by_no_id",),
    ),
    Mutant(
        "append-with-a-later-kind-refused",
        "dledger/codec.py",
        "    return EntryKind(kind) if kind in _KINDS else EntryKind.COMMAND\n",
        "    return EntryKind(kind)\n",
        masked="no release that is simulated has such a kind",
        tests=("tests/node/test_levels.py::test_entries_of_later_releases_are_copied_and_void",),
    ),
    Mutant(
        "refused-settlement-again-and-again",
        _LEADER,
        "                self._refused = settlement\n",
        "                pass\n",
        masked="the state refuses none",
        tests=(_LED + "test_a_settlement_that_is_refused_is_not_repeated",),
    ),
)
