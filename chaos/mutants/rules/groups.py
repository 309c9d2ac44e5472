"""Defects in consumer groups: their state, and what a leader does about them
(docs/adr/0055-consumer-groups.md)."""

from __future__ import annotations

from chaos.mutants.mutant import Mutant

_STATE = ("tests/broker/test_consuming.py",)
_KEEPER = ("tests/broker/test_keeper.py",)
_PARTS = ("tests/broker/test_strategies.py",)
_FENCED = "whoever is too early or too late is refused by its epoch"
_FAIR = "whoever has which queue, each is worked on"
_AGREED = "all members of a simulated group agree"
_ONE_TOPIC = "members of simulated groups want one topic, which stays"
_BOUNDED = "no simulated group comes near the bound"

GROUPS = (
    # --- state: who holds what, how far it is done ---
    Mutant(
        "commit-of-an-older-epoch-taken",
        "broker/state/leases.py",
        "        if epoch and (lease.session, lease.epoch) == (session, epoch):\n",
        "        if epoch and epoch <= lease.epoch:\n",
        tests=_STATE,
    ),
    Mutant(
        "grant-without-a-start",
        "broker/state/consuming.py",
        "        refusal = self._put(group, topic, missing) if missing else None\n",
        "        refusal = None\n",
        tests=_STATE,
    ),
    Mutant(
        "grant-whatever-the-epoch",
        "broker/state/leases.py",
        "        if lease.epoch != former:\n",
        "        if False:\n",
        tests=_STATE,
    ),
    Mutant(
        "lease-outlives-its-session",
        "broker/state/consuming.py",
        "                self._leases.on_session_ended(session)\n",
        "",
        tests=_STATE,
    ),
    Mutant(
        "replaced-session-keeps-its-leases",
        "broker/state/consuming.py",
        "            self._leases.on_session_ended(before.session)\n",
        "            pass\n",
        tests=_STATE,
    ),
    Mutant(
        "finished-above-the-frontier-forgotten-on-release",
        "broker/state/leases.py",
        "        self._put(place, Lease(finished=self.of(place).finished))\n",
        "        self._put(place, FREE)\n",
        tests=_STATE,
    ),
    Mutant(
        "finished-ranges-cut-in-silence",
        "broker/state/consuming.py",
        "        return self._leases.too_many(place, finished) or (frontier, finished)\n",
        "        return frontier, finished[:1]\n",
        masked=_BOUNDED,
        tests=_STATE,
    ),
    Mutant(
        "finished-beyond-the-end",
        "broker/state/consuming.py",
        "        if last > topic.next_offsets[queue.queue_id]:\n",
        "        if False:\n",
        masked="no simulated member says that it has finished what isn't there",
        tests=_STATE,
    ),
    Mutant(
        "frontier-taken-as-told",
        "broker/state/consuming.py",
        "united(before, self._leases.of(place).finished, (*done, *told))",
        "united(queue.frontier, (), told)",
        tests=_STATE,
    ),
    Mutant(
        "simple-commit-beside-members",
        "broker/state/consuming.py",
        "        if self._groups.members(commit.group):\n",
        "        if False:\n",
        tests=_STATE,
    ),
    Mutant(
        "simple-commit-in-a-unit-beside-members",
        "broker/state/compound.py",
        "                if owners.groups.members(body.group):\n",
        "                if False:\n",
        tests=_KEEPER,
    ),
    Mutant(
        "what-was-finished-outlives-a-reset",
        "broker/state/consuming.py",
        "            self._leases.on_committed(commit.group, topic.incarnation, queues)\n",
        "",
        masked="no simulated group without members is reset",
        tests=_STATE,
    ),
    Mutant(
        "leases-of-a-topic-that-is-gone",
        "broker/state/consuming.py",
        "        self._leases.on_topic_deleted(topic.incarnation)\n",
        "",
        masked=_ONE_TOPIC,
        tests=_STATE,
    ),
    Mutant(
        "same-token-another-session",
        "broker/state/groups.py",
        "        if before is not None and before.token == wish.token:\n            return None\n",
        "",
        masked="a member that asks twice has one session, which is the last",
        tests=_STATE,
    ),
    Mutant(
        "who-disagrees-joins",
        "broker/state/groups.py",
        "            return GroupDiffers(wish.group, differences, group.version) if differences "
        "else None\n",
        "            return None\n",
        masked=_AGREED,
        tests=_STATE,
    ),
    Mutant(
        "style-changes-under-members",
        "broker/state/groups.py",
        "        if others and wish.settings.style != group.settings.style:\n",
        "        if False:\n",
        masked=_AGREED,
        tests=_STATE,
    ),
    Mutant(
        "older-settings-dropped-under-members",
        "broker/state/groups.py",
        "        wanted = {each.version for each in group.members.values()} | {group.version}\n",
        "        wanted = {group.version}\n",
        masked=_AGREED,
        tests=_STATE,
    ),
    Mutant(
        "group-with-members-forgotten",
        "broker/state/groups.py",
        "            if group is not None and not group.members and lived_ms - group.used_ms"
        " >= unused_ms:\n",
        "            if group is not None and lived_ms - group.used_ms >= unused_ms:\n",
        masked=_BOUNDED,
        tests=_STATE,
    ),
    Mutant(
        "used-groups-forgotten",
        "broker/state/groups.py",
        "        self._own(name).used_ms = lived_ms\n",
        "        self._own(name)\n",
        masked=_BOUNDED,
        tests=_STATE,
    ),
    Mutant(
        "groups-before-their-level",
        "broker/state/level.py",
        '    "join_group": GROUPS_LEVEL,\n',
        '    "join_group": 1,\n',
        masked="a leader proposes none before",
        tests=_STATE,
    ),
    Mutant(
        "snapshot-shows-groups-of-later",
        "broker/state/groups.py",
        "        if group is None or group.snapshots != self._snapshots:\n",
        "        if group is None:\n",
        tests=_STATE,
    ),
    Mutant(
        "snapshot-shows-leases-of-later",
        "broker/state/leases.py",
        "        if topic.snapshots != self._snapshots:\n",
        "        if False:\n",
        tests=_STATE,
    ),
    # --- what a leader does ---
    Mutant(
        "new-leader-ends-sessions-that-are-not-back-yet",
        "broker/leader/groups/keeper.py",
        "        self._presence.begin(sessions, pace.ticks(grace_ms))\n",
        "        self._presence.begin(sessions, 1)\n",
        tests=_KEEPER,
    ),
    Mutant(
        "change-of-leader-moves-leases",
        "broker/leader/groups/keeper.py",
        "may_move=not self.is_returning)",
        "may_move=True)",
        masked=_FENCED,
        tests=_KEEPER,
    ),
    Mutant(
        "late-ticks-count-as-silence",
        "broker/leader/groups/presence.py",
        "        self.now += 1\n",
        "        import asyncio\n\n"
        "        self.now = max(self.now + 1, int(asyncio.get_running_loop().time() * 100))\n",
        masked="a leader that sleeps for a session wakes as none",
        tests=_KEEPER,
    ),
    Mutant(
        "nobody-is-read-after-a-late-tick",
        "broker/leader/groups/presence.py",
        "            self._settled_at = self.now + SETTLE_TICKS\n",
        "            pass\n",
        masked="a leader that sleeps for a session wakes as none",
        tests=_PARTS,
    ),
    Mutant(
        "orderly-session-ended-on-a-broken-stream",
        "broker/leader/groups/keeper.py",
        "        if group is not None and not group.settings.is_orderly:\n",
        "        if group is not None:\n",
        tests=_KEEPER,
    ),
    Mutant(
        "session-ended-that-came-back",
        "broker/leader/groups/presence.py",
        "            self._until[session] = until  # its entry of the heap is put off when it "
        "comes up\n",
        "            pass\n",
        tests=_PARTS,
    ),
    Mutant(
        "session-of-a-half-open-stream-ended",
        "broker/leader/groups/keeper.py",
        "        if self._attached.get(session) is not attendee:\n            return\n",
        "        if session not in self._attached:\n            return\n",
        tests=_KEEPER,
    ),
    Mutant(
        "silent-members-kept",
        "broker/leader/groups/ending.py",
        "        silent = [each for each in self._presence.due() if each not in self._under_way]\n",
        "        silent: list[int] = []\n",
        tests=_KEEPER,
    ),
    Mutant(
        "hand-over-without-an-end",
        "broker/leader/groups/planning.py",
        "    elif asked is not None and when.now >= asked.until:\n",
        "    elif False:\n",
        masked="simulated members give back what they are asked for in the end",
        tests=_KEEPER,
    ),
    Mutant(
        "hand-over-without-asking",
        "broker/leader/groups/planning.py",
        "Asked(lease.epoch, when.now + when.release_ticks)",
        "Asked(lease.epoch, when.now)",
        masked=_FENCED,
        tests=_KEEPER,
    ),
    Mutant(
        "nobody-told-of-what-is-kept",
        "broker/leader/groups/planning.py",
        "        del hand_over.asked[place]\n        found.asked.add(lease.session)\n"
        "        asked = None\n",
        "        del hand_over.asked[place]\n        asked = None\n",
        masked=_FENCED,
        tests=_KEEPER,
    ),
    Mutant(
        "topic-that-is-gone-told-to-nobody",
        "broker/leader/groups/keeper.py",
        "            self._of(group).tells_all = True\n",
        "",
        masked=_ONE_TOPIC,
        tests=_KEEPER,
    ),
    Mutant(
        "older-settings-get-new-topics",
        "broker/state/groups.py",
        "        is_known = topic in own.topics and topic in now.topics\n",
        "        is_known = topic in now.topics\n",
        masked=_AGREED,
        tests=_STATE,
    ),
    Mutant(
        "young-topics-started-at-their-end",
        "broker/leader/groups/starting.py",
        "    wish = Start.FIRST if is_all else settings.start\n",
        "    wish = settings.start\n",
        masked=_ONE_TOPIC,
        tests=_KEEPER,
    ),
    Mutant(
        "refused-grants-proposed-for-ever",
        "broker/leader/groups/keeper.py",
        "        if refused:\n            pace = self.pace\n",
        "        if False:\n            pace = self.pace\n",
        masked="no grant of a simulated leader is refused for long",
        tests=_KEEPER,
    ),
    Mutant(
        "sticky-forgets-who-had-what",
        "broker/leader/groups/strategies.py",
        "        if share.held.get(queue) in held:\n",
        "        if False:\n",
        masked=_FAIR,
        tests=_PARTS,
    ),
    Mutant(
        "remainders-always-to-the-first",
        "broker/leader/groups/strategies.py",
        "    at = salt % len(sessions)\n",
        "    at = 0\n",
        masked=_FAIR,
        tests=_PARTS,
    ),
    # --- what members are told ---
    Mutant(
        "member-told-whole-too-early",
        "broker/services/attendance.py",
        "        is_whole = not mine.is_whole and mine.told == held\n",
        "        is_whole = not mine.is_whole\n",
        masked="simulated members hold few queues: one update names them all",
        tests=("tests/broker/test_attendance.py",),
    ),
    Mutant(
        "slots-given-back-to-who-does-not-read",
        "broker/services/attendance.py",
        "            self._tell(Ended(slot, error.failure))\n            return\n"
        "        if self._is_over:\n",
        "            self._free(slot)\n            self._tell(Ended(slot, error.failure))\n"
        "            return\n        if self._is_over:\n",
        masked="simulated members read what they are told",
        tests=("tests/broker/test_attendance.py",),
    ),
    Mutant(
        "session-resumed-while-it-ends",
        "broker/services/attendance.py",
        "        if found.session in self._keeper.ending:\n",
        "        if False:\n",
        masked=_FENCED,
        tests=("tests/broker/test_attendance.py",),
    ),
    Mutant(
        "queues-read-by-who-lost-them",
        "broker/services/queue_pulls.py",
        "            if self._state.leases.of(place).epoch != wish.epoch:\n",
        "            if False:\n",
        masked=_FENCED,
        tests=("tests/broker/test_attendance.py",),
    ),
    Mutant(
        "pull-of-many-queues-woken-by-the-first-only",
        "broker/reading/held.py",
        "        for key in keys:\n            self._waiting[key][future] = woken\n",
        "        for key in keys[:1]:\n            self._waiting[key][future] = woken\n",
        masked="simulated members ask again",
        tests=("tests/broker/test_attendance.py",),
    ),
)
