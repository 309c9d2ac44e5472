"""What is wrong with a broker group, and what to do about it: `dledger group doctor`.

    asking    every member says how it is, twice, a second apart
    facts     what they said, as plain values
    judging   findings from facts, and from nothing else: pure
    finding   what there is to find, the gravest first, and what to do about each

It changes nothing and needs no leader. What no member tells it must never guess.
"""
