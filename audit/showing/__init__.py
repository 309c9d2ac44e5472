"""How results look: at a terminal and as HTML pages that need nothing beside them.

Values in, text out; what it shows comes from a log and from file names, so it is escaped here. It
knows the values of `proof` and `contents`, reads no replica and decides nothing: `commands` says
what is shown where.
"""
