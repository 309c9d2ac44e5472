"""Defects in what keeps apart those of before and those of after a recovery by force
(docs/adr/0052-the-last-resort.md)."""

from __future__ import annotations

from chaos.mutants.mutant import Mutant

_OWN = "a recovery by force is no fault of a usual run: its schedule has a test of its own"
_LINKS = ("tests/links/test_epochs.py",)
_SCHEDULE = ("tests/chaos/test_last_resort.py",)
_DIRECTORY = ("tests/starting/test_recovering.py",)
_ASKED = ("tests/broker/test_last_resort.py",)
_CLIENT = ("tests/client/test_leader_view.py",)
_CONNECTION = ("tests/client/test_connection.py",)
_NODES = ("tests/integration/test_recovery_by_force.py",)

LAST_RESORT = (
    # --- who hears whom ---
    Mutant(
        "those-of-before-are-heard",
        "dledger/greeting.py",
        "        return WrongEpoch(peer, standing, speaker.recoveries, self.recoveries)\n",
        "        return None\n",
        masked=_OWN,
        tests=_SCHEDULE,
    ),
    Mutant(
        "who-lags-is-of-before",
        "dledger/greeting.py",
        "        if standing is Standing.SAME or (standing is Standing.OLDER and is_named):\n",
        "        if standing is Standing.SAME:\n",
        masked=_OWN,
        tests=_LINKS,
    ),
    Mutant(
        "a-stranger-gives-up-a-member",
        "dledger/greeting.py",
        "        return self.is_known and standing is Standing.NEWER and "
        "self._is_named(peer, speaker)\n",
        "        return self.is_known and standing is Standing.NEWER\n",
        masked=_OWN,
        tests=_LINKS,
    ),
    Mutant(
        "two-recoveries-are-older-and-newer",
        "dledger/core/group_epoch.py",
        "    if theirs[:shared] != own[:shared]:\n",
        "    if theirs[:shared] != own[:shared] and len(theirs) == len(own):\n",
        masked=_OWN,
        tests=_LINKS,
    ),
    Mutant(
        "sessions-outlive-a-recovery",
        "broker/state/consuming.py",
        "        self._end(self._groups.sessions(), at)\n",
        "        return None\n",
        masked=_OWN,
        tests=("tests/broker/test_after_a_recovery.py", *_NODES),
    ),
    Mutant(
        "every-configuration-of-an-epoch-ends-sessions",
        "broker/state/recovered.py",
        '    return epoch.HasField("last") and epoch.last.index == index\n',
        '    return epoch.HasField("last")\n',
        masked=_OWN,
        tests=("tests/broker/test_after_a_recovery.py",),
    ),
    Mutant(
        "recovery-ends-sessions-before-its-level",
        "broker/state/machine.py",
        "        if self.level.current >= DELIVERY_LEVEL and begins_epoch(header.index, body):\n",
        "        if begins_epoch(header.index, body):\n",
        masked=_OWN,
        tests=("tests/broker/test_after_a_recovery.py",),
    ),
    Mutant(
        "given-up-and-stays",
        "broker/wiring.py",
        "        member.transport.when_given_up(self._life.on_given_up)\n",
        "",
        masked=_OWN,
        tests=_SCHEDULE,
    ),
    Mutant(
        "who-calls-is-not-told-of-the-epoch",
        "dledger/peers.py",
        "            error.answer = own\n",
        "",
        masked=_OWN,
        tests=_LINKS,
    ),
    Mutant(
        "streams-outlive-their-epoch",
        "dledger/peers.py",
        "            is_of_here = known.refusal_of_epoch(peer.name, speaker) is None\n",
        "            is_of_here = True\n",
        masked=_OWN,
        tests=_LINKS,
    ),
    Mutant(
        "an-epoch-without-a-checksum",
        "dledger/checksum.py",
        "        if hello.recoveries_checksum != _recoveries_checksum(message):\n",
        "        if False:\n",
        masked=_OWN,
        tests=_LINKS,
    ),
    Mutant(
        "members-change-the-epoch",
        "dledger/core/membership.py",
        "    if wanted.epoch != present.epoch:\n",
        "    if False:\n",
        masked=_OWN,
        tests=("tests/core/test_joint.py",),
    ),
    Mutant(
        "joining-disk-that-votes-is-told-that-it-is-none",
        "store/starting/recovering.py",
        "    if index <= trusted:\n",
        "    if index < 0:\n",
        masked=_OWN,
        tests=_DIRECTORY,
    ),
    Mutant(
        "goes-on-from-a-disk-that-may-not-be-a-members",
        "store/starting/recovering.py",
        "    if is_joining:\n",
        "    if False:\n",
        masked=_OWN,
        tests=_DIRECTORY,
    ),
    # --- what is written ---
    Mutant(
        "forced-before-its-term",
        "store/starting/recovering.py",
        "            opened.hard_state_store.save(HardState(Term(term)))\n"
        "            _append(opened, survivor, epoch)\n",
        "            _append(opened, survivor, epoch)\n"
        "            opened.hard_state_store.save(HardState(Term(term)))\n",
        masked=_OWN,
        tests=_DIRECTORY,
    ),
    Mutant(
        "forced-and-not-written",
        "store/starting/recovering.py",
        "    log.submit(1)\n    if log.synced_index < last.index:\n",
        "    if False:\n",
        masked=_OWN,
        tests=_DIRECTORY,
    ),
    Mutant(
        "forced-in-a-term-that-others-may-come-to",
        "store/starting/recovering.py",
        "            term = max(survivor.term, seen_term) + EPOCH_TERM_GAP\n",
        "            term = survivor.term + EPOCH_TERM_GAP\n",
        masked=_OWN,
        tests=_DIRECTORY,
    ),
    Mutant(
        "an-epoch-forgets-those-before",
        "store/starting/recovering.py",
        "GroupEpoch((*survivor.configuration.epoch.recoveries, recovery_id), recovery)",
        "GroupEpoch((recovery_id,), recovery)",
        masked=_OWN,
        tests=_DIRECTORY,
    ),
    Mutant(
        "what-was-not-shown-is-lost",
        "store/starting/recovering.py",
        "            if survivor != shown:\n",
        "            if False:\n",
        masked=_OWN,
        tests=_DIRECTORY,
    ),
    Mutant(
        "a-learner-goes-on-alone",
        "store/starting/recovering.py",
        "    if not configuration.is_voter(node):\n",
        "    if False:\n",
        masked=_OWN,
        tests=_DIRECTORY,
    ),
    Mutant(
        "rot-goes-on-alone",
        "store/starting/recovering.py",
        "    if places := DoubtNote(site.files, site.path).read():\n",
        "    if places := DoubtNote(site.files, site.path).read()[:0]:\n",
        masked=_OWN,
        tests=_DIRECTORY,
    ),
    Mutant(
        "a-majority-that-is-there-is-lost",
        "broker/last_resort.py",
        "    if has_quorum(survivor.configuration, running | {NodeId(survivor.node_id)}):\n",
        "    if False:\n",
        masked=_OWN,
        tests=_ASKED,
    ),
    Mutant(
        "who-shows-no-certificate-is-lost",
        "broker/last_resort.py",
        "for each in (*listening, survivor.node_id)}",
        "for each in (survivor.node_id,)}",
        masked=_OWN,
        tests=_ASKED,
    ),
    Mutant(
        "machines-made-anew-hold-a-recovery-up",
        "broker/last_resort.py",
        "    return await probe(address, tls=tls) is None\n",
        "    return True\n",
        masked=_OWN,
        tests=_ASKED,
    ),
    Mutant(
        "the-shorter-log-goes-on",
        "broker/last_resort.py",
        "    if (last_term, last_index) > survivor.end:\n",
        "    if False:\n",
        masked=_OWN,
        tests=_ASKED,
    ),
    Mutant(
        "given-up-once-and-recovered-again",
        "broker/last_resort.py",
        "        if rival.configuration.epoch.recoveries != own.recoveries:\n",
        "        if False:\n",
        masked=_OWN,
        tests=_ASKED,
    ),
    # --- clients ---
    Mutant(
        "views-of-before-count",
        "dledger/client/leader_view.py",
        "        if view.epoch != self.epoch:\n",
        "        if False:\n",
        masked=_OWN,
        tests=_CLIENT,
    ),
    Mutant(
        "what-was-said-before-is-remembered",
        "dledger/client/leader_view.py",
        "        self.epoch = epoch\n        self._views.clear()\n",
        "        self.epoch = epoch\n",
        masked=_OWN,
        tests=_CLIENT,
    ),
    Mutant(
        "answers-of-before-count",
        "dledger/client/connection.py",
        "            if epoch != self._epoch():\n",
        "            if False:\n",
        masked=_OWN,
        tests=_CONNECTION,
    ),
    Mutant(
        "nobody-is-told-of-the-epoch",
        "dledger/client/group_epoch.py",
        "        if not self.number:\n            return ()\n",
        "        if True:\n            return ()\n",
        masked=_OWN,
        tests=_CLIENT,
    ),
    Mutant(
        "answers-do-not-tell-their-epoch",
        "broker/doors/grpc/epochs.py",
        "    if own.number > told.number:\n",
        "    if False:\n",
        masked=_OWN,
        tests=_NODES,
    ),
    Mutant(
        "hears-of-a-newer-epoch-and-serves-on",
        "broker/leader/epochs.py",
        "            self._on_shut()\n",
        "            pass\n",
        masked=_OWN,
        tests=_NODES,
    ),
    Mutant(
        "elected-again-and-serves-on",
        "broker/leader/leadership.py",
        "        if self.serving or self._is_over or not is_ready or self.fence.is_shut:\n",
        "        if self.serving or self._is_over or not is_ready:\n",
        masked=_OWN,
        tests=_NODES,
    ),
)
