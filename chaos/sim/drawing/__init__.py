"""How a seed becomes a plan: what it decides, in the order in which it is drawn.

What is drawn stays what it was: whatever comes to it has a purpose of its own (`Plan.random`), so
that a seed that failed is still the run that failed.
"""
