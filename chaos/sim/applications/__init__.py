"""The product's client library in the simulated world: real `dledger.client` code, real nodes.

`channel` is gRPC's place: what the library dials, calls and listens to. `process` is a client's
process, with its clocks and its chance. `programs` are applications that use the library as users
do, `books` what they were promised, and `run` the schedule: load under faults of nodes, networks
and clients, then peace, and a look at whether every promise was kept.
"""
