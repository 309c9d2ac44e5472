"""docs/client.md and docs/consumers.md: examples run as they stand, everything public is named."""

from __future__ import annotations

import re
from pathlib import Path

import dledger.client
import dledger.client.blocking
from dledger.testing import BlockingFakeGroup

DOCS = Path(__file__).parent.parent.parent / "docs"
GUIDE = (DOCS / "client.md").read_text()
CONSUMERS = (DOCS / "consumers.md").read_text()


def test_examples_run_in_their_order() -> None:
    """Each as a program of its own, against fake nodes; it sees what the ones before have stored.
    Again, too: who tries a guide tries it twice."""
    examples = re.findall(r"```python\n(.*?)```", GUIDE, flags=re.DOTALL)
    assert len(examples) >= 8
    with BlockingFakeGroup() as group:
        for number, example in [*enumerate(examples, 1)] * 2:
            program = compile(example, f"docs/client.md, example {number}", "exec")
            exec(program, {"addresses": group.addresses})
        imported = [body for body in group.bodies("orders") if body in (b"one", b"two", b"three")]
        assert imported == [b"one", b"two", b"three"], "the named producer stores its rows once"


def test_examples_of_consumers_run_in_their_order() -> None:
    """As above."""
    examples = re.findall(r"```python\n(.*?)```", CONSUMERS, flags=re.DOTALL)
    assert len(examples) >= 4
    with BlockingFakeGroup() as group:
        for number, example in enumerate(examples, 1):
            program = compile(example, f"docs/consumers.md, example {number}", "exec")
            exec(program, {"addresses": group.addresses})
        assert group.committed("billing", "orders") == 10
        assert group.committed("storing", "orders") == 10


def test_every_public_name_is_in_the_guide() -> None:
    """What isn't documented is not public."""
    words = set(re.findall(r"\w+", GUIDE + CONSUMERS))
    public = {*dledger.client.__all__, *dledger.client.blocking.__all__}
    kinds = ("Client", "Producer", "PullConsumer", "PushConsumer")
    for kind in (getattr(dledger.client, name) for name in kinds):
        public |= {name for name in vars(kind) if not name.startswith("_")}
    assert public - words == set()
