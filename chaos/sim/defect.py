"""What a check of the simulator raises."""

from __future__ import annotations


class Defect(AssertionError):
    """Something happened that no fault explains. `check` names what noticed it."""

    def __init__(self, check: str, detail: str) -> None:
        super().__init__(f"{check}: {detail}")
        self.check = check
        self.detail = detail
