"""The packaged scenarios, one small file each; write your own like them (docs/chaos.md)."""
