"""Checkers: from a history of what clients did and saw to the anomalies in it.

Shared by the simulator and by runs against real processes. Nothing here knows how the history
came about, and nothing here may guess: an operation whose outcome the client doesn't know is
neither ok nor failed.
"""
