"""Members of consumer groups: sessions, leases, and the work on what they bring.

    finished        which offsets of a queue are finished, and what of that a commit names
    process_queue   one leased queue: what is fetched, handed out, behind its key, to be tried again
    member          a session and its leases: what may be started, pulled, committed, released
    attendance      the stream of all members of a client to the leader
    membership      one member's calls: pulls, commits, hand-overs, goodbye
    workers         handlers: coroutines in a pool, functions on threads
    push, pull      what users see
    kept_offsets    a broadcast group's offsets, in a file
    offsets_format  what that file says

The first three are pure: they are told what happened and when, and have neither a clock nor I/O.
Source: docs/adr/0055-consumer-groups.md, "What a client does".
"""
