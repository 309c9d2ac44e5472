"""What holds for every test."""

from __future__ import annotations

from hypothesis import settings

# A machine that does other things too makes any example slow now and then; that is no defect.
settings.register_profile("any-machine", deadline=None)
settings.load_profile("any-machine")
