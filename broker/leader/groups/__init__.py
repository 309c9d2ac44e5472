"""What a leader does about consumer groups (ADR 55), none of which is in the log.

presence.py    who has been heard of lately, in ticks
strategies.py  who is to have which queue
planning.py    what has to be granted, asked for and taken, for that to come true
starting.py    where a group starts in a topic
keeper.py      proposes all of it, and tells whom it concerns
"""
