"""The group that only is asked, as in tests/integration."""

from tests.broker.conftest import machines_end
from tests.integration.conftest import loop, shared

__all__ = ["loop", "machines_end", "shared"]
