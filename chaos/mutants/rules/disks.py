"""Defects in which disk is a member's, who holds it, and what is told of one that fails: forming,
unknown disks, replacing (ADR 22)."""

from __future__ import annotations

from chaos.mutants.mutant import Mutant

_FORMED_BEFORE = "the simulator's groups are formed before anything happens"
_FORMING = ("tests/forming/test_forming.py",)
_MEMBERSHIP = ("tests/core/test_membership.py",)
_DISKS = ("tests/links/test_disks.py",)
_DIRECTORY = ("tests/store/test_directory.py",)

DISKS = (
    Mutant(
        "lock-that-cannot-be-looked-at-is-nobodys",
        "store/holding.py",
        "        if error.errno in _ABSENT:\n            return None\n",
        "        if error:\n            return None\n",
        masked="nodes ask the lock itself",
        tests=("tests/audit/test_log.py",),
    ),
    Mutant(
        "memory-of-promises-hides-a-failed-disk",
        "broker/memory.py",
        "                raise\n            return\n",
        "                return\n            return\n",
        masked="what comes next meets the disk as well",
        tests=("tests/node/test_ends_of_a_process.py",),
    ),
    Mutant(
        "failed-sync-of-a-folder-names-none",
        "store/files.py",
        "            self.fsync(handle)  # which names it\n",
        "            os.fsync(handle)\n",
        masked="simulated disks name every file",
        tests=("tests/store/test_untold.py",),
    ),
    Mutant(
        "unknown-disk-answers",
        "dledger/greeting.py",
        "if named == NO_DISK or speaker.disk == named or not self.is_known:",
        "if named != NO_DISK or not answers:",
        seed=22,
    ),
    Mutant(
        "who-lags-counts-answers-of-a-newer-disk",
        "dledger/greeting.py",
        "if not answers and speaker.place > self.place:",
        "if speaker.place > self.place:",
        masked="whoever knows more refuses its vote to who lags, but for its log's sake",
        tests=_DISKS,
    ),
    Mutant(
        "new-directory-is-in-the-page-cache-only",
        "store/directory.py",
        '        if not files.exists(path / "identity.json"):\n            # A start',
        "        if not files.exists(path):\n            # A start",
        masked="few runs fail that one sync of a new disk, and lose its power before another",
        tests=_DIRECTORY,
    ),
    Mutant(
        "streams-outlive-their-disk",
        "dledger/peers.py",
        "            if is_of_here and not known.refusal_of("
        "peer.name, speaker, answers=call.is_dialed):",
        "            if is_of_here:",
        masked="a lost disk's process is dead before another one is named",
        tests=_DISKS,
    ),
    Mutant(
        "joining-disk-votes-for-the-lost-one",
        "dledger/core/state.py",
        "        return configuration.disk_of(self.node) == self.own_disk\n",
        "        return self.own_disk is not None\n",
        masked="whoever counts a joining disk's vote has named it, and it has caught up",
        tests=_MEMBERSHIP,
    ),
    Mutant(
        "progress-kept-across-disks",
        "dledger/core/roles.py",
        "if progress is None or progress.disk != disk:",
        "if progress is None:",
        masked="what the lost disk had acknowledged before entry A is on a majority without it",
        tests=_MEMBERSHIP,
    ),
    Mutant(
        "promoted-before-it-holds-what-named-it",
        "dledger/core/membership.py",
        "    if progress.match_index < state.log.configuration_place.at:\n        return False\n",
        "",
        masked="a peer in REPLICATE is behind by less than it takes",
        tests=_MEMBERSHIP,
    ),
    Mutant(
        "two-voters-change-at-once",
        "dledger/core/membership.py",
        "    elif len(wanted.voters ^ present.voters) > 1:\n",
        "    elif len(wanted.voters ^ present.voters) > 9:\n",
        masked="what is asked for makes it joint by itself",
        tests=_MEMBERSHIP,
    ),
    Mutant(
        "lost-disk-stays-a-voter",
        "dledger/core/membership.py",
        "        voters=configuration.voters - {node},\n",
        "        voters=configuration.voters,\n",
        masked="a new disk joins only when its entry is committed, so without it",
        tests=_MEMBERSHIP,
    ),
    Mutant(
        "wiped-directory-is-a-member-at-once",
        "store/starting/opening.py",
        "    if not directory.disk.state.is_member:\n        raise NotAMember(",
        '    if directory.disk.state.value == "":\n        raise NotAMember(',
    ),
    Mutant(
        "log-without-identity-is-formatted",
        "store/directory.py",
        'if files.exists(path / "commitlog") and files.listdir(path / "commitlog"):',
        'if files.exists(path / "commitlog" / "identity.json"):',
        masked=_FORMED_BEFORE,
        tests=_DIRECTORY,
    ),
    Mutant(
        "legacy-starts-silently",
        "store/directory.py",
        "        disk = Disk(born.disk_id, born.time_ms, DirectoryState.LEGACY)\n",
        "        disk = Disk(born.disk_id, born.time_ms, DirectoryState.FORMED)\n",
        masked=_FORMED_BEFORE,
        tests=_DIRECTORY,
    ),
    Mutant(
        "boot-number-told-before-it-is-durable",
        "store/directory.py",
        "            file.replace(_BOOT.pack(_BOOT_MAGIC, _BOOT_VERSION, number))\n",
        "",
    ),
    Mutant(
        "committed-before-all-prepared",
        "broker/forming/initiator.py",
        "    await _all_done([calls.prepare(address, founding) for address, _ in members])\n",
        "    for address, _ in members:\n"
        "        await calls.prepare(address, founding)\n"
        "        await calls.commit(address, founding.name)\n",
        masked=_FORMED_BEFORE,
        tests=_FORMING,
    ),
    Mutant(
        "lost-member-holds-up-who-is-prepared",
        "broker/forming/initiator.py",
        "            await calls.commit(next(at for at, one in members if one is each), name)\n",
        "            pass\n",
        masked=_FORMED_BEFORE,
        tests=_FORMING,
    ),
    Mutant(
        "prepared-is-formed-though-nobody-is",
        "broker/forming/planning.py",
        "[each.founding for each in members if each.state == FORMED and each.founding]\n",
        "[each.founding for each in members if each.founding]\n",
        masked=_FORMED_BEFORE,
        tests=_FORMING,
    ),
    Mutant(
        "full-disk-ends-a-node-that-stands-by",
        "broker/doors/grpc/formation.py",
        "            if isinstance(error, StorageFull) or _is_full(error):\n",
        "            if isinstance(error, StorageFull):\n",
        masked=_FORMED_BEFORE,
        tests=("tests/integration/test_joining_on_full_disks.py",),
    ),
    Mutant(
        "second-founding-taken",
        "broker/forming/member.py",
        "if self.founding is not None or self.is_member:",
        "if self.is_member:",
        masked=_FORMED_BEFORE,
        tests=_FORMING,
    ),
    Mutant(
        "formed-before-entry-1",
        "broker/forming/member.py",
        "        if not founding.is_adopted:\n            self._write_first_entry(founding)\n"
        "        self._directory.mark(DirectoryState.FORMED)\n",
        "        self._directory.mark(DirectoryState.FORMED)\n"
        "        if not founding.is_adopted:\n            self._write_first_entry(founding)\n",
        masked=_FORMED_BEFORE,
        tests=_FORMING,
    ),
    Mutant(
        "member-starts-without-its-log",
        "store/starting/opening.py",
        "if not configurations and (founding is None or not founding.is_adopted):",
        "if configurations and (founding is None or not founding.is_adopted) and False:",
        masked=_FORMED_BEFORE,
        tests=_FORMING,
    ),
    Mutant(
        "replacement-that-was-cut-off-called-done",
        "broker/leader/membership.py",
        "                    if core.role is not Role.LEADER or core.term != term:\n",
        "                    if self._replication.applied_index < index and core.term != term:\n",
        masked="it takes ten milliseconds in which leadership goes and another's entry is applied",
        tests=_MEMBERSHIP,
    ),
    Mutant(
        "formed-though-it-forgot-that-it-was-prepared",
        "broker/forming/planning.py",
        "        _check_prepared(members)\n",
        "",
        masked=_FORMED_BEFORE,
        tests=_FORMING,
    ),
    Mutant(
        "formed-as-whoever-it-was-begun-with",
        "broker/forming/planning.py",
        "        _check_founders(members, founding)\n",
        "",
        masked=_FORMED_BEFORE,
        tests=_FORMING,
    ),
    Mutant(
        "formed-at-addresses-of-before",
        "broker/forming/planning.py",
        "    if not formed and founders != peers:\n",
        "    if not formed and names != wanted:\n",
        masked=_FORMED_BEFORE,
        tests=_FORMING,
    ),
    Mutant(
        "prepared-with-others-than-it-is-configured-with",
        "broker/forming/member.py",
        "        if founders != self._peers:\n",
        "        if False:\n",
        masked=_FORMED_BEFORE,
        tests=_FORMING,
    ),
)
