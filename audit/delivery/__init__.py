"""Was every message delivered that clients say they sent? Their histories against the log.

`judge` holds the rules, one queue at a time and pure; `history` reads what clients wrote down;
`judged` is what tasks are told and answer; `check` brings both together on one machine,
`distributed` on Spark. It reads through `reading` and runs on `engines`; `commands` calls it.
"""
