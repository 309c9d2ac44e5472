"""Reading a log that belongs to somebody else: its files, its entries, its messages as columns.

This owns what every reader of segments shares, whatever for: the bytes of entries and of the
checkpoint, the names of files, which of them are committed, and many messages at once without an
object for each. Files are only ever read. It stands on the record codecs; `store`, audits and the
Spark table stand on it. Modules that need numpy or pyarrow are imported only by who asks for
columns: `entry`, `checkpoint`, `files` and `survey` do without.
"""
