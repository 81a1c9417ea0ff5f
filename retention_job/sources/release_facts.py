"""The facts that decide how long an entry must be kept, as arrays that travel to the executors. Sans-IO.

An entry is wanted while its topic exists, a log still holds its last offset, and the long-term tier does not. It is
then kept for the WAL's retention of its topic, counted from the writing of its object; without end if that is endless
or unknown, and while the topic's archive waits for it. So one number per object is enough: the longest of its wanted
entries. This is the rule of `rlm.lifecycle.release`, by what the job can know. It does not read the leader epochs of
the tier's copies, so it may take an object for released that an agent still keeps. That does no harm, because agents
judge again before they delete.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

FOREVER: Final = 2**63 - 1
"""A retention that does not end, or is unknown."""


@dataclass(frozen=True, slots=True)
class ReleaseFacts:
    """What decides how long entries must be kept, made by `of`; picklable, and small: 16 bytes per partition."""

    ordinals: Mapping[bytes, int]
    retention_ms: Ints
    """Retention per topic, by ordinal."""
    partition_keys: Ints
    """Ordinal << 32 | partition, sorted."""
    released_before: Ints
    """By partition key: offsets below this one are in no log any more, or on the tier."""

    @classmethod
    def of(cls, retention_ms: Mapping[bytes, int | None], released_before: Mapping[tuple[bytes, int], int]) -> Self:
        """Build the facts; `retention_ms` is by the id of topics not known to be deleted: -1 is for ever, None
        unknown."""
        ordinals = {topic_id: number for number, topic_id in enumerate(retention_ms)}
        kept = [FOREVER if value is None or value < 0 else value for value in retention_ms.values()]
        keyed = sorted(
            (ordinals[topic_id] << 32 | partition, offset)
            for (topic_id, partition), offset in released_before.items()
            if topic_id in ordinals
        )
        return cls(
            ordinals,
            np.array([*kept, 0], dtype=np.int64),  # the last one is that of topics that are gone
            np.array([key for key, _ in keyed], dtype=np.int64),
            np.array([offset for _, offset in keyed], dtype=np.int64),
        )

    def retention_of(self, topic_ids: list[bytes], codes: Ints, partition: Ints, last_offset: Ints) -> Ints:
        """Return for each entry how long it must be kept, in ms; 0 if it is not needed. `codes` index `topic_ids`."""
        gone = len(self.retention_ms) - 1
        ordinal = np.array([self.ordinals.get(topic_id, gone) for topic_id in topic_ids], dtype=np.int64)[codes]
        kept = self.retention_ms[ordinal]
        if not len(self.partition_keys):
            return kept
        wanted_key = (ordinal << 32) | partition
        at = np.minimum(np.searchsorted(self.partition_keys, wanted_key), len(self.partition_keys) - 1)
        is_released = (self.partition_keys[at] == wanted_key) & (last_offset < self.released_before[at])
        return np.where(is_released, 0, kept)
