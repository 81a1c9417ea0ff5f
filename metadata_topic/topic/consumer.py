"""Keeps a store up to date with the metadata topic (the ConsumerTask of KIP-405's topic-based manager).

At the start reading goes on where the store's file ends. Without a file the store loads the newest snapshot, if there
is one, and the topic is read from where that ends, else from its beginning; from then on the store follows. Each batch
goes into the store together with its offsets, as one transaction, so content and progress always match. The archive's
records go to a store of their own (`metadata_topic.store.archive.archive_store`), and so do registrations, in the
topic's order. It takes its records of a batch first, so it is never behind `progress`. Undecodable records are counted
by the store and skipped: one poison record must not stop the reader, or let it loop. But what they say is unknown: so
the topic is doubted, unless their key is foreign.

If the topic is another one than the snapshot's, the stores keep what they know, and read the new topic from its
beginning. A gap between the snapshot and the topic's first record is counted and logged. In both cases `store.topic`
doubts the topic, and no conclusion is drawn from what it lacks.

"Not ready" is a temporary state, to be shown and waited for, never a fatal error (KAFKA-15181).
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import structlog

from kafka_cluster.client_config import KafkaClientConfig
from metadata_topic.records import archive_records
from metadata_topic.records.errors import MetadataTopicError, SnapshotError
from metadata_topic.records.records import MetadataRecord, PublishedSegment, RemoteWalNodeRegistration, UnknownRecord
from metadata_topic.records.serde import decode_or_keep_out
from metadata_topic.records.states import FINISHED
from metadata_topic.records.usage_record import is_usage_key
from metadata_topic.store.archive.archive_store import ArchiveStore
from metadata_topic.store.snapshots.archive_snapshot import restore_archive
from metadata_topic.store.store import RemoteWalMetadataStore
from metadata_topic.store.store_image import StoreImage
from metadata_topic.topic.topic import METADATA_TOPIC
from metadata_topic.topic.topic_consumer import ConsumerFactory
from metadata_topic.topic.topic_follower import (
    DEFAULT_SETTINGS,
    FollowSettings,
    TopicFollower,
    TopicRecord,
)

log = structlog.get_logger(__name__)


WINDOW_S: Final = 5.0
STALLED_S: Final = 60.0
"""A command gives up when nothing more comes for so long: guessed."""
_TOLD_EACH_S: Final = 5.0


class ObjectRates:
    """Measures how many objects each agent makes per second, by the metadata topic's records.

    It counts in windows and reports the last complete one. One thread counts; any thread may ask.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, window_s: float = WINDOW_S) -> None:
        self._lock = threading.Lock()
        self._clock = clock
        self._window_s = window_s
        self._counting: Counter[int] = Counter()
        self._since_s = clock()
        self._per_second: Mapping[int, float] = {}

    def read(self, record: MetadataRecord) -> None:
        """Count the object that this record finishes, unless the record comes from a rebuild.

        Only for records that were written while this agent was reading, not for older ones.
        """
        if isinstance(record, PublishedSegment) and record.state is FINISHED and not record.is_rebuilt:
            with self._lock:
                self._roll()
                self._counting[record.combined_segment_id.broker_id] += 1

    def per_second(self) -> Mapping[int, float]:
        """Return the objects per second by broker; brokers without any are left out."""
        with self._lock:
            self._roll()
            return self._per_second

    def _roll(self) -> None:
        over_s = self._clock() - self._since_s
        if over_s < self._window_s:
            return
        counted, self._counting, self._since_s = self._counting, Counter(), self._since_s + over_s
        self._per_second = {broker_id: count / over_s for broker_id, count in counted.items()}


class RemoteWalMetadataConsumer(TopicFollower):
    """Reads the metadata topic into `store`, on its own thread."""

    def __init__(
        self,
        client_config: KafkaClientConfig,
        store: RemoteWalMetadataStore,
        settings: FollowSettings = DEFAULT_SETTINGS,
        rack: str | None = None,
        consumer_factory: ConsumerFactory | None = None,
        load_snapshot: Callable[[], StoreImage | None] = lambda: None,
        archive: ArchiveStore | None = None,
    ) -> None:
        """`load_snapshot` (`SnapshotKeeper.load`) is called on the reading thread, until something was read.

        `rack` is the agent's zone: brokers with a rack-aware replica selector then serve the reads from it. Without
        `archive`, the archive's records are skipped; with it, a snapshot without them is skipped.
        """
        self._store = store
        self._archive = archive
        self._load_snapshot = load_snapshot
        self._logged: set[str] = set()
        self.object_rates = ObjectRates()
        super().__init__(client_config, METADATA_TOPIC, self._apply, settings, rack, consumer_factory)

    def start(self) -> None:
        """Begin reading the topic into the store."""
        self.begin(self._prepare, self._store.begin_anew, self._store.topic)

    def read_whole(
        self,
        tell: Callable[[str], None] = lambda _text: None,
        clock: Callable[[], float] = time.monotonic,
        stalled_s: float = STALLED_S,
    ) -> None:
        """Start from the newest snapshot, and wait until the topic is read to its present end: for commands.

        `tell` gets the progress. Raises MetadataTopicError when nothing more comes for `stalled_s`, however long the
        whole takes.
        """
        tell("reading the newest snapshot of the metadata")
        self._prepare()
        began_s = moved_s = told_s = clock()
        reached: Mapping[int, int] = {}
        self.start()
        while not self.wait_until_ready(min(1.0, stalled_s)):
            now_s, positions, records = clock(), self.positions, self.counters.get("records", 0)
            if positions != reached:
                moved_s, reached = now_s, positions
            if self.failure is not None or now_s - moved_s >= stalled_s:
                what = f"nothing came for {stalled_s:.0f} s" if self.failure is None else str(self.failure)
                hint = "are the brokers up? recover and verify do without the topic with --from-objects"
                raise MetadataTopicError("read", METADATA_TOPIC, f"{what}, after {records:,} records", hint)
            if now_s - told_s >= _TOLD_EACH_S:
                told_s, per_s = now_s, records / (now_s - began_s)
                rest = f"; {self.left / per_s:,.0f} s left" if per_s else ""
                tell(f"reading the metadata topic: {records:,} records, {per_s:,.0f} a second{rest}")

    @property
    def ready(self) -> bool:
        """Whether everything that was in the topic at the start is known, and reading continues."""
        return self.failure is None and super().ready

    @property
    def failure(self) -> BaseException | None:
        """The defect that ended the reading, or the store, for good; None while both work."""
        return super().failure or self._store.failure

    def _prepare(self) -> dict[int, int]:
        if self._store.progress:  # its file tells more than a snapshot
            return self._store.progress
        image = self._load_snapshot()
        if image is not None and self._restore_archive(image):
            try:
                self._store.restore(image)
            except (SnapshotError, OSError) as error:
                log.warning("metadata_snapshot_lost", error=str(error), consequence="the topic is read whole")
        return self._store.progress

    def _restore_archive(self, image: StoreImage) -> bool:
        if self._archive is None:
            return True
        try:
            restore_archive(self._archive, image)
        except SnapshotError as error:
            log.warning("metadata_snapshot_without_archive", reason=error.reason, consequence="the topic is read whole")
            return False
        return True

    def _apply(self, records: Sequence[TopicRecord]) -> None:
        self._store.apply_all(
            [(self._taken_by_archive_or(record), (record.partition, record.offset)) for record in records]
        )

    def _taken_by_archive_or(self, record: TopicRecord) -> MetadataRecord | None:
        """Return the record for the metadata store, which doubts the topic for one that cannot be read.

        None for the archive's, and for usage, which agents do not read.
        """
        if record.key is not None and is_usage_key(record.key):
            return None
        if record.key is not None and archive_records.is_archive_key(record.key):
            if self._archive is not None:
                archived = archive_records.decode_or_keep_out(record.key, record.value)
                if isinstance(archived, UnknownRecord):
                    self._log_another_format(archived, record)
                    return archived
                self._archive.apply(archived, record.partition)
            return None
        decoded = decode_or_keep_out(record.key, record.value)
        if isinstance(decoded, UnknownRecord):
            self._log_another_format(decoded, record)
        if self.ready:
            self.object_rates.read(decoded)
        if self._archive is not None and isinstance(decoded, RemoteWalNodeRegistration):
            self._archive.registered(decoded.broker_id, decoded.incarnation, record.partition)
        return decoded

    def _log_another_format(self, unknown: UnknownRecord, record: TopicRecord) -> None:
        """Log a record that another release wrote in its own format, once for each format."""
        if unknown.reason in ("version", "record_type") and unknown.detail not in self._logged:
            self._logged.add(unknown.detail)
            log.error(
                "metadata_record_of_another_format",
                error=unknown.detail,
                partition=record.partition,
                offset=record.offset,
                consequence="it is skipped; what it says is not known here, so the topic is in doubt",
            )
