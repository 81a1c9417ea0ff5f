"""Whether those who append wait for what is uploaded, and how much they append between two uploads, sans-IO.

Producers with acks=all append, wait until the followers have it, and append again: between two of their rounds nothing
comes, so an upload should begin as soon as they are all waiting. They are when as much has come as in the rounds
before; a silence tells it too, but later, as it must be longer than the gaps within a round. Producers with acks=1 go
on whatever becomes of their records: the pauses between their batches mean nothing, and an upload at each of them would
only make objects small. The broker's files do not tell acks; what is appended while an upload is under way does.
"""

from typing import Final

from kafka_log.topic_partition import TopicIdPartition
from rlm.round_size import RoundSize

_WEIGHT: Final = 1 / 4
"""Of the newest upload, so that a load that changes is recognised within a few."""
_MOST: Final = 0.5


class AppendRhythm:
    """Judges by the last few uploads of a load. Until there are any, producers are taken to wait."""

    def __init__(self) -> None:
        self._share_disturbed = 0.0
        self._round = RoundSize()
        self._unread_bytes: dict[TopicIdPartition, int] = {}

    @property
    def producers_wait(self) -> bool:
        """Whether most of the last uploads met a silence that lasted until they were stored."""
        return self._share_disturbed < _MOST

    def appended(self, partition: TopicIdPartition, unread_bytes: int) -> None:
        """The partition's log has so many bytes that were not read yet."""
        self._unread_bytes[partition] = unread_bytes

    def read(self) -> None:
        """What was told of is about to be read."""
        self._unread_bytes.clear()

    def is_round(self, queued_bytes: int) -> bool:
        """Whether these, with what was not read yet, are what all who wait append between two uploads."""
        size_bytes = queued_bytes + sum(self._unread_bytes.values())
        return self.producers_wait and size_bytes >= self._round.whole_bytes

    def upload_started(self, size_bytes: int) -> None:
        """An upload of so many bytes began."""
        self._round.add(size_bytes)

    def upload_ended(self, appended_meanwhile: bool) -> None:
        """An upload is stored; whether anything was appended since it began."""
        self._share_disturbed += _WEIGHT * (appended_meanwhile - self._share_disturbed)
