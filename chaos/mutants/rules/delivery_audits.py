"""Holes in what an audit of deliveries calls delivered, or lost, and in a run's second look."""

from __future__ import annotations

from chaos.mutants.mutant import Mutant

_READS_ONLY = "nothing audits while a group is simulated"
_GROWING = ("tests/audit/test_delivery_growing.py",)
_CLAIMS = ("tests/audit/test_delivery_claims.py",)
_TAIL = ("tests/audit/test_delivery_tail.py",)
_BOOKS = ("tests/chaos_real/test_books.py",)
_CHECKS_ONLY = "it is the checker that is broken"
_POLLS = ("tests/audit/test_delivery_polls.py",)

DELIVERY_AUDITS = (
    Mutant(
        "told-after-the-end-was-before-it",
        "audit/delivery/history.py",
        "    if is_later and event.outcome is Outcome.OK:\n",
        "    if False:\n",
        masked=_READS_ONLY,
        tests=_GROWING,
    ),
    Mutant(
        "refused-after-the-end-may-be-stored",
        "audit/delivery/history.py",
        "    if is_later and event.outcome is Outcome.OK:\n",
        "    if is_later and event.outcome is not None:\n",
        masked=_READS_ONLY,
        tests=_GROWING,
    ),
    Mutant(
        "a-line-on-its-way-is-cut-short",
        "audit/delivery/history.py",
        '            if self._at > self._end and not line.endswith(b"\\n"):\n',
        "            if False:\n",
        masked=_READS_ONLY,
        tests=_GROWING,
    ),
    Mutant(
        "histories-as-they-are-once-nodes-have-answered",
        "audit/commands/delivery.py",
        "report = audit_delivery(replicas, paths, runner, shown, ends=ends)",
        "report = audit_delivery(replicas, paths, runner, shown)",
        masked=_READS_ONLY,
        tests=_GROWING,
    ),
    Mutant(
        "owed-only-behind-what-came-before",
        "audit/delivery/judge.py",
        "    wanted = [] if poll.asked is None else [",
        "    wanted = [] if True else [",
        masked=_READS_ONLY,
        tests=_POLLS,
    ),
    Mutant(
        "given-from-before-what-was-asked",
        "audit/delivery/judge.py",
        "    if before is None and poll.asked is not None and first < poll.asked:\n",
        "    if False and before is None and poll.asked is not None and first < poll.asked:\n",
        masked=_READS_ONLY,
        tests=_POLLS,
    ),
    Mutant(
        "seek-in-vain-is-none",
        "audit/delivery/judge.py",
        "            places[poll.process] = place\n",
        "            places[poll.process] = place if poll.messages else places[poll.process]\n",
        masked=_READS_ONLY,
        tests=_POLLS,
    ),
    Mutant(
        "filtered-polls-owe-everything",
        "audit/delivery/judge.py",
        "            elif not poll.is_filtered:\n",
        "            else:\n",
        masked=_READS_ONLY,
        tests=_POLLS,
    ),
    Mutant(
        "filtered-places-owe-everything",
        "audit/delivery/judge.py",
        "    if before is not None and not before.is_filtered:\n",
        "    if before is not None:\n",
        masked=_READS_ONLY,
        tests=_POLLS,
    ),
    Mutant(
        "checkers-forget-a-seek-in-vain",
        "chaos/checkers/anomalies.py",
        "        if isinstance(poll.action, Poll) and poll.action.seek:\n",
        "        if isinstance(poll.action, Poll) and poll.action.seek and polled_by(poll):\n",
        masked=_CHECKS_ONLY,
        tests=("tests/chaos/test_anomalies.py",),
    ),
    Mutant(
        "history-given-twice",
        "audit/delivery/history.py",
        "                if digest in seen:\n",
        "                if False:\n",
        masked=_READS_ONLY,
        tests=_CLAIMS,
    ),
    Mutant(
        "values-sent-twice-believed",
        "audit/delivery/check.py",
        "        if key[0] not in story.deleted and (mistake := ",
        "        if False and (mistake := ",
        masked=_READS_ONLY,
        tests=_CLAIMS,
    ),
    Mutant(
        "one-place-for-two",
        "audit/delivery/judge.py",
        "    yield from _check_claims(case)\n",
        "",
        masked=_READS_ONLY,
        tests=_CLAIMS,
    ),
    Mutant(
        "values-sent-twice-believed-on-spark",
        "audit/delivery/distributed.py",
        "        if mistake := sent_twice(queue, story):\n",
        '        if mistake := "":\n',
        masked=_READS_ONLY,
        tests=("tests/audit/test_delivery_job.py",),
    ),
    Mutant(
        "majority-knows-what-is-committed",
        "audit/delivery/tail.py",
        "not leader.seat.serves or leader",
        "leader",
        masked=_READS_ONLY,
        tests=_TAIL,
    ),
    Mutant(
        "deposed-leader-knows-the-end",
        "audit/delivery/tail.py",
        " or leader.seat.term < newest:\n",
        ":\n",
        masked=_READS_ONLY,
        tests=_TAIL,
    ),
    Mutant(
        "leader-alone-knows-the-end",
        "audit/delivery/tail.py",
        "        if all(2 * len(",
        "        if True or all(2 * len(",
        masked=_READS_ONLY,
        tests=_TAIL,
    ),
    Mutant(
        "observers-know-the-end",
        "audit/delivery/tail.py",
        "2 * len(voters & terms.keys())",
        "2 * len(terms)",
        masked=_READS_ONLY,
        tests=_TAIL,
    ),
    Mutant(
        "log-behind-the-leaders-is-whole",
        "audit/delivery/tail.py",
        "    if end < leader.position.committed:\n",
        "    if False:\n",
        masked=_READS_ONLY,
        tests=_TAIL,
    ),
    Mutant(
        "joint-voters-are-those-to-come",
        "audit/reading/live.py",
        "        frozenset(each.node_id for each in members if each.votes_until_left),\n",
        "",
        masked=_READS_ONLY,
        tests=_TAIL,
    ),
    Mutant(
        "run-without-books-holds",
        "chaos/real/cli.py",
        "    if found is None and had_any:\n",
        "    if False:\n",
        masked=_CHECKS_ONLY,
        tests=_BOOKS,
    ),
    Mutant(
        "cut-books-are-whole",
        "chaos/real/crew.py",
        "    if (found := len(_lines(book))) != lines:\n",
        "    if (found := len(_lines(book))) < 0:\n",
        masked=_CHECKS_ONLY,
        tests=_BOOKS,
    ),
)
