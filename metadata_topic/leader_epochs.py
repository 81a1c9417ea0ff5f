"""Which leader epoch's records are the log's, offset by offset (KIP-101, KIP-405's leader epoch lineage)."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable


class LeaderEpochChain:
    """A log's leader epochs with their start offsets, as the leader-epoch-checkpoint has them.

    The record at an offset belongs to the last epoch that starts at or below it. Whatever another epoch's
    leader wrote at that offset was truncated away.
    """

    __slots__ = ("_epochs", "_starts")

    def __init__(self, epochs_and_start_offsets: Iterable[tuple[int, int]]) -> None:
        """Raises ValueError when epochs or start offsets do not ascend."""
        self._epochs: list[int] = []
        self._starts: list[int] = []
        for epoch, start_offset in epochs_and_start_offsets:
            if self._epochs and (epoch <= self._epochs[-1] or start_offset < self._starts[-1]):
                raise ValueError(f"leader epoch {epoch} at offset {start_offset} does not follow its predecessor")
            self._epochs.append(epoch)
            self._starts.append(start_offset)

    @property
    def newest_epoch(self) -> int | None:
        """None when the log is empty and never had a leader."""
        return self._epochs[-1] if self._epochs else None

    def epoch_at(self, offset: int) -> int | None:
        """The epoch of the record at `offset`; None below the first epoch known."""
        index = bisect_right(self._starts, offset) - 1
        return self._epochs[index] if index >= 0 else None

    def start_offset(self, epoch: int) -> int | None:
        """The first offset of this epoch; None when the chain does not have it."""
        index = bisect_left(self._epochs, epoch)
        return self._starts[index] if index < len(self._epochs) and self._epochs[index] == epoch else None

    def end_of(self, epoch: int) -> int | None:
        """The offset from which on this epoch's records are not the log's; None when nothing ends them.

        An epoch that the chain skips never wrote a record that lasted: 0. One older than the whole chain
        (whose head goes with the log's start) ends where the chain begins. For one newer than the chain,
        nothing is known: None.
        """
        if not self._epochs or epoch > self._epochs[-1]:
            return None
        index = bisect_left(self._epochs, epoch)
        if self._epochs[index] == epoch:
            return self._starts[index + 1] if index + 1 < len(self._starts) else None
        return self._starts[0] if index == 0 else 0

    def newest_first(self) -> list[int]:
        """The epochs, descending."""
        return self._epochs[::-1]
