"""Defects in how members change: joint configurations, learners, a leader that goes (ADR 41)."""

from __future__ import annotations

from typing import Final

from chaos.mutants.mutant import Mutant

_JOINT = ("tests/core/test_joint.py",)
_CHANGES = ("tests/core/test_changes.py",)
_LINKS = ("tests/links/test_members.py",)
_CHURN: Final = "churn"

MEMBERS = (
    Mutant(
        "joint-decided-by-the-new-voters-alone",
        "dledger/core/quorum.py",
        "    if configuration.voters_outgoing:\n",
        "    if False:\n",
        under=_CHURN,
        masked="two majorities that share nobody take a partition within a few milliseconds",
        tests=_JOINT,
    ),
    Mutant(
        "several-voters-change-without-being-joint",
        "dledger/core/membership.py",
        "configuration.voters if len(wanted ^ configuration.voters) > 1 else frozenset()",
        "configuration.voters if len(wanted ^ configuration.voters) > 9 else frozenset()",
        masked="the core refuses what isn't joint",
        tests=_JOINT,
    ),
    Mutant(
        "joint-is-never-left",
        "dledger/core/membership.py",
        "    if is_joint:\n        return left(configuration)\n",
        "    if is_joint:\n        return None\n",
        under=_CHURN,
    ),
    Mutant(
        "second-change-while-one-is-pending",
        "dledger/core/replication.py",
        "    if state.log.has_uncommitted_configuration():\n",
        "    if False:\n",
        masked="an administrator is refused before, and what is due by itself waits for it",
        tests=_JOINT,
    ),
    Mutant(
        "voter-that-never-learned",
        "dledger/core/membership.py",
        "        if node not in present.learners:\n",
        "        if False:\n",
        masked="nobody asks for it",
        tests=_JOINT,
    ),
    Mutant(
        "voter-that-has-not-caught-up",
        "dledger/core/membership.py",
        "        if progress is None or not _has_caught_up(state, progress):\n",
        "        if progress is None:\n",
        masked="it costs time: commits wait for it",
        tests=_JOINT,
    ),
    Mutant(
        "observer-made-a-voter",
        "dledger/core/membership.py",
        "    candidates = configuration.learners - configuration.observers\n",
        "    candidates = configuration.learners\n",
        masked="it is a good voter, only not a wanted one",
        tests=_JOINT,
    ),
    Mutant(
        "disk-of-a-voter-changes",
        "dledger/core/membership.py",
        "        if is_other and wanted.is_voter(node):\n",
        "        if False:\n",
        masked="replacing makes it a learner, and nobody asks for anything else",
        tests=_JOINT,
    ),
    Mutant(
        "leader-stops-before-its-removal-is-committed",
        "dledger/core/retiring.py",
        "    if log.has_uncommitted_configuration() or state.transfer is not None:\n",
        "    if state.transfer is not None:\n",
        masked="it costs an election",
        tests=_JOINT,
    ),
    Mutant(
        "leader-goes-on-without-a-vote",
        "dledger/core/raft.py",
        "            retire_if_voter_no_more(state)\n",
        "",
        masked="whoever operates it stops it when it is a member no more",
        tests=_JOINT,
    ),
    Mutant(
        "who-votes-no-more-never-campaigns",
        "dledger/core/state.py",
        "        may_count = self.log.configurations_that_may_count()\n",
        "        may_count = (self.log.configuration,)\n",
        masked="it takes a leader that dies with its own removal, or nobody but that one to vote",
        tests=_JOINT,
    ),
    Mutant(
        "who-votes-no-more-gives-no-vote",
        "dledger/core/state.py",
        "        return any(map(self._is_named_by, self.log.configurations_that_may_count()))\n",
        "        return self._is_named_by(self.log.configuration)\n",
        masked="the same, and its vote is the one that decides",
        tests=_JOINT,
    ),
    Mutant(
        "who-was-taken-out-does-not-start",
        "store/starting/opening.py",
        "    if named == NO_DISK and any(",
        "    if named != NO_DISK and any(",
        masked="few of those that were taken out start again before they are stopped for good",
        tests=("tests/starting/test_own_disk.py",),
    ),
    Mutant(
        "members-change-below-their-level",
        "broker/leader/membership.py",
        "        if self._level() < MEMBERS_CHANGE_LEVEL:\n",
        "        if self._level() < 0:\n",
        masked="all members of a run know the level",
        tests=_CHANGES,
    ),
    Mutant(
        "change-that-nobody-could-commit",
        "broker/leader/membership.py",
        "            check_enough(wanted, active | {self._node})\n",
        "",
        masked="whoever is silent comes back",
        tests=_CHANGES,
    ),
    Mutant(
        "second-administrator-let-in",
        "broker/leader/membership.py",
        "            check_alone(present, change, is_committed=is_committed)\n",
        "",
        masked="the core refuses a second one until the first is committed",
        tests=_CHANGES,
    ),
    Mutant(
        "who-is-no-member-is-heard",
        "dledger/peers.py",
        "        if speaker.place <= self._known.place or strangers >= MAX_STRANGERS:\n",
        "        if strangers >= MAX_STRANGERS:\n",
        masked="what it asks for is decided by terms and logs, and its answers aren't counted",
        tests=_LINKS,
    ),
    Mutant(
        "who-lags-hears-no-leader-that-is-new-to-it",
        "dledger/peers.py",
        "        if speaker.place <= self._known.place or strangers >= MAX_STRANGERS:\n",
        "        if speaker.place != self._known.place or strangers >= MAX_STRANGERS:\n",
        under=_CHURN,
    ),
    Mutant(
        "who-is-no-member-is-dialed-on",
        "dledger/peers.py",
        "        peer.is_member = False\n        peer.dialed.stop()\n",
        "        peer.is_member = False\n",
        masked="whoever is dialed there turns the call away",
        tests=_LINKS,
    ),
    Mutant(
        "strangers-promises-are-kept",
        "dledger/peers.py",
        "            if peer.is_member:  # what others promise",
        "            if True:  # what others promise",
        masked="nobody asks for the promises of who is no member",
        tests=_LINKS,
    ),
)
