"""What makes an export into a table write each message once, and what is read where there are no
files: `audit/tables`, `dledger/reading/objects.py`."""

from __future__ import annotations

from chaos.mutants.mutant import Mutant

_READS_ONLY = "nothing is exported while a group is simulated"
_TABLES = ("tests/audit/test_tables.py",)
_STREAM = ("tests/audit/test_stream.py",)
_BEFORE = ("tests/audit/test_damage_before.py",)
_OBJECTS = ("tests/audit/test_objects.py",)

TABLES = (
    Mutant(
        "commands-behind-damage-are-none",
        "dledger/reading/lifetimes.py",
        "        if self._damage is not None and self._known.at < start:\n",
        "        if False and self._damage is not None:\n",
        masked=_READS_ONLY,
        tests=_BEFORE,
    ),
    Mutant(
        "kinds-are-believed-unread",
        "dledger/reading/commands.py",
        "            if not window.is_batch(at, header):\n",
        "            if header.kind == EntryKind.COMMAND or header.is_compound:\n",
        masked=_READS_ONLY,
        tests=_BEFORE,
    ),
    Mutant(
        "units-before-damage-end-the-log",
        "dledger/reading/lifetimes.py",
        "        if self._damage is not None:\n            raise self._damage\n",
        "",
        masked=_READS_ONLY,
        tests=_BEFORE,
    ),
    Mutant(
        "exports-begin-behind-damage",
        "audit/contents/export.py",
        "        lifetimes.check_from(begin.offset)\n",
        "",
        masked=_READS_ONLY,
        tests=_BEFORE,
    ),
    Mutant(
        "iceberg-append-that-lost-is-repeated",
        "audit/tables/iceberg.py",
        '_NO_RETRY: Final = "0"',
        '_NO_RETRY: Final = "4"',
        masked=_READS_ONLY,
        tests=_TABLES,
    ),
    Mutant(
        "restored-and-forgotten-is-whole",
        "audit/tables/delta.py",
        "        return bool(_largest(files.column(_NEWEST)) < last)\n",
        "        return False\n",
        masked=_READS_ONLY,
        tests=_TABLES,
    ),
    Mutant(
        "emptied-and-forgotten-is-whole",
        "audit/tables/delta.py",
        "        if not files.num_rows:\n            return True\n",
        "        if not files.num_rows:\n            return False\n",
        masked=_READS_ONLY,
        tests=_TABLES,
    ),
    Mutant(
        "rows-deleted-on-purpose-are-restored",
        "audit/tables/delta.py",
        "        if is_lacking and (oldest is None or appended is None",
        "        if is_lacking or (is_lacking",
        masked=_READS_ONLY,
        tests=_TABLES,
    ),
    Mutant(
        "what-was-said-of-deleted-rows-is-forgotten",
        "audit/tables/delta.py",
        "oldest > appended + 1):",
        "oldest > 0):",
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
        "stream-goes-on-in-another-log",
        "dledger/reading/places.py",
        "        return digest_of(frame, 0, len(frame), digest) == header.digest\n",
        "        return True\n",
        masked=_READS_ONLY,
        tests=_STREAM,
    ),
    Mutant(
        "no-entry-there-is-damage",
        "dledger/reading/places.py",
        "            except InvalidFrame:\n                return False\n",
        "            except InvalidFrame:\n                return True\n",
        masked=_READS_ONLY,
        tests=_STREAM,
    ),
    Mutant(
        "stream-waits-at-a-log-that-ended-earlier",
        "dledger/spark/source.py",
        "        if self._fails_on_loss and max(log.end, log.settled) < offset:\n",
        "        if False:\n",
        masked=_READS_ONLY,
        tests=_STREAM,
    ),
    Mutant(
        "batch-is-planned-of-what-is-there-now",
        "dledger/reading/places.py",
        "    if None not in (end.digest, found.digest) and end.digest != found.digest:\n",
        "    if False:\n",
        masked=_READS_ONLY,
        tests=_STREAM,
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
        '        if "RESTORE" in {each.get("operation") for each in history}:\n',
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
