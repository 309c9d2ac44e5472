"""Audits: what is on replicas' disks, and whether it is what it should be. They only read.

A room a matter; docs/audit.md draws which may call which:

    reading     replicas' files and nodes, as values       engines     who runs the tasks
    proof       are replicas the same? whose fault?        showing     terminal and HTML
    delivery    did clients get what they sent?            measuring   how fast all of this is
    contents    what is in the log: sums, exports          keeping     what was proved before
    tables      messages in Iceberg and Delta tables       commands    `dledger audit ...`

Below them: `dledger.reading` (files, entries, messages as columns), `dledger.spark` (sessions).
"""
