"""`dledger audit ...`: one module a command, put together in `app`.

The process boundary: options are parsed, errors become a line and an exit code (`outcome`), pages
and reports are written. `watching` audits on and on. It may call every room; only the program
imports it.
"""
