"""What every start of a member checks, before there is a member; and the same as a judgement.

The node and the audit stand on it, so that neither can take a directory for sound that the other
refuses (docs/adr/0031-one-reader-of-a-directory.md).
"""
