"""Are all replicas the same log, and is each in itself whole? The checks, pass by pass.

    plan        which blocks are hashed               replicas    the passes, in their order
    digest      their hashes                          report      what comes of them, as values
    compare     which blocks differ                   findings    verdicts and causes: their table
    scan        which entries are in those
    locate      *whose* fault it is: bit rot, a file of another place, divergence
    chain, derived   digests and ConsumeQueues of one replica against its own log

It reads through `reading`, runs its tasks on `engines`, and knows nothing of how a report is shown
or which command wants it.
"""
