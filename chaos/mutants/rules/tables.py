"""What makes an export into a table write each message once, and what is read where there are no
files: `audit/tables`, `dledger/reading/objects.py`."""

from __future__ import annotations

from chaos.mutants.mutant import Mutant

_READS_ONLY = "nothing is exported while a group is simulated"
_TABLES = ("tests/audit/test_tables.py",)
_OBJECTS = ("tests/audit/test_objects.py",)

TABLES = (
    Mutant(
        "iceberg-append-that-lost-is-repeated",
        "audit/tables/iceberg.py",
        '_NO_RETRY: Final = "0"',
        '_NO_RETRY: Final = "4"',
        masked=_READS_ONLY,
        tests=_TABLES,
    ),
    Mutant(
        "position-behind-its-rows",
        "audit/tables/export.py",
        "            table.append(rows, Mark(at, step.digest)",
        "            table.append(rows, Mark(step.part.start, step.digest)",
        masked=_READS_ONLY,
        tests=_TABLES,
    ),
    Mutant(
        "another-log-goes-on-where-one-ended",
        "audit/tables/steps.py",
        "    if is_here and digest_of(frame, 0, header.total_size, digest) == header.digest:\n",
        "    if is_here:\n",
        masked=_READS_ONLY,
        tests=_TABLES,
    ),
    Mutant(
        "hole-in-a-table-is-not-told",
        "audit/reading/survey.py",
        "    if log.retained_from > position and not accept_retention:\n",
        "    if False:\n",
        masked=_READS_ONLY,
        tests=(*_TABLES, "tests/audit/test_export.py"),
    ),
    Mutant(
        "queue-in-a-table-goes-back",
        "audit/tables/export.py",
        '        if known is not None and row["queue_offset_min"] < known:\n',
        "        if False:\n",
        masked=_READS_ONLY,
        tests=_TABLES,
    ),
    Mutant(
        "restored-table-goes-on",
        "audit/tables/delta.py",
        '        if "RESTORE" in operations:\n',
        "        if False:\n",
        masked=_READS_ONLY,
        tests=_TABLES,
    ),
    Mutant(
        "object-that-was-fetched-is-never-asked-for-again",
        "dledger/reading/objects.py",
        "            if known is None or known[0] != version:\n",
        "            if known is None:\n",
        masked=_READS_ONLY,
        tests=_OBJECTS,
    ),
    Mutant(
        "silent-store-holds-nothing",
        "dledger/reading/ranges.py",
        "    if found.silent:\n",
        "    if False:\n",
        masked=_READS_ONLY,
        tests=_OBJECTS,
    ),
    Mutant(
        "starts-and-queues-are-asked-of-a-store",
        "audit/proof/replicas.py",
        "asked or stored else Files.ALL",
        "asked else Files.ALL",
        masked=_READS_ONLY,
        tests=_OBJECTS,
    ),
)
