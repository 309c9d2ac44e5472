"""The faults of the simulator, a family a module: what each does, and what ends it.

A family is a class with `strikes`, its rows of the nemesis' table. Whom a fault meets and when its
consequences come is asked of one `Aim`, which knows whether peace has come.
"""
