"""Defects of starts that begin behind what all others have let go of, `broker/later_start.py` and
`store/gap_start.py` (docs/adr/0053-a-start-gets-back-what-has-rotted.md)."""

from __future__ import annotations

from chaos.mutants.mutant import Mutant

_FIT = ("tests/store/test_gap_start.py",)
_START = ("tests/node/test_start_behind_rot.py",)
_RARE = "a start that meets such a log is one in some hundreds of seeds"

LATER_STARTS = (
    Mutant(
        "who-refills-takes-no-stream",
        "broker/doors/grpc/standby.py",
        '"Cluster": _Status(why, status, entrance), "RaftPeer": PeerDoor(replicate)}',
        '"Cluster": _Status(why, status, entrance)}',
        masked="the simulator has no doors",
        tests=("tests/broker/test_quiet_doors.py",),
    ),
    Mutant(
        "log-in-question-told-to-who-has-gaps",
        "broker/installing.py",
        "        if self._around.is_compared():\n            return\n        start =",
        "        start =",
        masked="who asks listens for itself as well",
        tests=("tests/broker/test_installing.py",),
    ),
    Mutant(
        "peers-heard-before-the-start",
        "dledger/transport.py",
        "        if not self._is_started:  # the door",
        "        if False:  # the door",
        masked="the simulator has no doors",
        tests=("tests/integration/test_transport.py",),
    ),
    Mutant(
        "failed-disk-taken-for-a-full-one",
        "broker/node.py",
        "            raise min(ended, key=_is_of_a_full_disk)\n",
        "            raise ended[0]\n",
        masked="the simulator's hand does one step after the other",
        tests=("tests/node/test_hand.py",),
    ),
    Mutant(
        "comparison-heard-of-without-a-checksum",
        "broker/refilling.py",
        '            case "digest_request":\n                check_outside_terms(peer, message)\n',
        '            case "digest_request":\n',
        masked="a garbled question is one that is asked again",
        tests=("tests/node/test_refilling.py",),
    ),
    Mutant(
        "filler-of-a-group-of-one-is-nobodys",
        "broker/refilling.py",
        "        if not self._holed.members and not all(gap.is_filler for gap in self._left):\n",
        "        if not self._holed.members:\n",
        masked="fillers of groups of one don't rot there",
        tests=("tests/node/test_start_behind_rot.py",),
    ),
    Mutant(
        "another-log-of-one-term-dropped-at-a-start",
        "store/gap_start.py",
        "own_term not in (None, start.term)",
        "own_term is not None",
        masked=_RARE,
        tests=_FIT,
    ),
    Mutant(
        "log-of-a-later-life-dropped-at-a-start",
        "store/gap_start.py",
        "return Fit.BEHIND if start.term >= holes.terms[-1][1] else Fit.TOO_OLD",
        "return Fit.BEHIND",
        masked=_RARE,
        tests=_FIT,
    ),
    Mutant(
        "entry-behind-the-start-dropped",
        "store/gap_start.py",
        "    if start.index >= holes.last_index:\n",
        "    if start.index + 1 >= holes.last_index:\n",
        masked=_RARE,
        tests=_FIT,
    ),
    Mutant(
        "start-goes-on-from-any-log",
        "store/gap_start.py",
        "verify_frame(frame, 0, start.digest)",
        "verify_frame(frame, 0, None)",
        masked=_RARE,
        tests=_FIT,
    ),
    Mutant(
        "start-begins-anew-while-logs-are-compared",
        "broker/refilling.py",
        "if self._later.is_disputed() else await self._begun()",
        "if False else await self._begun()",
        masked="logs that differ are not simulated with starts that move",
        tests=_START,
    ),
    Mutant(
        "suspected-log-dropped-at-a-start",
        "broker/later_start.py",
        "        if SuspicionNote(self._place.files, self._place.path).read() is not None:\n",
        "        if False:\n",
        masked="logs that differ are not simulated with starts that move",
        tests=_START,
    ),
    Mutant(
        "start-believes-a-group-without-it",
        "broker/later_start.py",
        "        if configuration.disk_of(self._place.own) != own_disk:\n",
        "        if False:\n",
        masked=_RARE,
        tests=_START,
    ),
    Mutant(
        "start-believes-an-older-life-of-the-group",
        "broker/later_start.py",
        "        if standing not in (Standing.SAME, Standing.NEWER):\n",
        "        if False:\n",
        masked=_RARE,
        tests=_START,
    ),
    Mutant(
        "start-begins-ahead-of-its-term",
        "broker/later_start.py",
        "        if start.term > self._holed.hard_state.term:  # no log is ahead of its term\n",
        "        if False:\n",
        masked=_RARE,
        tests=_START,
    ),
    Mutant(
        "start-of-a-peer-not-judged",
        "broker/later_start.py",
        "        if (wrong := wrong_base(base, self._furthest())) is not None:\n",
        "        wrong = wrong_base(base, self._furthest())\n        if False:\n",
        masked=_RARE,
        tests=_START,
    ),
    Mutant(
        "start-goes-on-in-an-older-term",
        "store/gap_start.py",
        "return Fit.CONTINUED if start.term <= next_term else Fit.OTHER",
        "return Fit.CONTINUED",
        masked="a lie that only one who knows the log can tell",
        tests=_FIT,
    ),
    Mutant(
        "members-of-a-base-not-judged",
        "dledger/core/admission.py",
        "    return wrong_configuration(entry)\n",
        "    return None\n",
        masked="a lie about members is none of the simulator's",
        tests=_START,
    ),
)
