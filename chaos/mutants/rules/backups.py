"""Defects in backups and what is made of them (docs/adr/0046-backups-are-logs.md)."""

from __future__ import annotations

from chaos.mutants.mutant import Mutant

_TAKING = "audit/backing/taking.py"
_MEMBERS = "audit/backing/members.py"
_BEHIND = "audit/backing/behind.py"
_RESTORING = "store/starting/restoring.py"
_TESTS = {
    _TAKING: ("tests/audit/test_backing.py",),
    _MEMBERS: ("tests/audit/test_backing.py",),
    _BEHIND: ("tests/audit/test_backing.py",),
    _RESTORING: ("tests/starting/test_restoring.py",),
}


_BROKEN_OFF = ("tests/audit/test_backup_broken_off.py",)
_SESSIONS = ("tests/broker/test_old_sessions.py",)


def _mutant(name: str, file: str, old: str, new: str, own: tuple[str, ...] = ()) -> Mutant:
    tests = own or _TESTS.get(file, ("tests/starting/test_restoring.py",))
    return Mutant(name, file, old, new, masked="no run of the simulator is backed up", tests=tests)


BACKUPS = (
    _mutant(
        "backup-that-could-go-on-is-refused",
        _TAKING,
        "    if begins_behind(source.survey, before):\n",
        "    if False:\n",
    ),
    _mutant(
        "backup-goes-on-behind-another-logs-entry",
        _BEHIND,
        "    theirs = (start.index, start.term, start.digest)\n",
        "    theirs = (start.index, start.term, before.last_digest)\n",
    ),
    _mutant(
        "backup-goes-on-without-a-filler",
        _BEHIND,
        "    if end < base + size:\n",
        "    if False:\n",
    ),
    _mutant(
        "backup-of-a-member-that-is-behind",
        _TAKING,
        "                elif survey.committed_offset >= wanted:\n",
        "                elif survey.committed_offset >= 0:\n",
    ),
    _mutant(
        "backup-from-a-member-that-has-let-go-of-what-follows",
        _TAKING,
        "                if behind is not None and behind < survey.first_index - 1:\n",
        "                if False:\n",
    ),
    _mutant(
        "backup-refused-though-another-member-has-what-follows",
        _TAKING,
        "        if not left:\n",
        "        if begins:\n",
    ),
    _mutant(
        "backup-of-a-member-that-is-out-of-service",
        _MEMBERS,
        "        if each.address is None or each.silence or each.standing or _has_no_log(each)\n",
        "        if each.address is None or each.silence or _has_no_log(each)\n",
    ),
    _mutant(
        "backup-of-a-member-without-a-log",
        _MEMBERS,
        "        if each.address is None or each.silence or each.standing or _has_no_log(each)\n",
        "        if each.address is None or each.silence or each.standing\n",
    ),
    _mutant(
        "backup-in-an-election-is-whole",
        _TAKING,
        "        if leader is not None or time.monotonic() >= until:\n",
        "        if True:\n",
    ),
    _mutant(
        "backup-without-a-leader-is-whole",
        _TAKING,
        '            return found, "" if leader is None else leader.id\n',
        "            return found, found[0].id\n",
    ),
    _mutant(
        "backup-of-who-is-no-member",
        _MEMBERS,
        "    members = [each for each in found if each.is_member]\n",
        "    members = list(found)\n",
    ),
    _mutant(
        "backup-though-members-hold-other-logs",
        _MEMBERS,
        "        if own != (told.committed, told.digest):\n",
        "        if own[0] != told.committed:\n",
    ),
    _mutant(
        "backup-is-not-verified",
        _TAKING,
        "    if total.verdict is Soundness.SOUND and not wrong:\n",
        "    if True:\n",
    ),
    _mutant(
        "backup-is-named-before-it-is-verified",
        _TAKING,
        "        others = [each.address for each in answering if each.address is not None]\n",
        "        write_backup(files, folder, _described(folder, source))\n"
        "        others = [each.address for each in answering if each.address is not None]\n",
    ),
    _mutant(
        "restored-group-has-no-room-to-be-founded-in",
        _RESTORING,
        "workers=InlineWorker)\n",
        'workers=lambda name, step: InlineWorker(name, step if "flush" in name else dict))\n',
    ),
    _mutant(
        "restored-though-what-founds-it-is-not-durable",
        _RESTORING,
        "        if log.synced_index != last_index + 1:\n",
        "        if log.last_index != last_index + 1:\n",
    ),
    _mutant(
        "backup-goes-on-from-another-log",
        _TAKING,
        "    if own != _read_range(source, base, at, end - at):\n",
        "    if len(own) != len(_read_range(source, base, at, end - at)):\n",
    ),
    _mutant(
        "backup-is-verified-to-where-it-ended-before",
        _TAKING,
        "    return replace(open_log(folder, is_ours=True), end=end, read_end=end)\n",
        "    return open_log(folder, is_ours=True)\n",
        _BROKEN_OFF,
    ),
    _mutant(
        "backup-says-what-it-has-before-it-has-it",
        _TAKING,
        '    progress, begin = started("copy", source.end - at), at\n',
        '    progress, begin = started("copy", source.end - at), at\n'
        "    if before is not None:\n"
        "        write_backup(files, folder, replace(before, end_offset=source.end))\n",
        _BROKEN_OFF,
    ),
    _mutant(
        "backups-folder-has-no-durable-name",
        _TAKING,
        "            files.fsync_directory(folder.parent)\n",
        "            pass\n",
        _BROKEN_OFF,
    ),
    _mutant(
        "backups-interrupted-mending-is-forgotten",
        _TAKING,
        "            RepairJournal(files, folder).redo(folder / COMMITLOG, size)\n",
        "",
        _BROKEN_OFF,
    ),
    _mutant(
        "backup-keeps-what-an-interrupted-one-left",
        _TAKING,
        "    _cut(files, commitlog, size, at)\n",
        "",
    ),
    _mutant(
        "backup-over-a-members-directory",
        _TAKING,
        "        _check_folder(files, folder, before)\n",
        "",
    ),
    _mutant(
        "backup-says-what-it-lacks-is-there",
        _TAKING,
        "        end_offset=source.end,\n",
        "        end_offset=source.end + 8,\n",
    ),
    _mutant(
        "restored-into-a-directory-that-is-used",
        _RESTORING,
        "DirectoryState.UNFORMED or not (is_unfinished or is_empty):",
        "DirectoryState.UNFORMED:",
    ),
    _mutant(
        "restored-what-is-not-the-backup",
        _RESTORING,
        "            last_index == backup.last_index and log.last_digest != backup.last_digest\n",
        "            False\n",
    ),
    _mutant(
        "restored-as-much-as-was-right",
        _RESTORING,
        "        if found != (last_index, end) or (\n",
        "        if found > (last_index, end) or (\n",
    ),
    _mutant(
        "restored-with-the-old-members",
        _RESTORING,
        "        log.append(EntryKind.CONFIGURATION, last_index + 1, term, time_ms, 0, body)\n",
        "        log.append(EntryKind.NOOP, last_index + 1, term, time_ms, 0, b'')\n",
    ),
    _mutant(
        "restored-in-the-old-term",
        _RESTORING,
        "        term = Term(log.last_term + EPOCH_TERM_GAP)\n",
        "        term = Term(log.last_term)\n",
    ),
    _mutant(
        "restored-in-the-epoch-of-before",
        _RESTORING,
        "        epoch=GroupEpoch((*recoveries, named.epoch_id), began),\n",
        "        epoch=before.epoch,\n",
    ),
    _mutant(
        "restored-in-a-lineage-that-is-too-long",
        _RESTORING,
        "    if len(recoveries) >= MAX_RECOVERIES:\n",
        "    if len(recoveries) > MAX_RECOVERIES:\n",
        _SESSIONS,
    ),
    _mutant(
        "sessions-of-before-a-backup-are-served",
        "broker/leader/leadership.py",
        "        self._is_held_up = not self._old_sessions.are_over()\n",
        "        self._is_held_up = False\n",
        _SESSIONS,
    ),
    _mutant(
        "leader-without-room-waits-for-ever",
        "broker/leader/leadership.py",
        "        if self._is_held_up and self._replication is not None:\n",
        "        if self._replication is None:\n",
        _SESSIONS,
    ),
    _mutant(
        "sessions-of-this-epoch-end",
        "broker/leader/old_sessions.py",
        "[each for each in self._sessions() if each < began.index]",
        "list(self._sessions())",
        _SESSIONS,
    ),
    _mutant(
        "restored-log-ahead-of-its-term",
        _RESTORING,
        "        HardStateStore(file).save(HardState(term))",
        "        HardStateStore(file).save(HardState(Term(1)))",
    ),
    _mutant(
        "restored-is-formed-before-its-log",
        _RESTORING,
        "        _begin(files, directory, backup, last_index)\n",
        "        _begin(files, directory, backup, last_index)\n"
        "        directory.mark(DirectoryState.FORMED)\n",
    ),
    _mutant(
        "restored-in-part-is-another-log",
        "store/starting/unformed.py",
        "    if files.exists(directory.path / RESTORE):",
        "    if False:",
    ),
    _mutant(
        "restored-mark-goes-first",
        _RESTORING,
        "        directory.mark(DirectoryState.FORMED)\n        # The group is there",
        "        files.unlink(site.path / RESTORE)\n"
        "        files.fsync_directory(site.path)\n"
        "        directory.mark(DirectoryState.FORMED)\n"
        "        files.create(site.path / RESTORE)\n"
        "        # The group is there",
    ),
    _mutant(
        "restored-page-is-not-judged",
        "dledger/reading/backup.py",
        "    if named or not _is_possible(backup):\n",
        "    if named:\n",
    ),
    _mutant(
        "backup-is-opened-to-be-written-to",
        _RESTORING,
        "KEPT_FILES: Final = OsFiles(access=os.O_RDONLY)\n",
        "KEPT_FILES: Final = OsFiles()\n",
    ),
    _mutant(
        "restored-has-failed-while-its-mark-stays",
        _RESTORING,
        "        with contextlib.suppress(OSError):\n            files.unlink(site.path",
        "        with contextlib.suppress(KeyError):\n            files.unlink(site.path",
    ),
)
