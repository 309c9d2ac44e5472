"""The delivery audit believes nothing that is told twice, and no two claims to one place."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from audit.delivery.check import audit_delivery
from audit.delivery.history import QueueStory, Sent
from audit.delivery.judge import Kind, LoggedQueue, judge_queue
from audit.engines.engine import Engine, LocalEngine
from audit.errors import UsageMistake
from chaos.checkers.history import Delete, Send
from dledger.history import Outcome
from tests.audit.test_delivery import log_of, refuse, told, written
from tests.chaos.histories import Story


@pytest.mark.parametrize("copy", [lambda a, b: None, os.link, os.symlink, shutil.copyfile])
def test_a_history_is_given_once(tmp_path: Path, copy: Callable[[str, str], object]) -> None:
    """By its own name, by another one, or as a copy: sent once is not sent twice."""
    story = Story()
    story.send("a", at=0)
    file = written(tmp_path, story)
    copy(file, file + ".2")
    again = file + ".2" if os.path.exists(file + ".2") else file
    with pytest.raises(UsageMistake, match="give each history once"):
        audit_delivery([log_of(tmp_path, "a", "a")], [file, again], LocalEngine())


def test_clients_that_did_nothing_may_be_several(tmp_path: Path) -> None:
    """Empty files are alike, and tell nothing twice."""
    story = Story()
    story.send("a", at=0)
    for name in "bc":
        (tmp_path / name).touch()
    files = [written(tmp_path, story), str(tmp_path / "b"), str(tmp_path / "c")]
    assert audit_delivery([log_of(tmp_path, "a")], files, LocalEngine()).verdict == "delivered"


@pytest.mark.parametrize("outcome", [Outcome.OK, Outcome.UNKNOWN])
def test_a_value_that_two_sends_have_is_refused(
    tmp_path: Path, engine: Engine, outcome: Outcome
) -> None:
    """Both acknowledged at one place, one of them stored: nobody could say which got lost."""
    story = Story()
    story.send("a", at=0)
    story.do("q", Send("t", 0, 0, ("a",)), 0 if outcome is Outcome.OK else None, outcome)
    with pytest.raises(UsageMistake, match="'a' was sent by p of history 1 and again by q"):
        audit_delivery([log_of(tmp_path, "a")], [written(tmp_path, story)], engine)


def test_a_value_that_one_send_has_twice_is_refused(tmp_path: Path) -> None:
    """Its batch has two messages that look alike."""
    story = Story()
    story.send("a", "a", at=0)
    with pytest.raises(UsageMistake, match="again by p"):
        audit_delivery([log_of(tmp_path, "a", "a")], [written(tmp_path, story)], LocalEngine())


def test_values_are_used_again_where_that_is_plain(tmp_path: Path) -> None:
    """After they were refused for good, in another queue, and in a topic that isn't judged."""
    story = Story()
    refuse(story, "a")
    story.send("a", at=0)
    story.do("p", Send("t", 1, 0, ("a",)), 0)
    for _ in range(2):
        story.do("p", Send("other", 0, 0, ("a",)), 0)
    story.do("k", Delete("other"))
    replica = log_of(tmp_path, "a", "a", queues=2)
    report = audit_delivery([replica], [written(tmp_path, story)], LocalEngine())
    assert (told(report), report.verdict) == ([], "delivered")


@pytest.mark.parametrize(("first", "is_known"), [(0, False), (9, True), (0, True)])
def test_one_offset_is_acknowledged_once(first: int, *, is_known: bool) -> None:
    """Two messages can't both be there: one is lost, though the log no longer, or not yet, says
    which."""
    log = LoggedQueue(first=first, tail_is_known=is_known)
    sends = [Sent((0, "p"), (value,), Outcome.OK, 4) for value in "ab"]
    found = list(judge_queue(("t", 0), log, QueueStory(sends)))
    lost = [each.value for each in found if each.kind is Kind.LOST]
    assert lost == (["a", "b"] if (first, is_known) == (0, True) else ["b"])
