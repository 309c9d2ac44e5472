"""`host:port` and lists of them, as configuration, command line and client read them."""

from __future__ import annotations

import pytest

from dledger.addresses import parse_addresses, split_address


@pytest.mark.parametrize(
    "text",
    [
        "a:1",
        "10.0.0.1:65535",
        "my_host.example:7001",
        "7.example:1",
        "n-1.a1:1",
        f"{'a' * 63}.b:1",
        "[::1]:7001",
    ],
)
def test_names_and_literals_are_addresses(text: str) -> None:
    """IPv6 in brackets too: a client may go through a tunnel of that kind."""
    host, port = split_address(text)
    assert f"{host}:{port}" == text


@pytest.mark.parametrize(
    "text",
    [
        *("", "a", "a:", ":1", "a:0", "a:65536", "a:01", "a:+1", "a:1:2", "a:\u0661"),
        *("http://a:1", "http://127.0.0.1:7001", "dns:///a:1", "unix:/a:1", "a/b:1", "u@a:1"),
        *("a b:1", " a:1", "a:1\n", "a\x00b:1", "b\u00fccher:1"),
        *("a..b:1", ".a:1", "a.:1", "-a:1", "a-:1", "a.-b:1", "a-.b:1", f"{'a' * 64}:1"),
        *("999.1.1.1:7001", "1.2.3:7001", "1.2.3.4.5:1", "1:1", "01.2.3.4:1", "a.7:1", "0x7f1:1"),
        *("::1:7001", "[a]:1", "[::1:1", f"{'a.' * 127}a:1"),
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    """Where they are written, not at the first call."""
    with pytest.raises(ValueError, match="is not host:port"):
        split_address(text)


def test_lists_may_be_texts_or_sequences() -> None:
    """Blanks and repetitions don't count."""
    assert parse_addresses("a:1, b:2,,a:1") == ["a:1", "b:2"]
    assert parse_addresses(["b:2", " a:1 "]) == ["b:2", "a:1"]


@pytest.mark.parametrize("nobody", ["", " , ", []])
def test_list_of_nobody_is_refused(nobody: str | list[str]) -> None:
    """It would wait for ever."""
    with pytest.raises(ValueError, match="no address"):
        parse_addresses(nobody)
