"""What an audit says: terminal, JSON, HTML page, exit codes."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

from audit.commands.app import app
from audit.engines.engine import LocalEngine
from audit.proof.replicas import Options, audit_replicas
from audit.proof.report import Audit
from audit.reading.replica import Replica
from audit.showing.block_map import State, draw_map
from audit.showing.page import render_page
from tests.audit.replicas import BLOCK, SEGMENT, ReplicaSet


def audited(replicas: list[Replica]) -> Audit:
    return audit_replicas(replicas, LocalEngine(), Options(block_size=BLOCK))


def arguments(three: ReplicaSet, *more: str) -> list[str]:
    named = [part for r in three.replicas for part in ("--replica", f"{r.id}={r.path}")]
    return ["replicas", *named, "--block-size", "4KiB", *more]


def test_consistent_replicas_end_with_0(three: ReplicaSet) -> None:
    """The table and the summary say identical."""
    result = CliRunner().invoke(app, arguments(three))
    assert result.exit_code == 0, result.output
    assert result.output.count("identical") == 3
    assert "IDENTICAL: " in result.output


def test_bit_rot_ends_with_1_and_is_told_in_full(three: ReplicaSet) -> None:
    """File, place, and the entry as each replica has it."""
    header = three.header_of(after=20_000)
    path = three.flip("n2", header.physical_offset + 80)
    result = CliRunner().invoke(app, arguments(three))
    assert result.exit_code == 1
    assert "BIT ROT on n2: bad crc" in result.output
    assert str(path) in result.output
    assert f"first divergent entry, at physical offset {header.physical_offset:,}" in result.output


def test_json_report_is_the_documented_one(three: ReplicaSet) -> None:
    """Schema, verdict, coverage, ranges, first divergent entry and timings."""
    header = three.header_of(after=20_000)
    three.flip("n2", header.physical_offset + 80)
    result = CliRunner().invoke(app, arguments(three, "--json"))
    report = json.loads(result.output)
    assert report["schema"] == "dledger-audit/1"
    assert (report["verdict"], report["exit_code"]) == ("bit rot", 1)
    assert [c["compared_bytes"] for c in report["coverage"]] == [three.end] * 3
    block = header.physical_offset - header.physical_offset % BLOCK
    assert [block, block + BLOCK] in report["differing"]
    (finding,) = report["findings"]
    assert (finding["verdict"], finding["replicas"]) == ("bit rot", ["n2"])
    assert finding["entry_offset"] == header.physical_offset
    assert finding["views"][0]["index"] == header.index
    assert report["timings"]["digested_bytes"] == 3 * three.end


def test_incomplete_ends_with_3(three: ReplicaSet) -> None:
    """A missing segment is neither consistent nor inconsistent."""
    three.segment("n2", 0).unlink()
    assert CliRunner().invoke(app, arguments(three)).exit_code == 3


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--replica", "nonsense"], "NAME=PATH"),
        (["--replica", "a=/x", "--replica", "a=/y"], "two replicas have the name a"),
        (["--replica", "a=/x", "--replica", "b=/x"], "two replicas have the place"),
        (["--replica", "a=/x"], "--derived"),
        (["--replica", "a=b@host"], "must be absolute"),
        (["--dir", "/nonexistent"], "dledger group up"),
        (["--dir", "/x", "--bootstrap", "h:1"], "exclude each other"),
        (["--replica", "a=/x", "--replica", "b=/y", "--block-size", "5000"], "power of two"),
        (["--replica", "a=/x", "--replica", "b=/y", "--rate", "fast"], "not a size"),
    ],
)
def test_wrong_use_ends_with_2_and_says_what_is_right(given: list[str], said: str) -> None:
    """No traceback: one line that names the mistake."""
    result = CliRunner().invoke(app, ["replicas", *given])
    assert result.exit_code == 2
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1


class _Outline(HTMLParser):
    """Tags that are open, and everything that would load something."""

    VOID = frozenset({"meta", "rect", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.titles: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta",):
            self.open.append(tag)
        self.loads += [name for name, _ in attrs if name in ("src", "href", "onload")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag == "rect"

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "title":
            self.titles.append(data)


def test_page_is_self_contained_and_well_formed(three: ReplicaSet) -> None:
    """Nothing is loaded, every tag is closed, each cell says what it is."""
    three.flip("n2", three.header_of(after=20_000).physical_offset + 80)
    page = render_page(audited(three.replicas))
    outline = _Outline()
    outline.feed(page)
    assert not outline.open
    assert not outline.loads
    assert "url(" not in page
    assert sum("n2, bytes" in title and "bit rot" in title for title in outline.titles) == 1
    assert sum(title.endswith(": identical") for title in outline.titles) == 3 * 12 - 1


def test_page_escapes_what_comes_from_outside(three: ReplicaSet) -> None:
    """Names of files are data, whatever is in them."""
    (three.paths["n1"] / "commitlog" / "<script>alert(1)<.txt").touch()
    page = render_page(audited(three.replicas))
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page


def test_map_shows_each_block_of_each_replica(three: ReplicaSet) -> None:
    """Damage is on the replica that has it and nowhere else."""
    header = three.header_of(after=20_000)
    three.flip("n2", header.physical_offset + 80)
    three.segment("n3", 0).unlink()
    made = audited(three.replicas)
    strips = draw_map(made.plan, made.comparison, made.report.findings)
    assert [strip.start for strip in strips] == [0, SEGMENT, 2 * SEGMENT]
    rows = {strip.start: dict(strip.rows) for strip in strips}
    assert {cell.state for cell in rows[0]["n3"]} == {State.INCOMPLETE}
    assert {cell.state for cell in rows[0]["n1"]} == {State.IDENTICAL}
    rotten = [cell for cell in rows[SEGMENT]["n2"] if cell.state is State.BIT_ROT]
    assert [cell.start <= header.physical_offset < cell.end for cell in rotten] == [True]
    assert {cell.state for cell in rows[SEGMENT]["n1"]} == {State.IDENTICAL}


def test_page_is_written_as_a_whole(three: ReplicaSet, tmp_path: Path) -> None:
    """`--html` leaves the page and nothing beside it."""
    folder = tmp_path / "reports"
    folder.mkdir()
    CliRunner().invoke(app, arguments(three, "--html", str(folder / "a.html")))
    assert [path.name for path in folder.iterdir()] == ["a.html"]
    assert (folder / "a.html").read_text(encoding="utf-8").startswith("<!doctype html>")
