"""Defects in putting a log right while no node runs on it: what is believed of other replicas, what
is written, whose the directory is (docs/adr/0042-a-log-is-put-right-offline.md)."""

from __future__ import annotations

from chaos.mutants.mutant import Mutant

_FILE = "audit/repairing/refilling.py"
_NO_NODE = "no node of a run is repaired while it doesn't run"
_TESTS = ("tests/audit/test_repair.py",)


def _mutant(name: str, old: str, new: str, file: str = _FILE) -> Mutant:
    return Mutant(name, file, old, new, masked=_NO_NODE, tests=_TESTS)


OFFLINE_REPAIRS = (
    _mutant(
        "offline-repair-without-the-chain",
        "header = verify_frame(frame, 0, here.digest)",
        "header = verify_frame(frame, 0, None)",
    ),
    _mutant(
        "offline-repair-writes-before-it-arrived",
        "if given.size and self._goes_on(here):",
        "if given.size:",
    ),
    _mutant(
        "offline-repair-fills-whatever-follows",
        "        return here.digest is not None and self._intact(self._beyond(here)) is not None\n",
        "        return here.digest is not None and here.at > self._log.segment_size // 2\n",
    ),
    _mutant(
        "offline-repair-knows-no-later-start",
        "        if base == self._log.survey.retained_from and start_note is not None:\n",
        "        if base == 0 and start_note is not None:\n",
    ),
    _mutant(
        "offline-repair-goes-behind-the-durable-end",
        "        limit = min(self._log.end - base, self._log.segment_size)\n",
        "        limit = self._log.segment_size\n",
    ),
    _mutant(
        "offline-repair-takes-any-filler",
        "if len(content) < wanted or any(content):",
        "if len(content) < wanted:",
    ),
    _mutant(
        "offline-repair-of-one-file-only",
        "        if not self.pieces or self.pieces[-1][0] != base:\n",
        "        if not self.pieces:\n",
    ),
    _mutant(
        "offline-repair-gives-up-behind-what-is-left",
        "        behind = self._next_intact(here, limit)\n",
        "        behind = _Here(here.base, limit, None, None)\n",
    ),
    _mutant(
        "offline-repair-forgets-what-a-crash-left",
        "    work.finish_interrupted()\n",
        "",
        "audit/commands/repair.py",
    ),
    _mutant(
        "offline-repair-leaves-the-node-in-doubt",
        "    if files is not None and is_cleared(log, total, files):\n",
        "    if False:\n",
        "audit/commands/repair.py",
    ),
    _mutant(
        "offline-repair-ends-a-doubt-that-is-right",
        "    if total.verdict is not Soundness.SOUND:\n",
        "    if False:\n",
        "audit/commands/repair.py",
    ),
    _mutant(
        "offline-repair-ends-a-doubt-behind-what-it-read",
        "    right_to = log.read_end if total.tail is None else log.end\n",
        "    right_to = log.read_end\n",
        "audit/commands/repair.py",
    ),
    _mutant(
        "offline-repair-ends-a-doubt-that-was-not-all-named",
        "    if total.tail is not None and not note.says_all():\n",
        "    if False:\n",
        "audit/commands/repair.py",
    ),
    _mutant(
        "offline-repair-under-a-node",
        '    if log.holder is not None:\n        raise UsageMistake(f"{data} is held',
        '    if log.holder is None and dry_run:\n        raise UsageMistake(f"{data} is held',
        "audit/commands/repair.py",
    ),
    _mutant(
        "offline-repair-frees-the-directory-at-once",
        "    try:\n        yield open_log(data, is_ours=True)  # a node may have run in between\n",
        '    files.close(lock)\n    lock = files.open(data / "identity.json")\n'
        "    try:\n        yield open_log(data)\n",
        "audit/commands/repair.py",
    ),
    _mutant(
        "offline-repair-writes-when-dry",
        "_repair(data, log, sources, None if dry_run else OsFiles(), as_json=as_json)",
        "_repair(data, log, sources, OsFiles(), as_json=as_json)",
        "audit/commands/repair.py",
    ),
)
