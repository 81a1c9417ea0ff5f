"""Keeps `TieredOffsets` up to date with `__remote_log_metadata`, the topic of KIP-405's own metadata manager.

Brokers make the topic when they start with `remote.log.storage.system.enable` and Kafka's own, topic-based metadata
manager. Without either it is absent; nothing is then on the tier as far as can be known here, and that is no fault. The
topic is looked for from time to time, and followed from its beginning once it exists. Before the end of the topic is
reached, the knowledge is old, and may have segments that were deleted since: check `ready` first.
"""

from collections.abc import Sequence

from kafka_cluster.client_config import KafkaClientConfig
from metadata_topic.kip405.kip405 import REMOTE_LOG_METADATA_TOPIC, decode
from metadata_topic.kip405.tiered_offsets import TieredOffsets
from metadata_topic.topic.topic_consumer import ConsumerFactory, confluent_reader
from metadata_topic.topic.topic_follower import FollowSettings, TopicFollower, TopicRecord
from metadata_topic.topic.topic_reader import TopicReader

TIER_SETTINGS = FollowSettings(absence_check_ms=30_000, retry_pause_ms=10_000)
"""Nothing waits for this topic, and each try without rights to it is refused, so tries are rare."""


class TierFollower(TopicReader):
    """Reads `__remote_log_metadata` into `offsets`, on a thread of its own."""

    def __init__(
        self,
        client_config: KafkaClientConfig,
        offsets: TieredOffsets,
        settings: FollowSettings = TIER_SETTINGS,
        rack: str | None = None,
        consumer_factory: ConsumerFactory = confluent_reader,
    ) -> None:
        """`rack` is the agent's zone, as for the other topics."""
        self._offsets = offsets
        super().__init__(
            TopicFollower(client_config, REMOTE_LOG_METADATA_TOPIC, self._take, settings, rack, consumer_factory)
        )

    @property
    def is_there(self) -> bool | None:
        """True: the topic exists, so Kafka's tiered storage is on. False: it is off. None: no broker has answered
        yet.
        """
        return self._follower.is_there

    @property
    def ready(self) -> bool:
        """Whether everything that the tier held at the start is known and reading continues; also if there is no
        topic.
        """
        return self.failure is None and (self.is_there is False or self._follower.ready)

    def wait_until_ready(self, timeout_s: float) -> bool:
        """Wait; False when the time ran out first, or the reader died."""
        return self._follower.wait_until_ready(timeout_s) or self.ready

    @property
    def positions(self) -> dict[int, int]:
        """The next offset to read, by partition of the topic; empty while it is absent."""
        return self._follower.positions

    def _take(self, records: Sequence[TopicRecord]) -> None:
        self._offsets.apply_all((decode(record.value), (record.partition, record.offset)) for record in records)
