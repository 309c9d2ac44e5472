"""Audits: what is on replicas' disks, and whether it is what it should be. They only read.

A room a matter; docs/audit.md draws which may call which:

    reading     replicas' files and nodes, as values       engines     who runs the tasks
    proof       are replicas the same? whose fault?        spark       sessions, the log as a table
    delivery    did clients get what they sent?            showing     terminal and HTML
    contents    what is in the log: sums, exports          measuring   how fast all of this is
    commands    `dledger audit ...`
"""
