"""How an audit comes by what replicas hold: their files, what their nodes say, their messages.

This owns every way to a replica's bytes (files on this machine, gRPC to a node that serves) and
the values that come of it: which files there are, which of them are committed, entries, records,
columns. Nothing here judges what it reads, and nothing writes. It calls no other room; every room
but `showing` calls it.
"""
