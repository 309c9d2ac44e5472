"""A running group's log, copied to where it can be started from again."""
