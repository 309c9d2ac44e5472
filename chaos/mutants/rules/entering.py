"""Defects in what is entered, and entered again: clients open anew, and nothing else does."""

from __future__ import annotations

from typing import Final

from chaos.mutants.mutant import Mutant

_AGAIN: Final = "tests/client/test_entered_again.py::"


def _mutant(name: str, file: str, old: str, new: str, test: str) -> Mutant:
    masked = "the simulator's clients are entered once"
    return Mutant(f"enters-{name}", file, old, new, masked=masked, tests=(test,))


_CHECKED: Final = "        self._check_open()\n        return self\n"
_CHECKED_INNER: Final = "        self._consumer._check_open()\n        return self\n"
_UNCHECKED: Final = "        return self\n"
_THREADS: Final = "test_closed_is_not_entered"
_COROUTINES: Final = "test_closed_is_not_entered_by_coroutines"
_CHECKED_PRODUCER: Final = (
    '            raise ProducerClosed("the producer was closed")\n        return self\n'
)
_UNCHECKED_PRODUCER: Final = "            pass\n        return self\n"
_CLOSED: Final = (
    ("producer", "producer", _CHECKED_PRODUCER, _UNCHECKED_PRODUCER, _COROUTINES),
    ("blocking-producer", "blocking_producer", _CHECKED_PRODUCER, _UNCHECKED_PRODUCER, _THREADS),
    ("loop", "consumer", _CHECKED, _UNCHECKED, _COROUTINES),
    ("service", "members/push", _CHECKED, _UNCHECKED, _COROUTINES),
    ("worker", "simple_consumer", _CHECKED, _UNCHECKED, _COROUTINES),
    ("blocking-loop", "blocking_consumer", _CHECKED_INNER, _UNCHECKED, _THREADS),
    ("blocking-service", "blocking_push", _CHECKED_INNER, _UNCHECKED, _THREADS),
    ("blocking-worker", "blocking_simple", _CHECKED_INNER, _UNCHECKED, _THREADS),
    (
        "delivery",
        "delivery",
        "if self._is_left and self.is_settled:",
        "if self._is_left and not self.is_settled:",
        "test_delivery_that_was_left_is_not_worked_on_again",
    ),
)

ENTERING = (
    _mutant(
        "with-producers-of-before",
        "dledger/client/blocking.py",
        "        self._producers = []  # those of before ended with their thread\n",
        "",
        f"{_AGAIN}test_client_that_opens_again_has_nothing_of_before",
    ),
    *(
        _mutant(
            f"closed-{name}",
            f"dledger/client/{file}.py",
            old,
            new,
            f"{_AGAIN}{test}",
        )
        for name, file, old, new, test in _CLOSED
    ),
    _mutant(
        "closed-group",
        "dledger/testing/broker_group.py",
        "if not self._is_open:",
        "if self._owner < 0:",
        "tests/testing/test_groups.py::test_closed_group_says_so",
    ),
    _mutant(
        "closed-fake-group",
        "dledger/testing/fake.py",
        "if self._loop.is_closed():",
        "if self._topics < 0:",
        "tests/testing/test_groups.py::test_closed_group_says_so",
    ),
)
