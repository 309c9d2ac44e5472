"""What is in the log: sums by topic and queue (`stats`, `timeline`), and messages as files
(`export`). It trusts the log and checks nothing against other replicas. It reads through `reading`
and runs on `engines`; `showing` draws what it counts and `commands` calls it.
"""
