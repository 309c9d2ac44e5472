"""docs/client.md: its examples run as they stand, and it names everything that is public."""

from __future__ import annotations

import re
from pathlib import Path

import dledger.client
import dledger.client.blocking
from dledger.testing import BlockingFakeGroup

GUIDE = (Path(__file__).parent.parent.parent / "docs" / "client.md").read_text()


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


def test_every_public_name_is_in_the_guide() -> None:
    """What isn't documented is not public."""
    words = set(re.findall(r"\w+", GUIDE))
    public = {*dledger.client.__all__, *dledger.client.blocking.__all__}
    for kind in (dledger.client.Client, dledger.client.Producer, dledger.client.PullConsumer):
        public |= {name for name in vars(kind) if not name.startswith("_")}
    assert public - words == set()
