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
    replicated.py   all owners together: what a snapshot holds, what holds between any two entries
    effects.py      what an entry does to several owners, whichever way it came
    compound.py     what becomes of each unit of an entry, judged before anything is done
    units.py        units that were judged take effect
    commands.py     commands that are entries by themselves: each taken to its owner
    machine.py      takes each entry apart, in the order of the log; applies data
    queue_files.py  the port through which it derives ConsumeQueues
    refusals.py     why a command took no effect
    snapshot.py     the state as chunks of bytes: what each owner writes, in one envelope
    layout.py       the bytes of such chunks
    errors.py       why such chunks are no state
    replay.py       the state at start, from the log

No owner imports another. An effect that spans owners (a deleted topic takes its offsets and its
producers' numbers along) stands in `effects.py`. A new owner of state is one module here, one line
where commands are routed and its lines in `replicated.py`.
"""
