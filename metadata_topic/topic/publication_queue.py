"""The records that wait to be published, and those not acknowledged yet: bounded by number, bytes and time.

`metadata_topic.topic.publisher` has the theory. Any thread may call any method.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from metadata_topic.records.errors import MetadataRecordTooLargeError, PublicationBacklogFullError
from metadata_topic.records.publishable import Publishable, broker_of, encoded, name_of
from metadata_topic.records.records import RemoteWalNodeRegistration
from metadata_topic.records.serde import encode_key
from metadata_topic.topic.topic import METADATA_TOPIC
from plugin.segment_metadata import CombinedSegmentId


@dataclass(frozen=True, slots=True)
class PublisherSettings:
    """The limits of the queue of records to publish, and how long records are gathered into one group."""

    topic: str = METADATA_TOPIC
    linger_ms: int = 250
    """Nobody waits for the metadata to replicate, and 25 objects' entries compress better together than one's."""
    max_pending_records: int = 100_000
    max_pending_bytes: int = 64 * 1024 * 1024
    unpublished_max_ms: int = 60_000
    """How long metadata may wait. Then all goes inline and nothing is uploaded until it can be published (guessed)."""
    max_record_bytes: int = 900_000
    """Below the broker's message.max.bytes (1,048,588), so that no record is refused for good."""
    retry_pause_ms: int = 1000
    unanswered_ms: int = 30_000
    """How long a producer may go without acknowledgement: longer than a change of leader takes."""


DEFAULT_SETTINGS = PublisherSettings()


class PendingRecord:
    __slots__ = ("acknowledged", "broker_id", "key", "since_s", "value")

    def __init__(self, broker_id: int, key: bytes, value: bytes, since_s: float) -> None:
        self.broker_id = broker_id
        self.key = key
        self.value = value
        self.since_s = since_s
        self.acknowledged = False


class PublicationQueue:
    """The queue of records that an agent publishes; a subclass sends them."""

    def __init__(self, clock: Callable[[], float], settings: PublisherSettings) -> None:
        self._clock = clock
        self._settings = settings
        self._changed = threading.Condition()
        self._waiting: deque[PendingRecord] = deque()
        self._sent: deque[PendingRecord] = deque()
        self._bytes = 0
        self._records_by_key: Counter[bytes] = Counter()
        self._awaited: dict[bytes, list[Callable[[], object]]] = {}
        """Callbacks for when no record of a key waits any more."""
        self._waits_for = ""
        self._held: str | None = None
        self._closing = False
        self._counters: Counter[str] = Counter()

    def publish(self, record: Publishable) -> None:
        """Queue a record for the partition of the broker that it, or its object, is about; returns at once.

        Raises PublicationBacklogFullError when too much already waits, MetadataRecordTooLargeError when the record is
        above the limit, ValueError when it cannot be encoded. Nothing was queued then.
        """
        key, value = encoded(record)
        name = name_of(record)
        if len(value) > self._settings.max_record_bytes:
            raise MetadataRecordTooLargeError(
                "publish metadata",
                name,
                f"{len(value)} bytes, at most {self._settings.max_record_bytes} are taken",
                "combine fewer partitions' records into one object",
            )
        with self._changed:
            refused = self._refuses(record, len(value))
            if refused is not None:
                self._counters["refused"] += 1
                raise PublicationBacklogFullError(
                    "publish metadata",
                    name,
                    refused,
                    "stop uploading until it can be published",
                )
            is_first = not self._waiting
            self._waiting.append(PendingRecord(broker_of(record), key, value, self._clock()))
            self._bytes += len(value)
            self._records_by_key[key] += 1
            self._counters["queued"] += 1
            if is_first or self._awaited:  # later ones are gathered while it lingers, and wake nobody
                self._changed.notify_all()

    def _left(self, record: PendingRecord) -> None:
        """Remove an acknowledged record from the counts; called under the lock."""
        self._bytes -= len(record.value)
        self._records_by_key[record.key] -= 1
        if not self._records_by_key[record.key]:
            del self._records_by_key[record.key]
            for tell in self._awaited.pop(record.key, ()):
                tell()
        self._counters["acknowledged"] += 1

    def _refuses(self, record: Publishable, size: int) -> str | None:
        """Return why the record is not accepted now."""
        if self._closing:
            return "the publisher is closing"
        records = len(self._waiting) + len(self._sent)
        if records >= self._settings.max_pending_records or self._bytes + size > self._settings.max_pending_bytes:
            return f"{records} records with {self._bytes} bytes wait for {self._settings.topic}"
        # A restarted agent must be able to register: that uploads nothing.
        return None if isinstance(record, RemoteWalNodeRegistration) else self.stall_reason()

    def hold(self, reason: str | None) -> None:
        """Stop publishing for this reason, as records would be lost; None: publish again."""
        with self._changed:
            self._held = reason
            self._changed.notify_all()

    def stall_reason(self) -> str | None:
        """Return why nothing is published, if that lasts too long or is on purpose; None if publication works."""
        with self._changed:
            if self._held is not None:
                return self._held
            age_s = self.oldest_pending_age_s()
            if age_s * 1000 <= self._settings.unpublished_max_ms:
                return None
            records = len(self._waiting) + len(self._sent)
            return (
                f"{records} records wait for {self._settings.topic}, the oldest for {age_s:.0f} s: "
                f"{self._waits_for or 'no broker acknowledges them'}"
            )

    @property
    def pending(self) -> int:
        """How many records are queued or not acknowledged yet."""
        with self._changed:
            return len(self._waiting) + len(self._sent)

    @property
    def pending_bytes(self) -> int:
        """The bytes of values that are queued or not acknowledged yet."""
        with self._changed:
            return self._bytes

    def is_pending(self, combined_segment_id: CombinedSegmentId) -> bool:
        """Whether a record of the segment is not acknowledged."""
        key = encode_key(combined_segment_id)
        with self._changed:
            return key in self._records_by_key

    def when_published(self, combined_segment_id: CombinedSegmentId, tell: Callable[[], object]) -> None:
        """Call `tell` once every record of the segment is acknowledged, on any thread and maybe at once.

        It must neither block nor call anything here. Records with such a callback do not linger.
        """
        key = encode_key(combined_segment_id)
        with self._changed:
            if key in self._records_by_key:
                self._awaited.setdefault(key, []).append(tell)
                self._changed.notify_all()
                return
        tell()

    def oldest_pending_age_s(self) -> float:
        """Return how long the oldest record has waited; 0 when none waits."""
        now = self._clock()
        with self._changed:
            oldest = self._sent[0] if self._sent else self._waiting[0] if self._waiting else None
            return 0.0 if oldest is None else max(0.0, now - oldest.since_s)

    @property
    def counters(self) -> dict[str, int]:
        """Counts of records and producer's events: `queued`, `refused`, `sent`, `acknowledged`, `delivery_failures`,
        `producer_restarts`, `queue_full`."""
        with self._changed:
            return dict(self._counters)

    def flush(self, timeout_s: float) -> bool:
        """Wait until nothing is pending. False when the time ran out first."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._sent, timeout_s)
