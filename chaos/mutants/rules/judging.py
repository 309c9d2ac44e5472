"""Defects in what is said of a directory and of a log: no run of a group can show them."""

from __future__ import annotations

from chaos.mutants.mutant import Mutant

_READS_ONLY = "nothing judges while a group runs"
_JUDGED = ("tests/starting/test_judgement.py",)
_FORGED = ("tests/audit/test_forged_logs.py",)

JUDGING = (
    Mutant(
        "replayed-entries-not-read",
        "store/starting/judging.py",
        "        if opened.log.recovery.clean_shutdown:  # else the walk has read every byte\n",
        "        if not opened:\n",
        masked=_READS_ONLY,
        tests=_JUDGED,
    ),
    Mutant(
        "links-opened",
        "store/files.py",
        "os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK",
        "os.O_CLOEXEC | os.O_NONBLOCK",
        masked="no disk of the simulator has links",
        tests=("tests/store/test_regular_files.py",),
    ),
    Mutant(
        "rehearsal-of-names-not-of-files",
        "store/rehearsal.py",
        "            file = self._inodes.setdefault(key, _File(path, state.st_size))\n",
        "            file = _File(path, state.st_size)\n",
        masked=_READS_ONLY,
        tests=("tests/store/test_rehearsal.py",),
    ),
    Mutant(
        "stray-displaces-a-refusal",
        "store/starting/judgement.py",
        "        return tuple(each for effect in Effect for each",
        "        return tuple(each for effect in reversed(Effect) for each",
        masked=_READS_ONLY,
        tests=_JUDGED,
    ),
    Mutant(
        "queue-offsets-taken-as-they-come",
        "audit/proof/invariants.py",
        "        found += self._number(lane, queue_offset, header)\n",
        "",
        masked=_READS_ONLY,
        tests=_FORGED,
    ),
    Mutant(
        "segments-not-held-against-each-other",
        "audit/proof/invariants.py",
        "            yield from whole.follow(each, each.first, is_next=is_next)\n",
        "            pass\n",
        masked=_READS_ONLY,
        tests=_FORGED,
    ),
    Mutant(
        "rules-forget-what-damage-hides",
        "audit/proof/invariants.py",
        "        self._is_next = False\n        self._damages += 1\n",
        "        pass\n",
        masked=_READS_ONLY,
        tests=_FORGED,
    ),
)
