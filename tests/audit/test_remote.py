"""Audits over gRPC: what nodes tell of their logs against what their files show, fault by fault.

The nodes run, on real ports; their cold files are hurt under them and mended again. Each audit is
made twice, over files and over gRPC, and the two reports must be the same but for their timings.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import pytest
from typer.testing import CliRunner

from audit.commands.app import app
from audit.engines.engine import LocalEngine
from audit.errors import NodeRefused, UsageMistake
from audit.proof.findings import Cause, Verdict
from audit.proof.replicas import Options, audit_replicas
from audit.proof.report import Report, report_as_json
from audit.proof.scan import ScanTask, Window, _start_before, scan_segment
from audit.reading import live, remote
from audit.reading.live import Over, replicas_of_directory, replicas_of_group
from audit.reading.remote import NodeLog, calls
from dledger.outcome import ExitCode
from dledger.reading.entry import FILLER_MAGIC, HEADER_SIZE, EntryHeader, parse_header
from dledger.reading.log_start import NOTE, LogStart
from dledger.wire.cluster_pb2 import NodeStatus
from store.files import OsFiles
from store.log_start import StartNote
from tests.audit.replicas import ReplicaSet, cut, flip_bit
from tests.integration.group import Group, make_configs

SEGMENT = 2 << 20
BLOCK = 64 << 10
MESSAGE = 30_000
Hurt = Callable[["Cold"], None]


class Cold:
    """The segment files of a node that are full: its logs' first two."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "commitlog"

    def file(self, base: int) -> Path:
        return self.folder / f"{base:020d}"

    def headers(self, base: int) -> list[EntryHeader]:
        """The entries of a segment."""
        content, at, found = self.file(base).read_bytes(), 0, []
        while at < SEGMENT and content[at + 4 : at + 8] != FILLER_MAGIC.to_bytes(4, "big"):
            found.append(parse_header(content, at))
            at += found[-1].total_size
        return found

    def entry(self, base: int, part: float) -> int:
        """Where the entry begins that lies at that part of the segment; a byte of the file."""
        headers = self.headers(base)
        return headers[int(len(headers) * part)].physical_offset - base

    def filler(self, base: int) -> int:
        last = self.headers(base)[-1]
        return last.physical_offset - base + last.total_size

    @contextmanager
    def mended(self) -> Iterator[None]:
        """Afterwards the files are as before; the node's descriptors still show the same files."""
        files = {base: self.file(base) for base in (0, SEGMENT)}
        kept = {base: (path.read_bytes(), path.stat().st_ino) for base, path in files.items()}
        aside = {base: path.with_name(f"kept-{base}") for base, path in files.items()}
        outside = {base: self.folder.parent / path.name for base, path in aside.items()}
        for base, path in files.items():
            os.link(path, outside[base])
        try:
            yield
        finally:
            for base, path in files.items():
                path.unlink(missing_ok=True)
                outside[base].rename(path)
                path.write_bytes(kept[base][0])
                assert path.stat().st_ino == kept[base][1]


def nothing(cold: Cold) -> None:
    """No fault."""


def flip_header(cold: Cold) -> None:
    flip_bit(cold.file(0), cold.entry(0, 0.6) + 21)


def flip_size(cold: Cold) -> None:
    flip_bit(cold.file(0), cold.entry(0, 0.5) + 2)


def flip_record(cold: Cold) -> None:
    flip_bit(cold.file(SEGMENT), cold.entry(SEGMENT, 0.9) + 5000)


def flip_twice(cold: Cold) -> None:
    flip_bit(cold.file(SEGMENT), cold.entry(SEGMENT, 0.1) + HEADER_SIZE + 100)
    flip_bit(cold.file(SEGMENT), cold.entry(SEGMENT, 0.95) + 4)


def flip_filler(cold: Cold) -> None:
    flip_bit(cold.file(0), SEGMENT - 1)


def flip_filler_magic(cold: Cold) -> None:
    flip_bit(cold.file(0), cold.filler(0) + 5)


def truncate(cold: Cold) -> None:
    cut(cold.file(SEGMENT), SEGMENT // 2 + 777)


def remove(cold: Cold) -> None:
    cold.file(0).unlink()


def make_unreadable(cold: Cold) -> None:
    cold.file(0).unlink()
    cold.file(0).symlink_to(cold.file(0))


def swap(cold: Cold) -> None:
    aside = cold.folder.parent / "aside"
    cold.file(0).rename(aside)
    cold.file(SEGMENT).rename(cold.file(0))
    aside.rename(cold.file(SEGMENT))


def put_back_old_copy(cold: Cold) -> None:
    at = cold.entry(SEGMENT, 0.7)
    content = cold.file(SEGMENT).read_bytes()
    cold.file(SEGMENT).write_bytes(content[:at] + bytes(SEGMENT - at))


def zero_a_sector(cold: Cold) -> None:
    with cold.file(0).open("r+b") as file:
        file.seek(20 * 4096)
        file.write(bytes(4096))


FAULTS: dict[Hurt, Cause | None] = {
    nothing: None,
    flip_header: Cause.BAD_CRC,
    flip_size: Cause.BAD_CRC,
    flip_record: Cause.BAD_CRC,
    flip_twice: Cause.BAD_CRC,
    flip_filler: Cause.STRAY_FILLER,
    flip_filler_magic: Cause.BAD_CRC,
    truncate: Cause.TRUNCATED_SEGMENT,
    remove: Cause.MISSING_SEGMENT,
    make_unreadable: None,  # a link to itself can't even be looked at: as one that is missing
    swap: Cause.WRONG_PLACE,
    put_back_old_copy: Cause.OLD_COPY,
    zero_a_sector: Cause.BAD_CRC,
}


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """The event loop that the nodes live on."""
    with asyncio.Runner() as runner:
        yield runner.get_loop()


@pytest.fixture(scope="module")
def group(
    loop: asyncio.AbstractEventLoop, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Group]:
    """Three nodes with two full segments and a part of a third."""
    made = Group(
        make_configs(
            tmp_path_factory.mktemp("live"),
            store={"segment_size_bytes": SEGMENT, "reserve_bytes": 0},
            broker={"max_message_bytes": 1 << 20, "audit_bytes_per_s": 100 << 30},
        )
    )

    async def start() -> None:
        await made.start()
        await made.create_topic()
        for sequence in range(2 * SEGMENT // MESSAGE + 20):
            await made.send(sequence, bytes((sequence % 251,)) * MESSAGE)
        await made.applied_everywhere()

    try:
        loop.run_until_complete(start())
        yield made
    finally:
        loop.run_until_complete(made.close())


@pytest.fixture
def audited(group: Group, loop: asyncio.AbstractEventLoop) -> Callable[[Over], Report]:
    """Audits the group in a thread, while the nodes run."""

    def audit(over: Over) -> Report:
        async def run() -> Report:
            return await asyncio.to_thread(report_of, group, over)

        return loop.run_until_complete(run())

    return audit


def report_of(group: Group, over: Over) -> Report:
    replicas = replicas_of_group([group.configs["n1"].listen], on_hosts=False, over=over)
    assert all((replica.address is not None) == (over is Over.GRPC) for replica in replicas)
    return audit_replicas(replicas, LocalEngine(), Options(block_size=BLOCK, derived=False)).report


def rows(report: Report) -> dict[str, Any]:
    """All that a report says, but for how long it took."""
    return {name: value for name, value in report_as_json(report).items() if name != "timings"}


@pytest.mark.parametrize("hurt", FAULTS, ids=lambda hurt: hurt.__name__)
def test_nodes_tell_what_their_files_show(
    group: Group, audited: Callable[[Over], Report], hurt: Hurt
) -> None:
    """The same coverage, ranges, findings, first divergent entries and verdict, row by row."""
    cold = Cold(group.nodes["n2"].config.data_directory)
    with cold.mended():
        hurt(cold)
        files, told = audited(Over.FILES), audited(Over.GRPC)
    assert rows(told) == rows(files)
    causes = {finding.cause for finding in told.findings}
    if hurt is nothing:
        assert (causes, told.exit_code) == (set(), ExitCode.CONSISTENT)
        assert {each.compared_bytes for each in told.coverage} == {told.coverage[0].end}
    else:
        assert {finding.replicas for finding in told.findings} == {("n2",)}
        assert FAULTS[hurt] in {None, *causes}
    assert rows(audited(Over.GRPC)) == rows(audited(Over.FILES))


@pytest.mark.parametrize("lie", [0, 1], ids=["true", "another"])
def test_node_whose_log_begins_later_says_so(
    group: Group, audited: Callable[[Over], Report], lie: int
) -> None:
    """With its start note; what it says of the entry before is held against the others' logs, also
    where their nodes have to be asked for it."""
    folder = group.nodes["n2"].config.data_directory
    cold = Cold(folder)
    last = cold.headers(0)[-1]
    end = last.physical_offset + last.total_size
    start = LogStart(last.index, last.term, last.digest ^ lie, end, last.append_time_ms)
    with cold.mended():
        StartNote(OsFiles(), folder).replace(start)
        cold.file(0).unlink()
        try:
            files, told = audited(Over.FILES), audited(Over.GRPC)
        finally:
            (folder / NOTE).unlink()
    assert rows(told) == rows(files)
    assert told.coverage[1].start == SEGMENT
    if lie:
        assert told.verdict is Verdict.DIVERGENCE
        assert {each.cause for each in told.findings} == {
            Cause.START_DIFFERS,
            Cause.RETAINED_LATER,
        }
    else:
        assert (told.verdict, told.findings, told.scope.start) == (Verdict.IDENTICAL, (), 0)
        assert any(note.startswith("n2: begins later") for note in told.notes)


def test_foreign_files_are_told(group: Group, audited: Callable[[Over], Report]) -> None:
    """By name, as beside the files."""
    foreign = group.nodes["n3"].config.data_directory / "commitlog" / "notes.txt"
    foreign.write_text("?", encoding="utf-8")
    try:
        told, files = audited(Over.GRPC), audited(Over.FILES)
    finally:
        foreign.unlink()
    assert told.notes == files.notes
    assert any("notes.txt" in note for note in told.notes)


def test_sends_go_on_during_an_audit(group: Group, loop: asyncio.AbstractEventLoop) -> None:
    """Every one of them is stored, and the audit finds nothing: it looks below its positions."""
    before = group.nodes["n1"].driver.applied_index

    async def both() -> tuple[Report, int]:
        audit = asyncio.ensure_future(asyncio.to_thread(report_of, group, Over.GRPC))
        sent = 0
        while not audit.done():
            result = await group.send(sent, b"during the audit", queue_id=1)
            assert result.error.code == 0
            sent += 1
        return await audit, sent

    report, sent = loop.run_until_complete(both())
    assert sent > 0
    assert group.nodes["n1"].driver.applied_index > before
    assert report.verdict is Verdict.IDENTICAL


def test_auto_asks_nodes_whose_files_lie_elsewhere(
    group: Group, loop: asyncio.AbstractEventLoop
) -> None:
    """Another host may have a folder of that name: what counts is whose it is."""
    identity = group.nodes["n3"].config.data_directory / "identity.json"
    kept = identity.read_bytes()
    other = json.loads(kept) | {"node_id": "n9"}
    identity.write_text(json.dumps(other), encoding="utf-8")
    try:
        replicas = loop.run_until_complete(
            asyncio.to_thread(replicas_of_group, [group.configs["n1"].listen], on_hosts=False)
        )
    finally:
        identity.write_bytes(kept)
    assert [replica.address is not None for replica in replicas] == [False, False, True]
    with pytest.raises(UsageMistake, match=r"ConsumeQueues.*n3"):
        audit_replicas(replicas, LocalEngine(), Options(derived=True))


def test_command_audits_over_grpc(group: Group, loop: asyncio.AbstractEventLoop) -> None:
    """`--over grpc` with live nodes; with named folders there is nobody to ask."""

    def run(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["replicas", "--over", "grpc", *arguments])
        return result.exit_code, result.output

    address = group.configs["n2"].listen
    code, output = loop.run_until_complete(
        asyncio.to_thread(run, "--bootstrap", address, "--json", "--rate", "500MB")
    )
    assert (code, json.loads(output)["verdict"]) == (0, "identical")
    code, output = run("--replica", "n1=/x", "--replica", "n2=/y")
    assert (code, "--bootstrap" in output) == (2, True)


def test_a_node_that_falls_silent_is_incomplete(
    group: Group, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gave its position and then nothing more: named, and the others are compared."""
    address = group.configs["n1"].listen

    def audit() -> Report:
        replicas = replicas_of_group([address], on_hosts=False, over=Over.GRPC)
        dead = [
            replica if replica.id != "n2" else type(replica)(
                "n2", replica.path, position=replica.position, address="127.0.0.1:1"
            )
            for replica in replicas
        ]  # fmt: skip
        return audit_replicas(dead, LocalEngine(), Options(block_size=BLOCK)).report

    report = loop.run_until_complete(asyncio.to_thread(audit))
    (found,) = report.findings
    assert (found.cause, found.replicas) == (Cause.UNREACHABLE_NODE, ("n2",))
    assert "127.0.0.1:1: UNAVAILABLE" in found.detail
    assert report.exit_code == ExitCode.INCOMPLETE
    assert [each.compared_bytes > 0 for each in report.coverage] == [True, False, True]


class _Failed(grpc.RpcError):
    def __init__(self, code: grpc.StatusCode) -> None:
        super().__init__()
        self._code = code

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return "said"


@pytest.mark.parametrize(
    ("failures", "naps", "fails"),
    [
        ([grpc.StatusCode.RESOURCE_EXHAUSTED] * 3, 3, False),
        ([grpc.StatusCode.RESOURCE_EXHAUSTED] * remote.BUSY_TRIES, remote.BUSY_TRIES - 1, True),
        ([grpc.StatusCode.OUT_OF_RANGE], 0, True),
    ],
)
def test_a_busy_node_is_asked_again_so_many_times(
    failures: list[grpc.StatusCode], naps: int, fails: bool
) -> None:
    """Another audit's calls end; any other refusal stays one."""
    slept: list[float] = []
    with grpc.insecure_channel("127.0.0.1:1") as channel:
        log = NodeLog(channel, "there", nap=slept.append)
        left = [_Failed(code) for code in failures]

        def ask() -> str:
            if left:
                raise left.pop(0)
            return "answer"

        if fails:
            with pytest.raises(NodeRefused, match=r"there: .*said"):
                log._asked(ask)
        else:
            assert log._asked(ask) == "answer"
    assert len(slept) == naps


def test_calls_cover_the_blocks_once_within_their_bounds() -> None:
    """So many blocks and so many bytes a call; a node refuses more."""
    many = list(range(0, 40_000 * 4096, 4096))
    large = [0, 64 << 20, 100 << 20, 164 << 20, 165 << 20]
    for edges in (many, large, [0, 1]):
        cut_up = list(calls(edges))
        assert [pair for part in cut_up for pair in pairwise(part)] == list(pairwise(edges))
        assert all(len(part) - 1 <= remote.CALL_BLOCKS for part in cut_up)
        assert all(part[-1] - part[0] <= remote.CALL_BYTES for part in cut_up)


def test_the_bounds_are_those_of_the_nodes() -> None:
    """What an auditor takes for granted is what nodes grant."""
    from broker.services import audit as service

    assert remote.CALL_BYTES == service.MAX_CALL_BYTES
    assert remote.CALL_BLOCKS == service.MAX_BLOCKS
    assert remote.READ_BYTES == service.MAX_READ_BYTES
    assert remote.LEAST_BYTES_PER_S == service.MIN_BYTES_PER_S


def test_looking_back_begins_at_an_entry_near_the_range(three: ReplicaSet) -> None:
    """The items of a range are the same whether the log is followed from the segment's start or
    from the last intact entry before it; far less is read."""
    from tests.audit.replicas import SEGMENT as SMALL

    path = three.segment("n1", SMALL)
    task = ScanTask("n1", str(path.parent), SMALL, SMALL, ((SMALL + 9000, SMALL + 12_000),))
    whole = scan_segment(task)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("audit.proof.scan._LOOK_BACK_BYTES", 512)
        assert scan_segment(task) == whole
        with path.open("rb") as file:
            begin = _start_before(Window(file.fileno()), task, 0, 9000)
        starts = [header.physical_offset - SMALL for header in three.headers]
        assert begin in starts
        assert 0 < begin <= 9000
        three.flip("n1", SMALL + begin + 60)
        with path.open("rb") as file:
            before = _start_before(Window(file.fileno()), task, 0, 9000)
        assert before != begin
        assert before in starts


def test_node_of_another_group_says_nothing_of_this_one(
    three: ReplicaSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups that `group up` makes one after the other have the same ports. What the later one's
    nodes say ends no scope of the earlier one's, nor contradicts its logs."""
    places = {name: f"127.0.0.1:{7001 + n}" for n, name in enumerate(three.paths)}
    nodes = [
        {"id": name, "address": places[name], "data_directory": str(path)}
        for name, path in three.paths.items()
    ]
    (three.root / "group.json").write_text(json.dumps({"nodes": nodes}))

    def answer(name: str, directory: str) -> NodeStatus:
        return NodeStatus(
            broker_group="g", node_id=name, data_directory=directory, commit_index=4,
            committed_offset=three.headers[4].physical_offset, committed_digest=1234,
        )  # fmt: skip

    others = {places[name]: answer(name, f"/elsewhere/{name}") for name in three.paths}
    own = {places[name]: answer(name, str(path)) for name, path in three.paths.items()}
    strangers = {places[name]: answer("n9", str(path)) for name, path in three.paths.items()}
    for answers in (others, strangers):
        monkeypatch.setattr(live, "_ask", answers.get)
        for over in Over:
            replicas = replicas_of_directory(three.root, over)
            assert [(each.position, each.address) for each in replicas] == [(None, None)] * 3
        report = audit_replicas(replicas, LocalEngine(processes=1), Options()).report
        assert (report.exit_code, report.scope.end) == (ExitCode.CONSISTENT, three.end)
        assert sum("is answered by" in note for note in report.notes) == 3
    monkeypatch.setattr(live, "_ask", own.get)
    assert all(each.position for each in replicas_of_directory(three.root))


def test_a_node_is_audited_where_it_says_if_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Administration has an address of its own; one that leads elsewhere from here would have a
    replica compared with itself."""

    def status(node: str, admin: str = "") -> NodeStatus:
        return NodeStatus(broker_group="g", node_id=node, admin_address=admin, data_directory="/x")

    nodes = {
        "a:1": status("n1", "a:9"),
        "b:1": status("n2", "a:9"),  # as n1's proxy would have it
        "c:1": status("n3", "c:9"),
        "a:9": status("n1"),
    }
    monkeypatch.setattr(live, "_ask", lambda address: nodes.get(address, "UNAVAILABLE: none"))
    found = replicas_of_group(["a:1", "b:1", "c:1"], on_hosts=False, over=Over.GRPC)
    assert [(each.id, each.address) for each in found] == [
        ("n1", "a:9"),
        ("n2", None),
        ("n3", None),
    ]
    assert [each.silence for each in found] == [
        "",
        "a:9, where n2 is audited, leads to n1 of broker group g from here",
        "c:9, where n3 is audited, gives no answer",
    ]
