"""The replicated state: what every node holds alike because every node applies the same log.

    lived_time.py   how long the group has been at work: the time that forgetting counts
    topics.py       which topics there are, and where each of their queues goes on
    offsets.py      how far each consumer group has come
    groups.py       consumer groups, what their members agreed on, who is a member
    leases.py       which member holds which queue, and what is finished there
    consuming.py    what commands about groups do to several owners
    producers.py    who is registered and what each stored last, so that a retry is stored once
    registration.py what a producer registers with, and how many there may be
    sequences.py    what producers.py keeps of one producer in one queue
    outcomes.py     which units were refused, until the log says so
    compound.py     what becomes of each unit of an entry, judged before anything is done
    machine.py      gives each entry to its owners; the only one that knows them all
    refusals.py     why a command took no effect
    snapshot.py     the state as chunks of bytes: what each owner writes, in one envelope
    layout.py       the bytes of such chunks
    errors.py       why such chunks are no state
    replay.py       the state at start, from the log

No owner imports another. An effect that spans owners (a deleted topic takes its offsets and its
producers' numbers along) is routed by the machine. A new owner of state is one module here, one
line where the machine routes and one in its list of sections.
"""
