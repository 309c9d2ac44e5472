"""What holds for every test."""

from __future__ import annotations

import signal

from hypothesis import settings

# Tests interrupt programs. Started in the background of a script this process ignores SIGINT, and
# so would what it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A machine that does other things too makes any example slow now and then; that is no defect.
settings.register_profile("any-machine", deadline=None)
settings.load_profile("any-machine")
