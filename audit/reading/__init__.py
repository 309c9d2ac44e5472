"""Which replicas an audit is about, and how it comes by what they hold.

This owns names and places (`replica`), the nodes that run (`live`), the survey of a replica
wherever it lies (`survey`), a node's log over gRPC (`remote`) and the pace that spares a disk.
Files and bytes are read by `dledger.reading`. Nothing here judges what it reads. It calls no other
room; `proof`, `delivery`, `contents`, `measuring` and `commands` call it.
"""
