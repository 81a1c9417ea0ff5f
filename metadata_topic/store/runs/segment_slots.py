"""Small numbers for segments that are indexed, by which rows of the index name them.

A number whose segment is gone may still stand in the index, and is given away anew once it does not. Not thread-safe.
"""

from array import array

import numpy as np


class SegmentSlots:
    """Five bytes for each, and no Python object."""

    def __init__(self) -> None:
        self.rows = np.zeros(1024, dtype=np.uint32)
        """By slot, the segment's row."""
        self.alive = np.zeros(1024, dtype=np.bool_)
        self._made = 0
        self._free = array("I")
        self._dead = array("I")

    def take(self, row: int) -> int:
        """One for the segment in that row."""
        slot = self._free.pop() if self._free else self._made
        if slot == self._made:
            self._made += 1
            if slot == len(self.alive):
                self.alive = np.concatenate((self.alive, np.zeros_like(self.alive)))
                self.rows = np.concatenate((self.rows, np.zeros_like(self.rows)))
        self.rows[slot] = row
        self.alive[slot] = True
        return slot

    def give_back(self, slot: int, *, is_in_the_index: bool) -> None:
        """Its segment is gone."""
        self.alive[slot] = False
        (self._dead if is_in_the_index else self._free).append(slot)

    def swept(self) -> None:
        """None that is dead stands in the index any more."""
        self._free.extend(self._dead)
        self._dead = array("I")

    def too_many_are_dead(self, at_least: int) -> bool:
        """More than half."""
        return len(self._dead) > max(at_least, self._made // 2)
