"""How fast audits are: replicas to measure with (`sample`), the figures beside yardsticks
(`bench`), and the memory of all processes (`process_tree`). It calls what it measures, `proof`,
`reading` and `engines`; `commands` calls it.
"""
