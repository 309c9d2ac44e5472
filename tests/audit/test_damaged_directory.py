"""Directories that are no log any more, or were made to look like one: audits end, and soon."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from audit.commands.app import app
from dledger.reading.checkpoint import CheckpointState, encode_checkpoint
from dledger.reading.survey import MAX_LACKING, survey_folder
from tests.audit.replicas import SEGMENT, ReplicaSet

Damage = Callable[[ReplicaSet], object]
FAR = SEGMENT * (1 << 45)  # A name that a log could have, hundreds of thousands of years from now.


def data(three: ReplicaSet) -> Path:
    return three.paths["n2"]


def renamed_to(name: str) -> Damage:
    def damage(three: ReplicaSet) -> None:
        last = three.segment("n2", three.bases("n2")[-1])
        last.rename(last.with_name(name))

    return damage


def alone(damage: Damage) -> Damage:
    """The same in a bare copy: no checkpoint says where the log ends."""

    def both(three: ReplicaSet) -> None:
        damage(three)
        (data(three) / "checkpoint").unlink()

    return both


def checkpoint(state: CheckpointState) -> Damage:
    return lambda three: (data(three) / "checkpoint").write_bytes(encode_checkpoint(state))


def identity(size: object) -> Damage:
    def damage(three: ReplicaSet) -> None:
        path = data(three) / "identity.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"segment_size_bytes": size}))

    return damage


def no_file(place: str, make: Callable[[Path], object]) -> Damage:
    def damage(three: ReplicaSet) -> None:
        path = data(three) / place
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        make(path)

    return damage


def to_zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


DAMAGES: dict[str, Damage] = {
    "a name beyond all offsets": renamed_to("9" * 20),
    "a name beyond all offsets, bare": alone(renamed_to("9" * 20)),
    "a name far away": renamed_to(f"{FAR:020d}"),
    "a name far away, bare": alone(renamed_to(f"{FAR:020d}")),
    "names a byte apart, bare": alone(renamed_to(f"{1:020d}")),
    "a watermark of 2^63": checkpoint(CheckpointState(watermark=1 << 63)),
    "a watermark far away": checkpoint(CheckpointState(watermark=FAR)),
    "a beginning far away": checkpoint(CheckpointState(FAR + 1, FAR)),
    "everything at its largest": checkpoint(CheckpointState((1 << 64) - 1, (1 << 64) - 1)),
    "segments of a byte": identity(1),
    "segments of nothing": identity(0),
    "segments that are negative": identity(-SEGMENT),
    "segments without an end": identity(10**4000),
    "segments of infinity": identity(float("inf")),
    "a pipe as checkpoint": no_file("checkpoint", os.mkfifo),
    "a device as checkpoint": no_file("checkpoint", to_zeros),
    "a pipe as identity": no_file("identity.json", os.mkfifo),
    "a device as identity": no_file("identity.json", to_zeros),
    "a pipe as log": no_file("commitlog", os.mkfifo),
    "a pipe as segment": no_file(f"commitlog/{0:020d}", os.mkfifo),
    "a pipe as queue": no_file(f"consumequeue/orders@1/0/{0:020d}", os.mkfifo),
    "a device as queue": no_file(f"consumequeue/orders@1/0/{0:020d}", to_zeros),
    "a pipe as queues": no_file("consumequeue", os.mkfifo),
    "a device as segment": no_file(f"commitlog/{0:020d}", to_zeros),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_audit_of_a_damaged_directory_ends(three: ReplicaSet, damage: Damage) -> None:
    """With a verdict and not in a traceback. Where the replica isn't wrong (a bare copy of the
    identity tells no size, and the others do), the verdict is that they are equal."""
    damage(three)
    named = [f"--replica={name}={path}" for name, path in three.paths.items()]
    result = CliRunner().invoke(app, ["replicas", "--processes", "1", *named])
    assert isinstance(result.exception, SystemExit) or result.exception is None, result.exception
    assert result.exit_code in (0, 1, 2, 3)


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_reading_a_damaged_directory_ends(three: ReplicaSet, damage: Damage) -> None:
    """As data, too."""
    damage(three)
    result = CliRunner().invoke(app, ["stats", f"--replica=n2={three.paths['n2']}"])
    assert isinstance(result.exception, SystemExit) or result.exception is None, result.exception
    assert result.exit_code in (0, 1, 2, 3)


def test_replica_that_lacks_what_it_claims_is_told(three: ReplicaSet) -> None:
    """By name, with what is there and what would have to be."""
    DAMAGES["a watermark of 2^63"](three)
    found = survey_folder("n2", str(three.paths["n2"]))
    assert "can't be the log of bytes 0 to 9223372036854775808" in found.problem
    files = len(three.bases("n2"))
    end = (files + MAX_LACKING) * SEGMENT
    checkpoint(CheckpointState(watermark=end))(three)
    assert survey_folder("n2", str(three.paths["n2"])).end == end
    checkpoint(CheckpointState(watermark=end + 1))(three)
    assert survey_folder("n2", str(three.paths["n2"])).problem


def test_name_beyond_all_offsets_is_foreign(three: ReplicaSet) -> None:
    """It is told with the other files that no node made."""
    DAMAGES["a name beyond all offsets"](three)
    assert survey_folder("n2", str(three.paths["n2"])).foreign == ("9" * 20,)


@pytest.mark.parametrize("make", [os.mkfifo, to_zeros], ids=["pipe", "device"])
def test_group_file_that_is_no_file(make: Callable[[Path], object], tmp_path: Path) -> None:
    """Refused by name, before it is read."""
    make(tmp_path / "group.json")
    result = CliRunner().invoke(app, ["replicas", "--dir", str(tmp_path)])
    assert result.exit_code == 2
    assert "not a file" in result.stderr
