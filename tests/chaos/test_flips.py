"""`dledger chaos flips`: bits are drawn, flipped and judged; what is wrong would be seen."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
import structlog
from typer.testing import CliRunner

from chaos.cli import app
from chaos.flips import campaign
from chaos.flips.campaign import FlipOptions, Flipped, Outcome
from chaos.flips.content import Content, differences
from chaos.flips.hearing import hearing
from chaos.flips.members import members
from chaos.flips.places import AHEAD, LOG, QUEUES, RETIRED, Fate, Place, draw, spans
from dledger.client import Client
from dledger.records.layout import UNIT

SEGMENT = 4_096
START = f"{SEGMENT:020}"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A member's, as far as kinds go: a log that begins with its second segment, a queue of three
    units, of which the first is of a message before that."""
    data = tmp_path / "n1"
    units = [UNIT.struct().pack(at, 1, 0) for at in (100, SEGMENT, SEGMENT + 50)]
    for name, content in {
        f"commitlog/{START}": bytes(SEGMENT),
        f"consumequeue/t@1/0/{0:020}": b"".join(units) + bytes(40),
        f"snapshot/{7:020}": b"s" * 10,
        "snapshot/next.tmp": b"s",
        "raft/hard_state": b"h" * 24,
        "raft/hard_state.spare": b"h" * 24,
        "LOCK": b"1",
    }.items():
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_bytes(content)
    return data


def test_kinds_tell_apart_what_has_a_meaning(directory: Path) -> None:
    """What is ahead of the log's end, behind a queue's, and of messages that are gone."""
    found = {
        kind: [span for _, span in places]
        for kind, places in spans(directory, SEGMENT + 1_000).items()
    }
    assert found == {
        LOG: [range(1_000)],
        f"{LOG}{AHEAD}": [range(1_000, SEGMENT)],
        f"{QUEUES}{RETIRED}": [range(20)],
        QUEUES: [range(20, 60)],
        f"{QUEUES}{AHEAD}": [range(60, 100)],
        "snapshot": [range(10)],
        "hard_state": [range(24)],
        "spare": [range(24)],
        "LOCK": [range(1)],
    }


def test_a_seed_draws_the_same_bits_and_all_kinds(directory: Path) -> None:
    """However the files are listed."""
    drawn = [draw(directory, SEGMENT + 1_000, chance) for chance in [Random(4)] for _ in range(99)]
    again = [draw(directory, SEGMENT + 1_000, chance) for chance in [Random(4)] for _ in range(99)]
    assert drawn == again
    kinds = {place.kind for place in drawn if place is not None}
    assert kinds == spans(directory, SEGMENT + 1_000).keys()
    assert draw(directory, SEGMENT + 1_000, Random(4), ["seal"]) is None
    only = draw(directory, SEGMENT + 1_000, Random(4), ["LOCK"])
    assert only is not None
    assert only.file == directory / "LOCK"


def test_the_fate_of_a_flip_is_what_is_there_now(directory: Path) -> None:
    """Still flipped, back, in another file of the name, gone."""
    file = directory / "raft" / "hard_state"
    place = Place("hard_state", file, 3, 5)
    flip = place.flip()
    assert file.read_bytes()[3] == ord("h") ^ 32
    assert flip.fate() is Fate.STILL
    flip.undo()
    assert flip.fate() is Fate.BACK
    flip.undo()
    assert file.read_bytes() == b"h" * 24
    place.flip()
    other = file.with_name("other")
    other.write_bytes(file.read_bytes())
    other.replace(file)
    assert flip.fate() is Fate.ANEW
    file.write_bytes(b"h")
    assert flip.fate() is Fate.GONE
    file.unlink()
    assert flip.fate() is Fate.GONE
    with pytest.raises(OSError, match="hard_state"):
        place.flip()


def test_members_that_differ_are_told(directory: Path, tmp_path: Path) -> None:
    """A byte of the log or of a unit; not what is ahead, nor what is retired."""
    other = tmp_path / "n2"
    shutil.copytree(directory, other)
    both = {"n1": directory, "n2": other}
    queue = other / f"consumequeue/t@1/0/{0:020}"
    broken = [f"{name}: snapshot 7" for name in both]

    def told() -> list[str]:
        found = differences(both, SEGMENT + 1_000)
        assert [each[: len(broken[0])] for each in found[-2:]] == broken
        return [each.partition(":")[0] for each in found[:-2]]

    assert differences(both, SEGMENT + 1_000, SEGMENT)[:-2] == []
    assert differences(both, SEGMENT + 1_000, 0)[:-2] == [
        f"{name}: the log begins at byte {SEGMENT}, and not at 0" for name in both
    ]
    Place(LOG, other / "commitlog" / START, 1_000, 0).flip()
    Place(QUEUES, queue, 12, 0).flip()
    assert told() == []
    Place(LOG, other / "commitlog" / START, 999, 0).flip()
    Place(QUEUES, queue, 30, 0).flip()
    assert told() == [f"commitlog/{START}", f"consumequeue/t@1/0/{0:020}"]


def test_a_reader_that_is_given_something_else_says_so(tmp_path: Path) -> None:
    """Another body, a queue that ends elsewhere; and a member on an empty disk votes again."""

    async def reading() -> None:
        with hearing():
            async with members(tmp_path, 3) as group, Client.connect(group.addresses) as client:
                await client.create_topic("flips", queues=4)
                content = Content(1)
                await content.send(client, 40)
                assert await content.read_all(client) == []
                assert content.read == 40
                content.fronts[1] = 3
                assert await content.read_all(client) == ["queue 1 begins at 0, and not at 3"]
                await content.begin(client)
                assert content.fronts == dict.fromkeys(range(4), 0)
                content.bodies[2][5] += b"x"
                content.bodies[3].append(b"never sent")
                found = await content.read_all(client)
                assert found == [
                    "queue 2: what was given as 5 isn't what was sent",
                    "queue 3 ends at 10, 11 were sent",
                ]
                await group.level()
                name = next(each for each in group.nodes if each != group.leader())
                disk = (group.directory(name) / "identity.json").read_bytes()
                await group.stop(name)
                await group.rebuild(name)
                await group.level()
                assert (group.directory(name) / "identity.json").read_bytes() != disk

    asyncio.run(reading())


def test_what_is_said_of_files_is_told_from_the_rest(tmp_path: Path) -> None:
    """By the member that it names, or by its name; what another member said of its own isn't."""
    log = structlog.get_logger("a member")
    one, other = tmp_path / "n1", tmp_path / "n2"
    with hearing() as heard:
        log.warning("peer_stream_ended", reason="nothing was heard")
        log.info("snapshot_written")
        assert heard.of(one, [other]) == []
        log.warning("start_refused", file=str(one / "checkpoint"))
        log.error("log_rot_found", file=str(other / "commitlog"))
        log.error("consume_queue_wrong", topic="flips")
        assert heard.of(one, [other]) == ["start_refused", "consume_queue_wrong"]
        assert heard.of(other, [one]) == ["log_rot_found", "consume_queue_wrong"]
        heard.begin()
        assert heard.of(one, []) == []


def test_what_is_heard_of_another_file_is_no_repair_of_this_one(tmp_path: Path) -> None:
    """Else a file that is written anew all the time would be repaired whenever another one is."""
    one, other = tmp_path / "n1", tmp_path / "n2"
    log = structlog.get_logger(__name__)
    with hearing() as heard:
        log.error("file_rotted", file=str(one / "raft" / "hard_state"), became="written again")
        log.warning("snapshot_not_written", reason="no space")
        log.error("consume_queue_wrong", topic="flips", queue_id=1)
        log.error("file_rotted", file=str(other / "identity.json"))
        for name in ("hard_state", "hard_state.copy"):
            assert heard.of_file(one / "raft" / name, [other]) == ["file_rotted"]
        assert heard.of_file(one / "checkpoint", [other]) == []
        assert heard.of_file(one / "identity.json", [other]) == []
        queue = one / "consumequeue" / "flips@1" / "1" / START
        assert heard.of_file(queue, [other]) == ["consume_queue_wrong"]
        assert heard.since(3).of(one, []) == ["file_rotted"]


@pytest.mark.slow
def test_a_short_campaign_finds_what_it_flips(tmp_path: Path) -> None:
    """Nobody is given another byte; who was hit is whole again."""
    arguments = ["flips", "--flips", "3", "--pairs", "1", "--seed", "11", "--json"]
    result = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "kept")])
    assert result.exit_code == 0, (result.output, result.exception)
    facts = json.loads(result.stdout)
    assert (facts["done"], facts["made"], facts["problems"]) == (4, 4, [])
    counts = [sum(kind[each.value] for each in Outcome) for kind in facts["kinds"].values()]
    assert sum(counts) == 3 + 2
    assert facts["messages_read"] > 4 * 5_000
    assert {path.name for path in (tmp_path / "kept").iterdir()} == {"n1", "n2", "n3"}


def test_what_was_never_noticed_is_no_find(tmp_path: Path) -> None:
    """It fails nothing of itself, but isn't called met."""
    done = Flipped(FlipOptions(1, 0, 1, tmp_path), made=1)
    assert done.found_all
    done.outcomes["snapshot"][Outcome.UNNOTICED] += 1
    assert (done.found_all, done.holds) == (False, True)
    done.problems.append("flip 1: somebody was given another byte")
    assert not done.holds


@pytest.mark.slow
@pytest.mark.long
def test_what_was_never_flipped_shows_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One flip is made; then only one member has such files: there is no pair."""
    draws = iter(range(99))

    def drawn(directory: Path, end: int, chance: Random, only: Sequence[str]) -> Place | None:
        is_there = next(draws) < 4 or directory.name == "n2"
        return draw(directory, end, chance, only) if is_there else None

    monkeypatch.setattr(campaign, "draw", drawn)
    arguments = ["flips", "--flips", "1", "--pairs", "1", "--seed", "3", "--strict", "--json"]
    result = CliRunner().invoke(app, [*arguments, "--only", "log"])
    facts = json.loads(result.stdout)
    assert (result.exit_code, facts["done"], facts["made"]) == (1, 2, 1)
    assert (facts["problems"], facts["made_all"], facts["holds"]) == ([], False, False)
    assert sum(facts["kinds"]["log"][each.value] for each in Outcome) == 1


@pytest.mark.slow
def test_a_kind_that_is_not_there_is_told(tmp_path: Path) -> None:
    """With those that are."""
    arguments = ["flips", "--only", "logs", "--flips", "1", "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert "no files of the kind logs; there are LOCK, " in result.output
    assert " log, log ahead, " in result.output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--flips", "-1"], "--flips"),
        (["--pairs", "many"], "--pairs"),
        (["--out", "."], "isn't empty"),
        (["--flips", "0", "--pairs", "0"], "nothing would be tested"),
    ],
)
def test_wrong_options_are_usage_errors(arguments: list[str], told: str) -> None:
    """Before anything is started."""
    result = CliRunner().invoke(app, ["flips", *arguments])
    assert result.exit_code == 2
    assert told in result.output
