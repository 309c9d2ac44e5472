"""Defects of programs that meet a level of formats and commands which they don't know
(docs/adr/0023-levels.md)."""

from __future__ import annotations

from chaos.mutants.mutant import Mutant

_READERS = ("tests/audit/test_later_levels.py",)
_NO_READERS = "no run is read without a node"

LEVELS = (
    Mutant(
        "log-of-a-later-level-read",
        "dledger/reading/lifetimes.py",
        "        if self._level is not None and self._level > KNOWN_LEVEL:\n",
        "        if False:\n",
        masked=_NO_READERS,
        tests=_READERS,
    ),
    Mutant(
        "raise-of-the-level-passed-over",
        "dledger/reading/lifetimes.py",
        "                self._level = level_behind(self._level, command.raise_level.level)\n",
        "                pass\n",
        masked=_NO_READERS,
        tests=_READERS,
    ),
    Mutant(
        "level-where-a-log-begins-unasked",
        "dledger/reading/lifetimes.py",
        "            self._level = level_at_start(log)\n",
        "            self._level = 1\n",
        masked=_NO_READERS,
        tests=_READERS,
    ),
    Mutant(
        "level-of-another-logs-base",
        "dledger/reading/levels.py",
        "    if place != wanted:\n",
        "    if False:\n",
        masked=_NO_READERS,
        tests=_READERS,
    ),
    Mutant(
        "void-raise-of-the-level-believed",
        "dledger/reading/levels.py",
        "    return wanted if wanted == level + 1 else level\n",
        "    return wanted\n",
        masked=_NO_READERS,
        tests=_READERS,
    ),
    Mutant(
        "state-of-a-later-level-pulled-for-ever",
        "broker/installing.py",
        "self._of_later_level[0] == offer.base:\n            return False",
        "self._of_later_level[0] == offer.base:\n            pass",
        masked="an older program is put back in a run where its log holds the raise",
        tests=("tests/broker/test_installing.py",),
    ),
    Mutant(
        "state-of-a-later-level-told-to-nobody",
        "broker/picture.py",
        "        apply_stopped=facts.driver.apply_stopped or facts.base_refused,\n",
        "        apply_stopped=facts.driver.apply_stopped,\n",
        masked="what a node says of itself keeps nobody from anything",
        tests=("tests/node/test_older_programs.py",),
    ),
    Mutant(
        "program-that-says-no-level-is-taken-in",
        "broker/forming/planning.py",
        "    known = itself.known_level or DELIVERY_LEVEL\n",
        "    known = itself.known_level or level\n",
        masked="all members of a run know the level",
        tests=("tests/forming/test_replacing.py",),
    ),
    Mutant(
        "program-below-the-level-in-use-may-wait",
        "broker/doctor/judging.py",
        "        if 0 < member.known_level < used:\n",
        "        if False:\n",
        masked="no run asks the doctor of an older program",
        tests=("tests/broker/test_doctor.py",),
    ),
    Mutant(
        "backup-of-a-later-level-restored",
        "store/starting/levels.py",
        "        level = _level_behind(log.read(first, last), level)\n",
        "        log.read(first, last)\n",
        masked="no run of the simulator is backed up",
        tests=("tests/starting/test_restoring.py",),
    ),
    Mutant(
        "backup-that-begins-at-a-later-level-restored",
        "store/starting/levels.py",
        "            level = level_in(chunks)\n    except (InvalidFrame, Corr",
        "            level = FIRST_LEVEL\n    except (InvalidFrame, Corr",
        masked="no run of the simulator is backed up",
        tests=("tests/starting/test_restoring.py",),
    ),
    Mutant(
        "base-of-a-later-level-judged-to-start",
        "store/starting/judging.py",
        "    check_base_known(SnapshotFiles(site.path, site.files), opened.log)\n",
        "",
        masked="judgements are of this release's directories",
        tests=("tests/node/test_older_programs.py",),
    ),
)
