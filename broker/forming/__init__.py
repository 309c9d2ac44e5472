"""How a group comes into being, and how a disk becomes a member's (ADR 22).

`founding` is what a group is formed as, `planning` decides from what the members say whether and
as what it can be formed, `initiator` carries that out, `member` is one member's side of it on its
disk, `calls` carries both over gRPC. It must never make anybody a member whom not all others, or
the group's own log, have named.
"""
