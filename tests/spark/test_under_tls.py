"""A group that talks under TLS alone, with certificates of `dledger certs`: read and written by the
tables, and what is said to whoever comes with the wrong ones."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pyspark isn't installed: pip install '.[audit]'")

from dledger.client.errors import BrokerGroupUnreachable, InvalidArgument
from dledger.spark.brokers import Access, Brokers
from dledger.spark.network import TopicsSource
from dledger.spark.sink import Writing, write_task
from tests.certificates import Authority
from tests.integration.group import make_configs
from tests.integration.strangers import running, with_tls
from tests.spark.group import rows_of, source
from tests.spark.test_sink import batches

BODIES = [f"m{number}".encode() for number in range(10)]


def at_a_group(folder: Path, work: Callable[[str, Authority], None]) -> None:
    """`work` is done while a node runs that wants certificates, given its address."""

    async def run() -> None:
        authority = Authority(folder / "certs")
        configs = with_tls(make_configs(folder, 1), authority, client_certificates="required")
        async with running(configs):
            await asyncio.to_thread(work, configs[0].listen, authority)

    asyncio.run(run())


def options_of(authority: Authority, name: str = "client", **others: str) -> dict[str, str]:
    """What a user gives who has the files of `name`."""
    files = authority.files(name)
    wanted = {"ca": "tlsAuthority", "certificate": "tlsCertificate", "key": "tlsKey"}
    return {option: files[file] for file, option in wanted.items()} | others


def test_topic_is_written_and_read_under_tls(tmp_path: Path) -> None:
    """Rows with a batch's intents, ranges and their ends, each by a connection of its own."""

    def work(address: str, authority: Authority) -> None:
        authority.client()
        options = options_of(authority)
        access = Access.of({"bootstrap": address, **options})
        with Brokers(access) as brokers:
            brokers.create_topic("t", 2)
        writing = Writing(access, "t", "job", 0, "rows")
        assert write_task(writing, 0, batches(BODIES)).rows == len(BODIES)
        assert write_task(writing, 0, batches(BODIES)).stored_before == len(BODIES)
        rows = rows_of(source(address, "t", **options).reader(None))
        assert sorted(row["body"] for row in rows) == BODIES

    at_a_group(tmp_path, work)


def test_wrong_certificates_are_said_in_time(tmp_path: Path) -> None:
    """Reading and writing: no query hangs, and there is no word of lost messages. What the node
    has against a caller it tells its log alone, so that is where the caller is sent."""

    def work(address: str, authority: Authority) -> None:
        other = Authority(tmp_path / "other")
        for each in (authority, other):
            each.client()
        mine, theirs = options_of(authority), options_of(other)
        wrong = [
            (theirs, "CERTIFICATE_VERIFY_FAILED"),
            (theirs | {"tlsAuthority": mine["tlsAuthority"]}, "tlsCertificate"),
            ({"tlsAuthority": mine["tlsAuthority"]}, "tlsCertificate"),
            ({}, "tlsAuthority"),
        ]
        for options, said in wrong:
            given = {**options, "bootstrap": address, "timeoutSeconds": "0.5"}
            reader = TopicsSource({**given, "topics": "t"}).reader(None)
            with pytest.raises(BrokerGroupUnreachable, match=said):
                reader.partitions()
            writing = Writing(Access.of(given), "t", "job", 0, "rows")
            with pytest.raises(BrokerGroupUnreachable, match=said):
                write_task(writing, 0, batches(BODIES))

    at_a_group(tmp_path, work)


@pytest.mark.parametrize("option", ["tlsAuthority", "tlsCertificate", "tlsKey"])
@pytest.mark.parametrize("content", ["empty", "rubbish", "another's"])
def test_files_that_are_no_credentials_are_named(tmp_path: Path, option: str, content: str) -> None:
    """Before any node is asked: nobody listens there."""
    authority, other = Authority(tmp_path / "certs"), Authority(tmp_path / "other")
    for each in (authority, other):
        each.client()
    path = Path(options_of(other)[option])
    if content != "another's":
        path.write_text("" if content == "empty" else "rubbish")
    elif option == "tlsAuthority":
        return  # An authority like any other, until a node is asked.
    given = options_of(authority, bootstrap="127.0.0.1:1", topics="t", timeoutSeconds="0.5")
    reader = TopicsSource(given | {option: str(path)}).reader(None)
    with pytest.raises(InvalidArgument, match=re.escape(str(path))):
        reader.partitions()
