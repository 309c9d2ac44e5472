"""The log's messages in tables of Delta and Iceberg, each once (ADR 36).

What a table holds is said by the table itself, in the transaction that appends the rows; nothing is
kept beside it. Before a run says so it is on disk (`durable`). `export` orders a run and knows no
table format; `delta` and `iceberg` are the two formats behind its port, and nothing else here
imports their packages.
"""
