"""The group that only is asked, as in tests/integration."""

from tests.integration.conftest import loop, shared

__all__ = ["loop", "shared"]
