"""`dledger audit stats --html`: the timeline behind the picture, and the page."""

from __future__ import annotations

import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from random import Random

import numpy as np
import pytest
from typer.testing import CliRunner

from audit.commands.app import app
from audit.contents.stats import MAX_KEYS, LogSum, QueueSum, stats_as_json, sum_log
from audit.contents.timeline import MAX_SPANS, Timeline
from audit.engines.engine import Engine
from audit.showing.stats_page import render_stats
from tests.audit.replicas import ReplicaSet


def line_of(*messages: tuple[int, int]) -> Timeline:
    """Messages `(time ms, size)`, counted at once."""
    line = Timeline()
    times, sizes = zip(*messages, strict=True)
    line.count(np.array(times, np.int64), np.array(sizes, np.int64))
    return line


@pytest.mark.parametrize("seed", range(5))
def test_timelines_add_up_the_same_in_any_order(seed: int) -> None:
    """Parts of any size in any order: the spans of counting all at once, none lost."""
    random = Random(seed)
    span = random.choice((10, 5_000, 40_000_000))
    messages = [
        (1_700_000_000_000 + random.randrange(span), random.randrange(99)) for _ in "x" * 80
    ]
    whole = line_of(*messages)
    parts = [line_of(*messages[at : at + 7]) for at in range(0, 80, 7)]
    random.shuffle(parts)
    added = Timeline()
    for part in parts:
        added.add(part)
    assert added == whole
    assert sum(whole.messages.values()) == 80
    assert sum(whole.body_bytes.values()) == sum(size for _, size in messages)
    assert max(whole.messages) - min(whole.messages) < MAX_SPANS


def test_spans_are_no_wider_than_they_must_be() -> None:
    """64 ms are 64 spans of one; a millisecond more takes spans of two."""
    assert line_of((0, 1), (63, 1)).width_ms == 1
    assert line_of((0, 1), (64, 1)).width_ms == 2


class Page(HTMLParser):
    """Collects the heights of bars by the caption of their chart, and everything that loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.bars: dict[str, list[float]] = {}
        self.loads: list[str] = []
        self._chart = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "svg":
            self._chart = given["aria-label"]
            self.bars[self._chart] = []
        elif tag == "rect":
            self.bars[self._chart].append(float(given["height"]))
        if tag in ("script", "link", "img", "iframe") or "href" in given or "src" in given:
            self.loads.append(tag)


def test_page_draws_each_queue_with_one_scale_a_topic(three: ReplicaSet, engine: Engine) -> None:
    """Three charts a queue and for all; a topic's highest bar is as high as the chart."""
    sums = sum_log(three.replicas[0], engine)
    page = Page(render_stats(sums, "here"))
    assert page.loads == []
    assert len(page.bars) == len(set(page.bars))
    assert len(page.bars) == 2 * (3 + 1) * 3
    for topic in ("orders", "events"):
        for what in ("messages over time", "bytes over time", "messages by delay"):
            heights = [
                height
                for caption, bars in page.bars.items()
                if caption.startswith(f"{topic}, queue") and what in caption
                for height in bars
            ]
            assert max(heights) == 64.0
            assert min(heights) > 0


def test_queues_are_drawn_in_the_topics_spans() -> None:
    """A queue that had its messages within 4 ms is one bar beside one that took an hour, and
    drawing changes no sum."""
    short, long = line_of((1, 1), (4, 1)), line_of((0, 1), (3_600_000, 1))
    counts = np.bincount([3, 3], minlength=200)
    sums = LogSum(
        {
            ("t", number): QueueSum(2, 2, 0, 9, counts, counts.copy(), line)
            for number, line in enumerate((short, long))
        }
    )
    page = Page(render_stats(sums, "here"))
    of_messages = {c: bars for c, bars in page.bars.items() if "messages over time" in c}
    bars = {c.split(", messages")[0]: bars for c, bars in of_messages.items()}
    assert bars == {"t, queue 0": [64.0], "t, queue 1": [32.0, 32.0], "t, all queues": [64.0, 21.3]}
    assert short == line_of((1, 1), (4, 1))


def test_keys_of_one_topic_push_out_no_others() -> None:
    """Nor hide that some were forgotten: then what is counted is a lower bound."""
    sums = LogSum({(topic, 0): QueueSum() for topic in ("few", "many")})
    sums.keys.update({("few", f"k{number}"): 2 for number in range(50)})
    for first in range(0, 10 * MAX_KEYS, MAX_KEYS):
        more = LogSum(keys=Counter({("many", f"k{first + n}"): 3 for n in range(MAX_KEYS)}))
        more.keys["many", "hot"] = 100
        sums.add(more)
    assert len(sums.keys) <= 2 * MAX_KEYS + 50
    assert sum(sums.keys["few", f"k{number}"] for number in range(50)) == 100
    facts = stats_as_json(sums)["topics"]
    assert isinstance(facts, list)
    assert [each["keys_forgotten"] for each in facts] == [False, True]
    assert facts[1]["hot_keys"][0] == {"key": "hot", "messages": 1_000}
    assert "at least 1000" in render_stats(sums, "here")


def test_names_and_odd_clocks_do_no_harm() -> None:
    """What the log holds is text, and a time beyond any calendar is still drawn."""
    line = line_of((1 << 60, 3))
    counts = np.zeros(200, np.int64)
    counts[4] = 1
    queue = QueueSum(1, 3, 1 << 60, 1 << 60, counts, counts.copy(), line)
    sums = LogSum({("<script>", 0): queue})
    sums.keys["<script>", "<b>"] = 1
    text = render_stats(sums, "<i>")
    assert not re.search("<script|<b>|<i>", text)
    assert f"{1 << 60} ms" in text


def test_command_writes_the_page(three: ReplicaSet, tmp_path: Path) -> None:
    """Beside the table, and whole."""
    page = tmp_path / "stats.html"
    named = f"n1={three.paths['n1']}"
    result = CliRunner().invoke(app, ["stats", "--replica", named, "--html", str(page)])
    assert result.exit_code == 0, result.output
    text = page.read_text(encoding="utf-8")
    assert "Topic orders" in text
    assert text.endswith("</html>\n")
    assert list(tmp_path.glob("*.new")) == []
