"""Defects in getting back what a start has found rotten
(docs/adr/0053-a-start-gets-back-what-has-rotted.md)."""

from __future__ import annotations

from chaos.mutants.mutant import Mutant

_STORE = ("tests/store/test_gaps.py",)
_FAIR = "no member of a run makes up a whole entry that fits where it is asked for"

_NODES = ("tests/integration/test_refilling.py",)
_STOPPED = (
    "tests/chaos/test_schedules.py::test_who_stops_before_its_log_is_whole_leaves_nothing_at_work",
)
_PROCESS = "processes and their signals are not under the simulator"

GAPS = (
    Mutant(
        "stop-forgotten-from-one-life-to-the-next",
        "broker/node.py",
        "        if is_asked:\n            made.ask_to_stop()\n",
        "",
        masked=_PROCESS,
        tests=_NODES,
    ),
    Mutant(
        "start-refuses-what-it-could-ask-for",
        "store/recovery.py",
        "        if holes is None:\n",
        "        if holes:\n",
        under="log-rot",
    ),
    Mutant(
        "where-a-size-has-led-is-blamed",
        "store/recovery.py",
        "        if stop is not None and end < thorough_from:\n",
        "        if stop is None and end < 0:\n",
        masked="a clean stop, a segment that nobody has sealed, and a size in it that rots",
        tests=("tests/starting/test_judgement.py",),
    ),
    Mutant(
        "second-gap-not-looked-for",
        "store/gap_search.py",
        "            if end >= self._watermark > 0:\n                break\n",
        "            break\n",
        under="log-rot",
    ),
    Mutant(
        "asks-as-if-its-log-ended-at-the-gap",
        "broker/refilling.py",
        "            Index(self._found.holes.last_index),\n",
        "            Index(self._found.holes.gaps[0].first_index - 1),\n",
        under="log-rot",
    ),
    Mutant(
        "directory-free-while-a-thread-writes-there",
        "broker/refilling.py",
        "                await self._ports.hand.run(_nothing)\n",
        "                pass\n",
        masked="a drawn schedule seldom stops a start that asks: one of its own does",
        tests=("tests/node/test_refilling.py", *_STOPPED),
    ),
    Mutant(
        "start-that-stumbles-leaves-queues-open",
        "broker/recovery.py",
        "        queues.close()  # the process may",
        "        pass  # the process may",
        masked="descriptors of a simulated process are without number",
        tests=("tests/starting/test_any_error.py",),
    ),
    Mutant(
        "part-of-a-lost-sector-written",
        "store/gap_files.py",
        "        self._read(gap.start - at % SECTOR_BYTES, at % SECTOR_BYTES)\n",
        "",
        masked="a lost sector must have entries in it that are sealed, and one that isn't",
        tests=_STORE,
    ),
    Mutant(
        "gap-filled-and-not-written",
        "store/gap_files.py",
        "            self._journal.write_back(extent, content)\n",
        "            del content\n",
        under="log-rot",
    ),
    Mutant(
        "filler-within-a-gap-left",
        "store/gap_files.py",
        "        for place in filled.fillers():\n",
        "        for place in filled.fillers()[:0]:\n",
        masked="few flipped bits lie in a filler's eight bytes",
        tests=_STORE,
    ),
    Mutant(
        "gap-filled-with-what-leads-elsewhere",
        "store/gap.py",
        "        if not self._arrives():\n",
        "        if self.next_index == 0:\n",
        masked=_FAIR,
        tests=_STORE,
    ),
    Mutant(
        "gap-filled-with-another-chain",
        "store/gap.py",
        "        if digest != header.digest:\n",
        "        if digest == 0:\n",
        masked=_FAIR,
        tests=_STORE,
    ),
    Mutant(
        "gap-filled-beyond-its-term",
        "store/gap.py",
        "        if not self._term <= header.term <= self.gap.behind.term:\n",
        "        if not self._term <= header.term:\n",
        masked=_FAIR,
        tests=_STORE,
    ),
    Mutant(
        "answer-without-what-was-asked-taken",
        "store/gap.py",
        "        if not headers or headers[0].index != self.next_index:\n",
        "        if not headers:\n",
        masked=_FAIR,
        tests=_STORE,
    ),
    Mutant(
        "entry-that-nothing-goes-on-from-ends-a-gap",
        "store/gap_search.py",
        "            if is_followed or behind >= self._watermark:\n",
        "            if stretch:\n",
        masked="no disk of a run loses a write that it has synced",
        tests=_STORE,
    ),
    Mutant(
        "clean-start-refuses-what-it-stumbles-over",
        "store/starting/opening.py",
        "    return open_member(site)\n\n\n@dataclass",
        "    raise error\n\n\n@dataclass",
        masked="few segments of a run are closed, clean and not sealed",
        tests=("tests/starting/test_judgement.py",),
    ),
)
