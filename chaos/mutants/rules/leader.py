"""Defects in what a leader does with a batch, `broker/leader`: numbers, duplicates, answers."""

from __future__ import annotations

from chaos.mutants.mutant import Mutant

LEADER = (
    Mutant(
        "retry-stored-again",
        "broker/leader/append.py",
        "            if batch.base_sequence < numbers.next_sequence:\n",
        "            if False:\n",
    ),
    Mutant(
        "gap-in-a-sequence-accepted",
        "broker/leader/numbering.py",
        "    if found == expected:\n",
        "    if found >= expected:\n",
    ),
    Mutant(
        "retry-answered-with-the-newest-batch",
        "broker/leader/append.py",
        "                pending.finish_one(position, self._stored_before(stored))\n",
        "                newest = (numbers.stored or (stored,))[-1]\n"
        "                pending.finish_one(position, self._stored_before(newest))\n",
    ),
    Mutant(
        "answered-before-commit",
        "broker/leader/append.py",
        "        self._waiting.setdefault(index, []).append("
        "Waiting(pending, position, self._result(stored)))\n",
        "        pending.finish_one(position, self._result(stored))\n",
    ),
    Mutant(
        "queue-offset-given-twice",
        "broker/leader/flight.py",
        "        self._ends[lane.place] = index, batch.base_queue_offset + batch.record_count\n",
        "",
    ),
    Mutant(
        "waiting-sends-survive-leadership",
        "broker/leader/leadership.py",
        "self._appender.end(",
        "(lambda _: None)(",
    ),
    Mutant(
        "batches-of-before-taken-by-who-is-elected-again",
        "broker/leader/append.py",
        "        self._check_leading()\n        if is_reserved(batch.topic):\n",
        "        if is_reserved(batch.topic):\n",
        masked="whoever waits for it is told when leadership is lost",
        tests=("tests/node/test_elected_again.py",),
    ),
    Mutant(
        "commands-of-before-taken-by-who-is-elected-again",
        "broker/leader/append.py",
        "        self._check_leading()\n        begun",
        "        begun",
        masked="whoever waits for it is told when leadership is lost",
        tests=("tests/node/test_elected_again.py",),
    ),
    Mutant(
        "denial-of-one-leadership-confirmed-by-the-next",
        "broker/services/messages.py",
        "            if self._gate.leadership != leadership:\n",
        "            if False:\n",
        masked="whoever is denied a topic there asks again",
        tests=("tests/broker/test_services.py",),
    ),
    Mutant(
        "serving-before-all-is-applied",
        "broker/leader/leadership.py",
        "    def _on_role(self, role: Role) -> None:\n",
        "    def _on_role(self, role: Role) -> None:\n"
        "        if role is Role.LEADER and self._replication is not None:\n"
        "            self._appender.begin(self._replication.applied_index)\n"
        "            self.serving = True\n",
    ),
    Mutant(
        "serving-before-the-log-is-applied",
        "broker/leader/leadership.py",
        "        is_ready = core.is_ready_leader and index == core.last_index\n",
        "        is_ready = core.is_ready_leader\n",
    ),
    Mutant(
        "arrivals-not-announced",
        "broker/announcing.py",
        "        self._held.wake(queue)\n",
        "        del queue\n",
    ),
    Mutant(
        "applied-commands-not-announced",
        "broker/announcing.py",
        "        self._appender.on_command(index, refusal or moves)\n",
        "        del index, refusal\n",
        masked="whoever has no answer takes it for one that may have happened",
        tests=("tests/broker/test_append.py",),
    ),
    Mutant(
        "voided-batches-not-announced",
        "broker/announcing.py",
        "        self._appender.on_batch_voided(index, refusal)\n",
        "",
        masked="a leader refuses what would be void",
        tests=("tests/broker/test_append.py",),
    ),
    Mutant(
        "closing-topic-takes-batches",
        "broker/leader/append.py",
        "        if self._flight.is_deleting(topic.name):\n",
        "        if False:\n",
    ),
    Mutant(
        "one-delete-of-several-opens-the-topic",
        "broker/leader/flight.py",
        "        self._deletes.pop(index, None)\n",
        "        name = self._deletes.pop(index, '')\n"
        "        self._deletes = {i: n for i, n in self._deletes.items() if n != name}\n",
        tests=("tests/broker/test_append.py",),
    ),
    Mutant(
        "in-flight-found-by-name",
        "broker/leader/append.py",
        "Lane(producer, topic.incarnation, batch.queue_id)",
        "Lane(producer, int.from_bytes(topic.name.encode(), 'big'), batch.queue_id)",
        masked="nobody is let in between an apply and the news of it",
        tests=("tests/broker/test_append.py",),
    ),
    Mutant(
        "applied-batch-looks-up-its-topic",
        "broker/leader/append.py",
        "        self._flight.retire(applied)\n",
        "        self._flight.retire(applied)\n"
        "            for waiting in self._waiting.get(applied, ()):\n"
        "                [t.next_offsets[3] for t in self._machine.topics.values()"
        " if t.incarnation > applied]\n",
    ),
    Mutant(
        "place-judged-before-what-is-known",
        "broker/leader/append.py",
        "        producers, numbers = self._machine.producers, None\n",
        "        producers, numbers = self._machine.producers, None\n"
        "        self._check_place(topic, batch.queue_id)\n",
        masked="a producer may be refused rightly after an attempt that nobody answered",
        tests=("tests/broker/test_append.py",),
    ),
    Mutant(
        "void-batch-keeps-its-queue-offset",
        "broker/leader/flight.py",
        "        self._ends.pop(place, None)\n",
        "",
        masked="a leader proposes nothing that would be void",
        tests=("tests/broker/test_flight.py",),
    ),
    Mutant(
        "batch-on-its-way-called-stored",
        "broker/leader/numbering.py",
        "        if batch.base_sequence + batch.count <= next_sequence(self.stored):\n",
        "        if batch.base_sequence + batch.count <= self.next_sequence:\n",
        masked="producers send a batch again as they cut it",
        tests=("tests/broker/test_append.py",),
    ),
    Mutant(
        "registration-on-its-way-closes-nobody",
        "broker/leader/flight.py",
        "        taken = bool(name) and name in self._registering.values()\n",
        "        taken = False\n",
    ),
    Mutant(
        "forgetting-on-its-way-closes-nobody",
        "broker/leader/flight.py",
        "        return taken or any(producer in each for each in self._forgetting.values())\n",
        "        return taken\n",
        masked="who may be forgotten has long been silent, and seldom wakes up in that moment",
        tests=("tests/broker/test_append.py",),
    ),
    Mutant(
        "full-and-silent-group-lives-no-longer",
        "broker/leader/append.py",
        "            self.submit(Command(forget_producers=ForgetProducersCommand("
        "producer_ids=unused)))\n            return bool(unused)\n",
        "            if unused:\n"
        "                self.submit(Command(forget_producers=ForgetProducersCommand("
        "producer_ids=unused)))\n            return bool(unused)\n",
        masked="a run is never full of queues and silent",
        tests=("tests/broker/test_append.py",),
    ),
    Mutant(
        "batch-taken-for-a-later-topic",
        "broker/leader/append.py",
        "        if batch.incarnation not in (0, topic.incarnation):  ",
        "        if False:  ",
        tests=("tests/broker/test_services.py",),
    ),
    Mutant(
        "level-raised-that-one-member-does-not-know",
        "broker/leader/levels.py",
        "        if min(told, default=self._known) <= current:\n",
        "        if max(told, default=self._known) <= current:\n",
        tests=("tests/node/test_levels.py",),
    ),
    Mutant(
        "level-raised-while-a-member-is-away",
        "broker/leader/levels.py",
        "told = [links[peer].level if peer in links else 0 for peer in self._others()]",
        "told = [links[peer].level for peer in self._others() if peer in links]",
        masked="a run's links are there whether they are up or not",
        tests=("tests/node/test_levels.py",),
    ),
    Mutant(
        "held-pull-waits-for-a-name",
        "broker/services/messages.py",
        "            request = replace(request, topic=topic)\n",
        "",
        masked="who races for topics holds no pulls",
        tests=("tests/broker/test_services.py",),
    ),
)
