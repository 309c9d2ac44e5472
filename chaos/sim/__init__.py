"""The deterministic simulator: real nodes on simulated disks, network and time.

One seed decides everything. The core, the driver, the store and the broker are the real ones;
below them lie a network that loses, delays, repeats and cuts, disks that forget what was not
synced, and clocks that drift. Nothing here may read a real clock, draw from global randomness or
iterate over a set of strings: then the same seed would not be the same run.

Source: FoundationDB's simulation, TigerBeetle's VOPR, swarm testing (Groce et al., ISSTA 2012).
"""
