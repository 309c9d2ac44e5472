"""Malformed and hostile traffic to every port of a group that works: `dledger chaos fuzz`."""
