"""Reads `leader-epoch-checkpoint`, Kafka's file beside the segments that says where each leader epoch begins.

Kafka replaces the file by renaming a new one over it, before it appends the first batch of a new epoch. After a
truncation it may lag for a moment.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from pathlib import Path

from kafka_log.errors import MalformedFileError

__all__ = [
    "FILE_NAME", "NO_EPOCHS", "UNKNOWN_EPOCH", "LeaderEpochs", "MalformedFileError", "parse_leader_epochs",
    "read_leader_epochs",
]  # fmt: skip

FILE_NAME = "leader-epoch-checkpoint"
UNKNOWN_EPOCH = -1


class LeaderEpochs:
    """Pairs of (leader epoch, its first offset), both growing. Immutable.

    The record at an offset belongs to the last epoch that starts at or below it. Whatever another epoch's leader
    wrote at that offset was truncated away (KIP-101, KIP-405's leader epoch lineage).
    """

    __slots__ = ("_epochs", "_starts", "entries")

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        """Take (leader epoch, first offset) pairs. Raises ValueError when epochs do not grow, or start offsets
        shrink."""
        self.entries = tuple(entries)
        self._epochs = [epoch for epoch, _ in self.entries]
        self._starts = [start for _, start in self.entries]
        for (epoch, start), (next_epoch, next_start) in zip(self.entries, self.entries[1:], strict=False):
            if next_epoch <= epoch or next_start < start:
                raise ValueError(f"leader epoch {next_epoch} at offset {next_start} does not follow {epoch} at {start}")

    def epoch_for(self, offset: int) -> int:
        """Return the epoch whose leader wrote `offset`; UNKNOWN_EPOCH when that is before the first entry."""
        index = bisect_right(self._starts, offset) - 1
        return self._epochs[index] if index >= 0 else UNKNOWN_EPOCH

    def start_offset(self, epoch: int) -> int | None:
        """Return the first offset of `epoch`, or None when that epoch is not in the chain."""
        index = bisect_right(self._epochs, epoch) - 1
        return self._starts[index] if index >= 0 and self._epochs[index] == epoch else None

    def end_offset_for(self, epoch: int) -> int | None:
        """Return the (exclusive) end of an epoch: where the next higher one begins; None for the newest, which has
        no end."""
        index = bisect_right(self._epochs, epoch)
        return self._starts[index] if index < len(self._starts) else None

    def end_of(self, epoch: int) -> int | None:
        """Return the offset from which on this epoch's records are not in the log; None when it has no end.

        An epoch that the chain skips never wrote a record that lasted: 0. One older than the whole chain (whose head
        goes with the log's start) ends where the chain begins. For one newer than the chain, the end is unknown: None.
        """
        if not self._epochs or epoch > self._epochs[-1]:
            return None
        index = bisect_left(self._epochs, epoch)
        if self._epochs[index] == epoch:
            return self.end_offset_for(epoch)
        return self._starts[0] if index == 0 else 0

    def epoch_at(self, offset: int) -> int | None:
        """Return the epoch whose leader wrote `offset`; None before the first entry."""
        epoch = self.epoch_for(offset)
        return None if epoch == UNKNOWN_EPOCH else epoch

    def agrees_to(self, later: "LeaderEpochs", end: int) -> int:
        """Return up to where, at most `end`, the log with these epochs equals the log with the `later` ones.

        An offset with the same epoch in both was written by the same leader. What lies before the first entry of either
        was removed by retention and is not judged; nor is anything while one of them is empty.
        """
        if not self.entries or not later.entries:
            return end
        known_from = max(self._starts[0], later.entries[0][1])
        for epoch, start, behind in zip(self._epochs, self._starts, [*self._starts[1:], end], strict=True):
            first = max(start, known_from)
            if first < min(behind, end):
                if later.epoch_for(first) != epoch:
                    return first
                later_end = later.end_offset_for(epoch)
                if later_end is not None and later_end < min(behind, end):
                    return later_end
        return end

    def newest_first(self) -> list[int]:
        return self._epochs[::-1]

    @property
    def newest_epoch(self) -> int | None:
        """The highest leader epoch; None when the log is empty and never had a leader."""
        return self._epochs[-1] if self._epochs else None

    @property
    def latest_epoch(self) -> int:
        return self._epochs[-1] if self._epochs else UNKNOWN_EPOCH

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LeaderEpochs) and self.entries == other.entries

    def __hash__(self) -> int:
        return hash(self.entries)

    def __repr__(self) -> str:
        return f"LeaderEpochs({self.entries!r})"


NO_EPOCHS = LeaderEpochs()
"""The epochs of a log that never had a leader."""


def parse_leader_epochs(text: str, path: Path) -> LeaderEpochs:
    """Parse a checkpoint: version 0, the number of entries, and a line "epoch startOffset" for each.

    Raises MalformedFileError.
    """
    lines = text.splitlines()
    if not lines or lines[0].strip() != "0":
        raise MalformedFileError(path, 1, f"version {lines[0] if lines else ''!r}, expected 0")
    count_text = lines[1].strip() if len(lines) > 1 else ""
    if not count_text.isascii() or not count_text.isdigit():
        raise MalformedFileError(path, 2, f"{count_text!r} is no number of entries")
    body = [line for line in lines[2:] if line.strip()]
    if len(body) != int(count_text):
        raise MalformedFileError(path, len(body) + 2, f"{len(body)} entries, line 2 says {count_text}")
    try:
        return LeaderEpochs(map(_entry, body))
    except ValueError:
        for number in range(len(body)):
            try:
                LeaderEpochs(map(_entry, body[max(number - 1, 0) : number + 1]))
            except ValueError as error:
                raise MalformedFileError(path, number + 3, f"{body[number]!r}: {error}") from error
        raise


def _entry(line: str) -> tuple[int, int]:
    epoch_text, start_text = line.split()
    return int(epoch_text), int(start_text)


def read_leader_epochs(partition_dir: Path) -> LeaderEpochs:
    """Read the checkpoint of a partition directory; empty when there is no file yet.

    Raises MalformedFileError, or OSError when the file cannot be read.
    """
    path = partition_dir / FILE_NAME
    try:
        text = path.read_bytes().decode("ascii", errors="replace")
    except FileNotFoundError:
        return NO_EPOCHS
    return parse_leader_epochs(text, path)
