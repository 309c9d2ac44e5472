"""A run that was never made, for tests of what is drawn from one: two faults, a kill among them."""

from __future__ import annotations

from pathlib import Path

from chaos.checkers.history import End, History, Poll, Send
from chaos.real.finished import Band, Finished, RunOptions
from chaos.real.measure import store_host
from chaos.real.scenario import Load, Plan, Scenario, Steps
from chaos.real.watch import Span
from chaos.real.workload import Acknowledgements
from dledger.history import Outcome

ADDRESSES = {"n1": "127.0.0.1:7001", "n2": "127.0.0.1:7002", "n3": "127.0.0.1:7003"}
SECOND = 1_000_000


def no_steps(plan: Plan) -> Steps:
    yield from ()


def finished_run() -> Finished:
    """Acknowledged every 10 ms; n1 is killed at 2 s, n2 acknowledges from 2.15 s on."""
    history = History()
    acknowledged = Acknowledgements()
    host = {name: store_host(address) for name, address in ADDRESSES.items()}
    for number in range(400):
        at = number * 10_000
        if 2 * SECOND < at < 2_150_000:
            continue
        operation = history.invoke(at, "p0", Send("chaos", 0, number, (f"p0-0-{number}",)))
        history.complete(at + 4_000, operation, Outcome.OK, len(acknowledged.at_us))
        # One answer of the dead leader is still under way when it is killed.
        leader = "n1" if at <= 2 * SECOND else "n2"
        acknowledged.add(at + 4_000, 4_000, host[leader])
    values = [each.action.values[0] for each in history.operations if isinstance(each.action, Send)]
    end = history.invoke(5 * SECOND, "reader", End("chaos", 0))
    history.complete(5 * SECOND, end, Outcome.OK, len(values))
    poll = history.invoke(5 * SECOND, "reader", Poll("chaos", 0, 0, seek=True, final=True))
    history.complete(5 * SECOND, poll, Outcome.OK, tuple(enumerate(values)))
    scenario = Scenario("kill-<leader>", "A test & nothing else", no_steps)
    options = RunOptions(scenario, (), 3, 5, 42, Load(), Path("nowhere"))
    finished = Finished(options, ADDRESSES, history, acknowledged)
    finished.bands = [
        Band("kill", "kill", ("n1",), 2 * SECOND, 2_010_000, 3 * SECOND, "", "n1"),
        Band("cut", "isolate", ("n3",), 3 * SECOND, 3 * SECOND, None, "<b>detail</b>"),
    ]
    finished.spans = {
        "n1": [Span(0, "leader", 1), Span(2_100_000, "silent", 1), Span(3_100_000, "follower", 2)],
        "n2": [Span(0, "follower", 1), Span(2_100_000, "leader", 2)],
        "n3": [Span(0, "follower", 1), Span(2_050_000, "pre-candidate", 1)],
    }
    finished.faults_began_us, finished.healed_us = SECOND, 3_500_000
    finished.ended_us = 4 * SECOND
    finished.errors = {"create: TOPIC_EXISTS": 2}
    return finished
