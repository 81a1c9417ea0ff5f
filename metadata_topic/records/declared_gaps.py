"""What agents have declared about offsets that are in no object: gaps, and where the upload of a log began.

Theory. A declaration is of the log as its leader of some epoch had it: the offsets [from, to) that the log has in that
epoch or an older one. Should the log be cut off below, and written anew in a newer epoch, it says nothing of these
records; so it counts up to where an epoch newer than the declarer's begins. It never speaks against what is stored: who
looks for gaps looks for what no object holds first.

A join of all that was declared, so order and repetition do not matter; but for the bound on how many are kept, by which
the oldest go.

Not thread-safe.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.records.leader_epochs import LeaderEpochChain

KEPT_MAX: Final = 500_000


class GapReason(IntEnum):
    """Why records are in no object. The number is in the metadata topic."""

    BEFORE_UPLOAD = 0
    """They were in the log before its upload began, with the active segment: nobody wanted them stored."""
    RETENTION = 1
    """Retention, or a deletion of records, removed them from the log before they were stored."""
    UNREADABLE = 2
    """They stood behind a damaged batch of a closed segment."""
    RELEASED = 3
    """Nobody wants them any more, as records above went with their objects: so says a rebuild of the topic. The store
    holds it as `metadata_topic.store.released_offsets`, and never as a gap.
    """

    @property
    def is_loss(self) -> bool:
        """Whether records are missing that were to be stored."""
        return self in (GapReason.RETENTION, GapReason.UNREADABLE)


@dataclass(frozen=True, slots=True, order=True)
class DeclaredGap:
    """Offsets [from_offset, to_offset) of a log that are not to be had from object storage; none, if both are equal."""

    topic_id_partition: TopicIdPartition
    from_offset: int
    to_offset: int
    leader_epoch: int
    """The newest that the log had when this was declared."""
    reason: GapReason

    def end_in(self, leader_epochs: LeaderEpochChain) -> int:
        """Up to where it counts for a log with these epochs."""
        newer = leader_epochs.end_offset_for(self.leader_epoch)
        return self.to_offset if newer is None else min(self.to_offset, newer)


class DeclaredGaps:
    """All that is known, by partition."""

    def __init__(self, known: Iterable[DeclaredGap] = (), kept_max: int = KEPT_MAX) -> None:
        self._kept_max = kept_max
        self._of: dict[TopicIdPartition, dict[DeclaredGap, None]] = {}
        self._count = 0
        self.add(known)

    def add(self, gaps: Iterable[DeclaredGap]) -> None:
        """Take declarations in."""
        for gap in gaps:
            known = self._of.setdefault(gap.topic_id_partition, {})
            self._count += gap not in known
            known[gap] = None
        while self._count > self._kept_max:
            oldest = next(iter(self._of))
            self._count -= len(self._of.pop(oldest))

    def of(self, topic_id_partition: TopicIdPartition) -> list[DeclaredGap]:
        """By their offsets."""
        return sorted(self._of.get(topic_id_partition, ()))

    def __iter__(self) -> Iterator[DeclaredGap]:
        return (gap for known in self._of.values() for gap in known)
