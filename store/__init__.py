"""The store: the log's segments, recovery, ConsumeQueues. Files and bytes, no Raft roles, no gRPC.

Nothing is re-exported here: the formats (`record`, `entry`, `properties`, `dispatch`, `errors`)
are imported by clients and audits, which have no use for the file layer below `commitlog`.
"""
