"""Defects in what ties the nodes of a test to its process, `dledger/testing`: nodes and folders
that are left behind, or go too early."""

from __future__ import annotations

from typing import Final

from chaos.mutants.mutant import Mutant

_NO_PROCESSES: Final = "the simulator has no processes"
_WARM: Final = "dledger/testing/warm.py"
_GROUP: Final = "dledger/testing/broker_group.py"
_FORKS: Final = "tests/testing/test_forks.py::"
_OF_WARM: Final = "tests/testing/test_warm.py::"


def _mutant(name: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(f"leash-{name}", file, old, new, masked=_NO_PROCESSES, tests=tests)


LEASHES = (
    _mutant(
        "held-by-forked-children",
        _WARM,
        "        program.let_go()\n",
        "        pass\n",
        f"{_FORKS}test_a_forked_child_is_no_reason_to_go_on",
    ),
    _mutant(
        "cut-by-forked-children",
        _WARM,
        "if os.getpid() != self._owner:",
        "if self._owner < 0:",
        f"{_FORKS}test_a_forked_child_that_ends_ends_nothing_else",
    ),
    _mutant(
        "shared-with-forked-children",
        _WARM,
        "    global _shared\n    _shared = None\n",
        "",
        f"{_FORKS}test_a_forked_child_has_a_warm_process_of_its_own",
    ),
    _mutant(
        "read-under-a-lock",
        _WARM,
        "bufsize=0,",
        "bufsize=-1,",
        f"{_FORKS}test_a_child_may_be_forked_while_a_warm_process_starts",
    ),
    _mutant(
        "forked-children-end-groups",
        _GROUP,
        "if not self._is_open or os.getpid() != self._owner:",
        "if not self._is_open:",
        f"{_FORKS}test_a_forked_child_that_ends_ends_nothing_else",
    ),
    _mutant(
        "leaves-folders-of-the-killed",
        _WARM,
        "for folder in self._folders:",
        "for folder in self._folders[:1]:",
        f"{_OF_WARM}test_who_does_not_end_is_killed",
    ),
    _mutant(
        "of-the-dead-is-shared",
        _WARM,
        "if _shared is None or not _shared.is_running:",
        "if _shared is None:",
        f"{_OF_WARM}test_a_group_whose_warm_process_died_says_so_and_goes",
    ),
    _mutant(
        "of-the-dead-fails-at-the-end",
        _GROUP,
        "if failures and self._warm.is_running:",
        "if failures:",
        f"{_OF_WARM}test_a_group_whose_warm_process_died_says_so_and_goes",
    ),
    _mutant(
        "that-fails-keeps-the-folder",
        _GROUP,
        "        finally:\n            remove(self._directory)\n",
        "        finally:\n            if not failures:\n                remove(self._directory)\n",
        f"{_OF_WARM}test_a_group_that_cannot_be_ended_leaves_no_folder",
    ),
    _mutant(
        "that-fails-leaves-the-other-nodes",
        _GROUP,
        "                    failures.append(error)\n",
        "                    failures.append(error)\n                    break\n",
        f"{_OF_WARM}test_a_node_that_cannot_be_killed_keeps_no_other",
    ),
    _mutant(
        "that-never-was-keeps-its-folder",
        _WARM,
        "            remove(self._folder)\n",
        "            pass\n",
        f"{_OF_WARM}test_what_cannot_be_started_leaves_no_folder",
    ),
    _mutant(
        "hides-why-a-start-failed",
        _GROUP,
        '"\\n".join([str(error), *map(_end, logs)])',
        "str(error)",
        "tests/testing/test_groups.py::test_failed_start_shows_the_logs",
    ),
    _mutant(
        "names-what-is-gone",
        _GROUP,
        'said.replace(f"{self._directory}/", "")',
        "said",
        "tests/testing/test_groups.py::test_failed_start_shows_the_logs",
    ),
    _mutant(
        "is-no-longer-than-a-path",
        _WARM,
        'yield f"/proc/self/fd/{folder}/{path.name}"',
        "yield str(path)",
        f"{_OF_WARM}test_folders_for_temporary_files_may_be_far_down",
    ),
)
