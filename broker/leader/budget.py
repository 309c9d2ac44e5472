"""How many bytes of requests and answers a node keeps in memory at once.

Counts alone bound nothing: forty clients that ask for 8 MiB each and don't read the answers
would hold a gigabyte. What is over the budget is refused as BUSY before anything happened, or
made smaller; it never waits. What has happened already is counted, over the limit if need be.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from broker.errors import BrokerError, ErrorCode

ANSWER_BYTES: Final = 32 << 20  # over all answers that clients have not read yet


class ByteBudget:
    """Bytes in use of a limit; one owner thread."""

    def __init__(self, limit_bytes: int, purpose: str) -> None:
        """Nothing is in use.

        Args:
            limit_bytes: what may be in use; a single larger item is taken when nothing else is.
            purpose: what the bytes are, for the error's text.
        """
        self._limit = limit_bytes
        self._purpose = purpose
        self.used_bytes = 0

    @property
    def left_bytes(self) -> int:
        """What may be taken still; 0 when the budget is used up."""
        return max(0, self._limit - self.used_bytes)

    def check_room(self) -> None:
        """Returns if anything may be taken still.

        Raises:
            BrokerError: BUSY.
        """
        if not self.left_bytes:
            raise self._used_up()

    def take(self, size: int) -> None:
        """`size` more bytes are in use, until `give_back`.

        Raises:
            BrokerError: BUSY; nothing was taken.
        """
        if self.used_bytes and self.used_bytes + size > self._limit:
            raise self._used_up()
        self.used_bytes += size

    def _used_up(self) -> BrokerError:
        text = f"{self.used_bytes} bytes of {self._purpose} are under way, the limit is "
        return BrokerError(ErrorCode.BUSY, f"{text}{self._limit}")

    def add(self, size: int) -> None:
        """`size` more bytes are in use, until `give_back`: they can't be refused any more. Whoever
        adds has looked at `check_room` before it came to that, so the limit is passed by no more
        than what was under way then."""
        self.used_bytes += size

    def hold(self, size: int) -> Callable[[], None]:
        """As `add`, until what this gives is called."""
        self.add(size)
        return partial(self.give_back, size)

    def give_back(self, size: int) -> None:
        """`size` bytes are in use no more."""
        self.used_bytes -= size
