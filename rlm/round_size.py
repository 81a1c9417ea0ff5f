"""How much is appended between two uploads by producers that wait for the one before, sans-IO."""

from typing import Final

_WEIGHT: Final = 1 / 4
"""Of the newest round that was smaller, so that a load that changes is recognised within a few."""
_WHOLE: Final = 0.99
"""Batches differ a little in size."""


class RoundSize:
    """By the last rounds: the largest at once, smaller ones by and by, as one of those who wait may be late."""

    def __init__(self) -> None:
        self.size_bytes = 0.0

    @property
    def whole_bytes(self) -> float:
        """From so much on a round is taken for a whole one."""
        return self.size_bytes * _WHOLE

    def add(self, size_bytes: int) -> None:
        """A round of so many bytes."""
        if size_bytes > self.size_bytes:
            self.size_bytes = size_bytes
        else:
            self.size_bytes += _WEIGHT * (size_bytes - self.size_bytes)
