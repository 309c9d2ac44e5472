"""Chaos on real processes: a group behind proxies, clients that write down what they see, faults
on a schedule, and a report of what was found. Run with `dledger chaos run`; see docs/chaos.md."""
