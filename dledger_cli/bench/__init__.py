"""Benchmarks: figures of a running group beside yardsticks taken in the same run.

A rate alone says more about the machine than about the program, so each figure stands beside
what the same machine gave a bare gRPC echo, or a bare write and fdatasync, within the same
minute. Nothing here is imported by the broker, and nothing here decides anything: a missed
speed target is printed and fails nothing, a lost message does.
"""
