"""Mutants: seeded defects that the simulator has to find, each a rule broken on purpose.

A simulator that has never found the defect it looks for proves nothing. `catalogue` lists the
defects as changes of source text, `hunt` applies one at a time to a copy of the tree and lets the
simulator run there until something notices.
"""
