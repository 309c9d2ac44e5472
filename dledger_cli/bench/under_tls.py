"""`bench produce --tls`: what TLS costs, by the same loads on two groups in the same run.

One group talks in the clear and one under TLS, peers and clients alike, each showing a certificate.
Both run all the time; in each round every case is taken on one and then on the other, and the next
round begins with the other one, so that neither has the machine's better half. Each figure under
TLS stands beside the one in the clear of the same round.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from broker.config import TlsConfig, dump_toml, load_config
from broker.local_group import GroupOptions, LocalGroupError
from dledger.addresses import split_address
from dledger.client import Client, Producer
from dledger.credentials.tls import TlsFiles, read_material
from dledger_cli.authority import make_authority, sign_client, sign_node
from dledger_cli.bench.arena import Arena, connected, fresh_topic, group_of_its_own
from dledger_cli.bench.figures import Comparison, Figure, Report, Spread, Target
from dledger_cli.bench.produce import (
    WARM_UP_SECONDS,
    Case,
    CaseRounds,
    figures_of,
    load,
    processor_time,
)
from dledger_cli.bench.rounds import Tell, Yardsticks
from dledger_cli.bench.yardsticks import echo_client

SUFFIX = "_tls"
PLAIN = "plain"  # the figure in the clear, which stands above
CERTIFICATE_DAYS = 30  # more than a benchmark takes


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two groups, under load; `taken` is what each case gave there."""

    place: Arena
    client: Client
    producer: Producer
    topic: str
    taken: tuple[CaseRounds, ...]

    async def one(self, at: int, seconds: float) -> None:
        """One more round of a case."""
        each = self.taken[at]
        before = await processor_time(self.place, self.client)
        each.rounds.append(await load(self.producer, self.topic, each.case, seconds))
        after = await processor_time(self.place, self.client)
        if before is not None and after is not None:
            each.processor.append(after.since(before))


async def produce_beside_tls(
    plain: Arena,
    echo_address: str,
    cases: Sequence[Case],
    *,
    seconds: float,
    rounds: int,
    tell: Tell,
) -> Report:
    """Measures every case for `seconds` in all on each of both, spread over `rounds`.

    Raises:
        LocalGroupError: `plain` isn't a group of its own.
    """
    async with AsyncExitStack() as stack:
        under_tls = stack.enter_context(arena_under_tls(plain))
        echo = await stack.enter_async_context(echo_client(echo_address))
        sides = [await _opened(stack, place, cases) for place in (plain, under_tls)]
        yardsticks = Yardsticks(echo, plain.directory, tell)

        async def one_round() -> None:
            for at in range(len(cases)):
                for side in sides:
                    await side.one(at, seconds / rounds)
            sides.reverse()

        in_the_clear, other = sides
        await yardsticks.around(rounds, one_round)
    figures = [
        figure
        for pair in zip(in_the_clear.taken, other.taken, strict=True)
        for figure in _beside(*(figures_of(each, yardsticks) for each in pair))
    ]
    failed = sum(got.failed for side in sides for each in side.taken for got in each.rounds)
    none_failed = Target(Comparison.AT_MOST, 0, must=True)
    figures.append(Figure("failed", "msgs", Spread.of([failed]), target=none_failed))
    return Report(
        "produce --tls",
        {"seconds": seconds, "rounds": rounds},
        yardsticks.figures(),
        tuple(figures),
        (
            "B_x: bytes of a body x messages in flight; cpu: µs of processor time a message",
            "_tls: the same on a group under TLS; plain: the figure above it, of the same round; "
            "disk and processors are shared with the other group, idle meanwhile",
        ),
    )


async def _opened(stack: AsyncExitStack, place: Arena, cases: Sequence[Case]) -> Side:
    client = await stack.enter_async_context(connected(place))
    topic = await stack.enter_async_context(fresh_topic(place, client))
    producer = await stack.enter_async_context(client.producer())
    for case in cases:
        await load(producer, topic, case, WARM_UP_SECONDS)
    return Side(place, client, producer, topic, tuple(CaseRounds(case) for case in cases))


@contextlib.contextmanager
def arena_under_tls(beside: Arena) -> Iterator[Arena]:
    """A new group like the one in `beside`, a group of its own, but under TLS: everybody shows a
    certificate of an authority that goes with it.

    Raises:
        LocalGroupError: `beside` is a group that goes on, or another can't be made.
    """
    if not beside.temporary or beside.directory is None:
        raise LocalGroupError("--tls compares two new groups: leave --bootstrap out, and the group")
    options = GroupOptions(nodes=len(beside.local_group().nodes))
    with group_of_its_own(beside.directory.parent, options) as group:
        folder = group.directory / "certs"
        make_authority(folder, CERTIFICATE_DAYS)
        mine = sign_client(folder, "bench", CERTIFICATE_DAYS)
        files = TlsFiles(folder / "ca.pem", mine.certificate, mine.key)
        for node in group.nodes:
            _put_under_tls(Path(node.config), folder)
        group.tls = read_material(files)
        yield Arena(tuple(group.addresses), group, group.directory, temporary=True, tls=files)


def _put_under_tls(file: Path, authority: Path) -> None:
    config = load_config(file)
    host, _ = split_address(config.listen)
    pair = sign_node(authority, config.node_id, config.broker_group, [host], CERTIFICATE_DAYS)
    tls = TlsConfig(
        ca=authority / "ca.pem",
        certificate=pair.certificate,
        key=pair.key,
        client_certificates="required",
    )
    file.write_text(dump_toml(config.model_copy(update={"tls": tls}), file.parent))


def _beside(plain: list[Figure], under_tls: list[Figure]) -> list[Figure]:
    """Each figure in the clear, then the same under TLS with its ratio, round by round."""
    found: list[Figure] = []
    for was, now in zip(plain, under_tls, strict=True):
        ratio = None
        if all(was.spread.rounds):
            pairs = zip(now.spread.rounds, was.spread.rounds, strict=True)
            ratio = Spread.of([one / other for one, other in pairs])
        named = replace(now, name=now.name + SUFFIX, yardstick=PLAIN, ratio=ratio, target=None)
        found += [was, named]
    return found
