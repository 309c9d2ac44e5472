"""Defects in handing leadership to the member that is preferred
(docs/adr/0045-a-preferred-leader.md)."""

from __future__ import annotations

from chaos.mutants.mutant import Mutant

_TESTS = ("tests/core/test_preference.py",)
_PATIENT = "whether it waits long enough, a run that is at peace doesn't say"

PREFERENCE = (
    Mutant(
        "preferred-and-never-handed-over",
        "dledger/core/raft.py",
        "            hand_over_to_preferred(state)\n",
        "",
        under="priority",
    ),
    Mutant(
        "preferred-without-waiting",
        "dledger/core/preference.py",
        "    if state.now_tick - seen.well_since_tick < wait_ticks or not _is_settled(state):\n",
        "    if not _is_settled(state):\n",
        masked=_PATIENT,
        tests=_TESTS,
    ),
    Mutant(
        "preferred-though-it-is-not-well",
        "dledger/core/preference.py",
        "    if not _is_well(state, preferred):\n",
        "    if preferred not in state.peers:\n",
        masked=_PATIENT,
        tests=_TESTS,
    ),
    Mutant(
        "preferred-though-it-does-not-vote",
        "dledger/core/preference.py",
        "    if progress is None or node not in state.log.configuration.voters:\n",
        "    if progress is None:\n",
        masked="whoever is preferred in a run votes, and hardly anybody stops to",
        tests=_TESTS,
    ),
    Mutant(
        "moment-without-being-well-forgotten",
        "dledger/core/preference.py",
        "        seen.well_since_tick = None\n",
        "        pass\n",
        masked=_PATIENT,
        tests=_TESTS,
    ),
    Mutant(
        "tries-not-counted",
        "dledger/core/preference.py",
        "    seen.tries += 1\n",
        "",
        seed=10,
        tests=_TESTS,
    ),
    Mutant(
        "tries-counted-in-each-leadership-anew",
        "dledger/core/state.py",
        "        self.well_since_tick = None\n\n    def on_leader",
        "        self.well_since_tick, self.tries = None, 0\n\n    def on_leader",
        seed=10,
        tests=_TESTS,
    ),
    Mutant(
        "tries-outlive-a-leadership-of-the-preferred",
        "dledger/core/state.py",
        "        if leader == self.target:\n            self.tries = 0\n",
        "        pass\n",
        masked=_PATIENT,
        tests=_TESTS,
    ),
    Mutant(
        "sick-leader-forgets-whom-it-prefers",
        "dledger/core/sick_disk.py",
        "(each.peer == preferred, each.match_index, each.last_heard_tick)",
        "(each.match_index, each.last_heard_tick)",
        masked="any successor is a good one",
        tests=_TESTS,
    ),
    Mutant(
        "anybody-can-be-preferred",
        "broker/leader/changes.py",
        "    if prefer and prefer not in wanted.voters:\n",
        "    if False:\n",
        masked="operators name voters",
        tests=_TESTS,
    ),
    Mutant(
        "stranger-preferred-is-taken",
        "dledger/core/admission.py",
        "configuration.preferred is not None and configuration.preferred not in members:\n",
        "configuration.preferred is None and configuration.preferred not in members:\n",
        masked="no leader of a run prefers a stranger",
        tests=_TESTS,
    ),
    Mutant(
        "preference-is-not-written",
        "dledger/codec.py",
        '        preferred=configuration.preferred or "",\n',
        "",
        masked="who leads remembers, and is asked again in time",
        tests=_TESTS,
    ),
    Mutant(
        "preference-outlives-its-member",
        "dledger/core/membership.py",
        "        preferred=preferred if preferred in members else None,\n",
        "        preferred=preferred,\n",
        masked="a member that is gone isn't handed anything",
        tests=_TESTS,
    ),
)
