"""Templates of HTML pages: what they are given is text, and what they aren't given is an error."""

from __future__ import annotations

from pathlib import Path

import pytest
from jinja2 import UndefinedError

from chaos.real.picture import Words
from dledger.terminal.pages import Markup, rendered

ROOT = Path(__file__).parents[2]
DRAWN = {"label": "a", "width": 1, "height": "1"}


def test_what_a_template_is_given_is_text() -> None:
    """In an element and in an attribute; only what another template made is taken as it is."""
    hostile = Words(0, 0, "<script>alert(1)</script>", title='"><b>')
    drawn = rendered("chaos.real", "timeline.svg", shapes=[hostile], **DRAWN)
    assert isinstance(drawn, Markup)
    assert "<script" not in drawn
    assert "<b>" not in drawn
    assert "&lt;script&gt;alert(1)" in drawn


def test_what_a_template_is_not_given_is_an_error() -> None:
    """And no blank that nobody notices."""
    with pytest.raises(UndefinedError, match="shapes"):
        rendered("chaos.real", "timeline.svg", **DRAWN)


def test_no_template_turns_escaping_off() -> None:
    """`safe` and `autoescape false` would put a name from a log into the page as it is."""
    found = [
        path.name
        for folder in ("audit", "broker", "chaos", "dledger", "dledger_cli")
        for path in (ROOT / folder).rglob("templates/*")
        if "|safe" in (text := path.read_text(encoding="utf-8").replace(" ", ""))
        or "autoescapefalse" in text
    ]
    assert found == []
