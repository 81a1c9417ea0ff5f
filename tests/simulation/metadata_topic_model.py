"""The metadata topic: its records in one order, and what each agent has published that is not acknowledged yet."""

import random
from collections import deque
from collections.abc import Callable

from metadata_topic.records import archive_records
from metadata_topic.records.archive_records import ArchiveRecord
from metadata_topic.records.errors import PublicationBacklogFullError
from metadata_topic.records.publishable import Publishable, encoded
from metadata_topic.records.records import MetadataRecord, RemoteWalNodeRegistration
from metadata_topic.records.serde import decode, encode_key
from metadata_topic.store.archive.archive_store import ArchiveStore
from metadata_topic.store.fencing import Source
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.segment_metadata import CombinedSegmentId
from tests.simulation.virtual_time import VirtualTimeLoop

TopicRecord = MetadataRecord | ArchiveRecord
KEPT_MAX = 25
"""So many records may wait for their acknowledgement."""


class TopicModel:
    def __init__(self, loop: VirtualTimeLoop, rng: random.Random) -> None:
        self.loop = loop
        self.rng = rng
        self.records: list[TopicRecord] = []
        self._is_away = False
        self.takes_nothing = False
        """Where it is away: it can be read, as too few of its replicas are in sync to take anything."""
        self._held: list[Callable[[], None]] = []
        self.delay_max_s = 0.02
        self.on_acknowledged: Callable[[TopicRecord], None] = lambda _record: None
        self.on_refused: Callable[[], None] = lambda: None

    @property
    def is_away(self) -> bool:
        """Nothing is acknowledged, and who publishes much is refused."""
        return self._is_away

    @is_away.setter
    def is_away(self, is_away: bool) -> None:
        self._is_away = is_away
        if not is_away:
            held, self._held = self._held, []
            for send in held:
                send()

    def when_back(self, send: Callable[[], None]) -> None:
        """Call `send` once it is not away any more: to try again and again would be most of what a run does."""
        self._held.append(send)

    def append(self, raw: tuple[bytes, bytes]) -> None:
        record = archive_records.decode(*raw) if archive_records.is_archive_key(raw[0]) else decode(*raw)
        self.records.append(record)
        self.on_acknowledged(record)

    def tell(self, store: RemoteWalMetadataStore, archive: ArchiveStore, begin: int, end: int) -> None:
        """What stands in [begin, end), to the one whose matter it is, as the topic's consumer does it."""
        of_segments: list[tuple[MetadataRecord | None, Source]] = []
        for offset, record in enumerate(self.records[begin:end], begin):
            if isinstance(record, ArchiveRecord):
                archive.apply(record, 0)
            elif isinstance(record, RemoteWalNodeRegistration):
                archive.registered(record.broker_id, record.incarnation, 0)
            of_segments.append((None if isinstance(record, ArchiveRecord) else record, (0, offset)))
        store.apply_all(of_segments)


class Publication:
    """As `metadata_topic.topic.publisher` does it for one incarnation: in order, and never skipping any."""

    def __init__(self, topic: TopicModel, published: Callable[[Publishable], None]) -> None:
        self._topic = topic
        self._published = published
        self._waiting: deque[tuple[bytes, bytes]] = deque()
        self._since_s: deque[float] = deque()
        self._is_dead = False
        self._is_sending = False

    def oldest_pending_age_s(self) -> float:
        """How long the oldest record that is not acknowledged has waited; 0 when there is none."""
        return self._topic.loop.time() - self._since_s[0] if self._since_s else 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    def publish(self, record: Publishable) -> None:
        if self._is_dead:
            return
        if len(self._waiting) >= KEPT_MAX:
            self._topic.on_refused()
            raise PublicationBacklogFullError("publish metadata", "-", "planted")
        self._published(record)
        self._waiting.append(encoded(record))
        self._since_s.append(self._topic.loop.time())
        self._send_later()

    def is_pending(self, combined_segment_id: CombinedSegmentId) -> bool:
        key = encode_key(combined_segment_id)
        return any(waiting == key for waiting, _ in self._waiting)

    def when_published(self, combined_segment_id: CombinedSegmentId, tell: Callable[[], object]) -> None:
        raise AssertionError(f"nobody waits for {combined_segment_id} here")

    def _send_later(self) -> None:
        if self._waiting and not self._is_sending and not self._is_dead:
            self._is_sending = True
            self._topic.loop.call_later(self._topic.rng.uniform(0.001, self._topic.delay_max_s), self._send)

    def _send(self) -> None:
        if self._topic.is_away and not self._is_dead:
            self._topic.when_back(self._send)
            return
        self._is_sending = False
        if not self._is_dead:
            for _ in range(self._topic.rng.randint(1, len(self._waiting))):
                self._since_s.popleft()
                self._topic.append(self._waiting.popleft())
        self._send_later()

    def die(self, sent: int) -> int:
        """So many of the oldest records had been sent; how many are lost."""
        for _ in range(min(sent, len(self._waiting))):
            self._topic.append(self._waiting.popleft())
        self._is_dead = True
        return len(self._waiting)


class Consumption:
    """One agent's metadata store, filled from the topic some time after."""

    def __init__(self, topic: TopicModel, store: RemoteWalMetadataStore, archive: ArchiveStore) -> None:
        """It goes on where the stores' snapshot ends."""
        self._store, self._archive = store, archive
        self._topic = topic
        self._is_dead = False
        self._read_to = store.progress.get(0, 0)
        self._read(len(topic.records))
        self._look()

    def _read(self, end: int) -> None:
        if end <= self._read_to:
            return
        self._topic.tell(self._store, self._archive, self._read_to, end)
        self._read_to = end

    def read_to_end(self) -> bool:
        """False when nobody can tell where the end is."""
        is_read = not self._is_dead and (self._topic.takes_nothing or not self._topic.is_away)
        if is_read:
            self._read(len(self._topic.records))
        return is_read

    def _look(self) -> None:
        if not self._is_dead:
            self._read(self._topic.rng.randint(self._read_to, len(self._topic.records)))
            self._topic.loop.call_later(self._topic.rng.uniform(0.01, 0.5), self._look)

    def die(self) -> None:
        self._is_dead = True
