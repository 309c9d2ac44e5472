"""The group that only is asked, as in tests/integration."""

from tests.broker.conftest import running_loop
from tests.integration.conftest import loop, shared

__all__ = ["loop", "running_loop", "shared"]
