"""The store: the log's segments, recovery, ConsumeQueues. Files and bytes, no Raft roles, no gRPC.

Nothing is re-exported here. The formats are not the store's: those of records are
`dledger.records`, those of entries and of the checkpoint `dledger.reading`. Clients and audits
import them without the file layer.
"""
