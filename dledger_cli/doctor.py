"""`dledger group doctor`: what is wrong with a group, and what to do about it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Annotated, Any, Final

import typer

from broker.doctor.asking import ask_group
from broker.doctor.facts import GroupFacts
from broker.doctor.finding import Finding, exit_code_of
from broker.doctor.judging import judge
from broker.local_group import LocalGroup
from dledger.reading.files import printable
from dledger.terminal.options import JsonOption
from dledger.terminal.outcome import end, errors_told, run
from dledger.terminal.output import print_json
from dledger.terminal.tls import chosen_material
from dledger_cli.group_options import (
    DEFAULT_DIRECTORY,
    BootstrapOption,
    DirectoryOption,
    bootstrap_addresses,
)

SCHEMA: Final = "dledger-doctor/1"
WIDTH: Final = 80


def doctor(
    directory: DirectoryOption = DEFAULT_DIRECTORY,
    bootstrap: BootstrapOption = None,
    remedies: Annotated[
        bool, typer.Option("--remedies/--no-remedies", help="Say what to do about each.")
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Ask every member how it is, and say what is wrong, the gravest first, and what to do.

    Members are asked twice, a second apart, so it takes at least that. It changes nothing and needs
    no leader. Ends with 0 if nothing is wrong, 1 if something is, 3 if nobody serves or answers.

    \b
    Examples:
      dledger group doctor
      dledger group doctor --bootstrap 10.0.0.1:7001 --json | jq '.findings[0]'
    """
    with errors_told():
        addresses, tls = bootstrap_addresses(bootstrap, directory), chosen_material()
        names = {}
        if bootstrap is None:
            names = {node.address: node.id for node in LocalGroup.open(directory).nodes}
    facts = run(ask_group(addresses, tls, names))
    findings = judge(facts)
    if as_json:
        print_json(_as_json(facts, findings))
    else:
        for line in _lines(facts, findings, remedies=remedies):
            typer.echo(printable(line))
    end(exit_code_of(findings))


def _as_json(facts: GroupFacts, findings: tuple[Finding, ...]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "exit_code": int(exit_code_of(findings)),
        "asked": [member.id for member in facts.members],
        "silent": [each.id or each.address for each in facts.silent],
        "findings": [
            {
                "kind": each.kind.value,
                "gravity": each.kind.gravity.value,
                "member": each.member,
                "detail": each.detail,
                "remedy": each.remedy,
                "runbook": each.kind.runbook,
            }
            for each in findings
        ],
    }


def _lines(facts: GroupFacts, findings: tuple[Finding, ...], *, remedies: bool) -> Iterator[str]:
    for each in findings:
        whose = f" ({each.member})" if each.member else ""
        yield from _wrapped(f"{each.kind.gravity.value.upper()}: {each.kind}{whose}")
        yield from _wrapped(f"  {each.detail}", 2)
        if remedies:
            yield from _wrapped(f"  do: {each.remedy}", 6)
            yield from _wrapped(f"  see: {each.kind.runbook}", 7)
    heard = f"{len(facts.members)} of {len(facts.members) + len(facts.silent)} nodes answered"
    count = f"{len(findings)} findings" if len(findings) != 1 else "1 finding"
    yield from _wrapped(f"{heard}; {count if findings else 'nothing is wrong'}")


def _wrapped(text: str, indent: int = 0) -> Iterator[str]:
    """In lines of the terminal's width; a word that is longer is cut."""
    yield from textwrap.wrap(printable(text), WIDTH, subsequent_indent=" " * indent)
