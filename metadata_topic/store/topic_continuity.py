"""Whether the metadata topic that is read is the one that was read before, and whole. Sans-IO.

Theory. Much is concluded from what the topic does *not* tell: an object that it does not name is deleted. That is
right only while the topic is the one in which everything was told. So what a snapshot or an agent's own state remembers
of it (its id, and how far it reached) is compared with what the brokers say, whenever a consumer is made and before
each barrier:

- another id: somebody deleted the topic, and it was recreated, perhaps automatically;
- it ends before what was read of it: its tail was cut off, as by an unclean election. If it has grown again since, the
  leader epochs show it (`metadata_topic.topic.reading_positions`);
- it begins behind what was read of it: records were removed that this agent has not read;
- it holds records that this agent cannot read, of another release, or damaged. If that is all that speaks against it,
  the next process reads again from before them (`RemoteWalMetadataStore`), as an upgrade may be able to read them.

Each is a doubt. What is known stays known then (`RemoteWalMetadataStore.begin_anew`), what is told from then on is
added, and nothing is concluded from what is not told. A doubt never ends by itself, only with the record of a rebuild
(`RemoteWalTopicRebuilt`) that is newer than all those that are remembered. While there is a doubt, no newer state of
the topic is remembered, so that the doubt outlives the process.

If nothing is remembered (the first agent of all, or all was lost), the topic is accepted as it is, if it still has its
first record. A topic that begins at a later offset once told more, so it is doubted, too.
"""

import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from pydantic import TypeAdapter, with_config

from kafka_log.topic_partition import TopicId
from metadata_topic.records.records import RemoteWalTopicRebuilt
from metadata_topic.records.topic_doubt import NOT_ASKED, EpochEnds, TopicDoubt, end_of
from metadata_topic.store.store_image import JSON_CONFIG

NEVER_REBUILT_MS = -1


@with_config(JSON_CONFIG)
@dataclass(frozen=True, slots=True)
class RememberedTopic:
    """The metadata topic's id and ends as they were when the topic was last whole."""

    topic_id: TopicId | None
    """None: the agent that remembered it did not ask for it."""
    ends: Mapping[int, int]
    """Partition to the offset that was to be read next."""
    rebuilt_ms: int = NEVER_REBUILT_MS
    """When the newest rebuild was made that was read."""
    epochs: Mapping[int, int] = field(default_factory=dict)
    """Partition to the leader epoch of the last record below that offset, or a later one; lacks those not known."""


_KEPT: Final = TypeAdapter(tuple[TopicId | None, int, dict[TopicDoubt, str], list[RememberedTopic]], config=JSON_CONFIG)


class TopicContinuity:
    """Keeps the doubts about whether the metadata topic is whole. The reading thread reports to it; any thread may
    ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._remembered: list[RememberedTopic] = []
        self._read_of: TopicId | None = None
        """The id of the topic whose positions are those where reading continues."""
        self._topic_id: TopicId | None = None
        self._rebuilt_ms = NEVER_REBUILT_MS
        self._doubts: dict[TopicDoubt, str] = {}
        self.epochs_read: Mapping[int, int] = {}
        self.awaits_snapshot = False
        """Whether a snapshot may tell what the topic does not, and object storage has not answered yet. Set on the
        reading thread, by the code that loads it."""

    def remember(self, topic: RememberedTopic, *, reading_goes_on: bool = False) -> None:
        """Add a remembered id and ends of the topic; `reading_goes_on`: reading continues at these ends."""
        with self._lock:
            self._remembered.append(topic)
            self._rebuilt_ms = max(self._rebuilt_ms, topic.rebuilt_ms)
            if reading_goes_on:
                self._read_of, self.epochs_read = topic.topic_id, topic.epochs

    @property
    def remembered_epochs(self) -> Collection[tuple[int, int]]:
        with self._lock:
            return {pair for topic in self._remembered for pair in topic.epochs.items()}

    def reads(self, topic_id: TopicId | None, ends: Mapping[int, int], epoch_ends: EpochEnds = NOT_ASKED) -> bool:
        """Compare the topic's id (None: unknown) and ends, as brokers give them, with what is remembered; note doubts.

        False when it is another topic than the one where reading was to continue: then it is read from its beginning.
        """
        with self._lock:
            if topic_id is not None:
                known = {topic.topic_id for topic in self._remembered if topic.topic_id is not None}
                if self._topic_id not in (None, topic_id):
                    known = {self._topic_id}
                if known and topic_id not in known:
                    was = ", ".join(sorted(one.hex() for one in known if one is not None))
                    self._doubts[TopicDoubt.BEGAN_ANEW] = f"its id is {topic_id.hex()}, it was {was}"
            for topic in self._remembered:
                if topic.topic_id in (None, topic_id) or topic_id is None:
                    self._hold_against(topic, ends, epoch_ends)
            goes_on = self._read_of in (None, topic_id) or topic_id is None
            self._topic_id = self._read_of = topic_id
            return goes_on

    def to_resume(self, ends: Mapping[int, int]) -> str:
        """Return what a later process needs to continue reading from here, as JSON."""
        with self._lock:
            remembered = self._remembered
            if not self._doubts:
                remembered = [self._remember(self._topic_id or self._read_of, ends)]
            kept = (self._topic_id or self._read_of, self._rebuilt_ms, self._doubts, remembered)
            return _KEPT.dump_json(kept).decode()

    def resume(self, kept: str) -> None:
        """Continue where an earlier process left off, by its `to_resume`. Raises ValueError."""
        with self._lock:
            self._read_of, self._rebuilt_ms, self._doubts, self._remembered = _KEPT.validate_json(kept)
            self.epochs_read = {p: epoch for one in self._remembered for p, epoch in one.epochs.items()}

    def _hold_against(self, topic: RememberedTopic, ends: Mapping[int, int], epoch_ends: EpochEnds) -> None:
        for partition, end in topic.ends.items():
            there = end_of(partition, topic.epochs.get(partition), ends, epoch_ends)
            if there < end:
                found = f"partition {partition} lost what it had from offset {there} on, {end} had been read"
                self._doubts[TopicDoubt.SHORTER] = found

    def doubted(self, doubt: TopicDoubt, found: str) -> None:
        """Record a doubt that arose while reading; `found` describes it for people."""
        with self._lock:
            self._doubts[doubt] = found

    def rebuilt(self, record: RemoteWalTopicRebuilt) -> None:
        """Handle the record of a topic's rebuild: one that is newer than all known ends the doubts."""
        with self._lock:
            if self._topic_id not in (None, record.topic_id):
                return
            if record.event_timestamp_ms > self._rebuilt_ms:
                self._rebuilt_ms = record.event_timestamp_ms
                self._remembered.clear()
                self._doubts.clear()
            elif record.event_timestamp_ms == self._rebuilt_ms:  # records before it are not missed
                for doubt in (TopicDoubt.GAP, TopicDoubt.UNREADABLE):
                    self._doubts.pop(doubt, None)

    @property
    def doubts(self) -> Mapping[TopicDoubt, str]:
        """The doubts about the topic, each with what was found; empty if it is whole."""
        with self._lock:
            return dict(self._doubts)

    @property
    def topic_id(self) -> TopicId | None:
        """The id of the topic that is read; None while the brokers have not told."""
        return self._topic_id

    @property
    def rebuilt_ms(self) -> int:
        """When the newest known rebuild of the topic was made, wall clock in ms."""
        return self._rebuilt_ms

    def to_remember(self, ends: Mapping[int, int]) -> RememberedTopic:
        """Return the topic's id and ends to remember. Call it only without doubts."""
        with self._lock:
            return self._remember(self._topic_id, ends)

    def _remember(self, topic_id: TopicId | None, ends: Mapping[int, int]) -> RememberedTopic:
        epochs = {partition: epoch for partition, epoch in self.epochs_read.items() if partition in ends}
        return RememberedTopic(topic_id, dict(ends), self._rebuilt_ms, epochs)
