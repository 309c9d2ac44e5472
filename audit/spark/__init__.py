"""Spark's side: the session and its Java, the zip that executors import, the log as a table.

`source` is what users register; the rest starts Spark. It reads through `reading`; `engines` and
`commands` call it, and nothing imports it before Spark is asked for.
"""
