"""The threads that read the agents' own topics, and Kafka's topic of tiered storage."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from agent.identity import AgentIdentity
from agent.settings.agent_settings import AgentSettings
from agent.wiring.lease_watch import LeasesInTopic, LeaseWatch, make_lease
from kafka_cluster.client_config import KafkaClientConfig
from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.kip405.tier_follower import TierFollower
from metadata_topic.kip405.tiered_offsets import TieredOffsets
from metadata_topic.settings.settings_memory import SettingsMemory
from metadata_topic.settings.settings_topic import SettingsReader
from metadata_topic.topic.followed_metadata import FollowedMetadata, Reader
from plugin.guarded_storage import GuardedStorageManager
from plugin.wall_clock import wall_ms
from rlm.lifecycle.tiered_storage import LogEpochs, TieredStorageTier

_LOOK_S = 1.0


class TopicReaders:
    """The readers. They end only by defects."""

    def __init__(
        self,
        settings: AgentSettings,
        identity: AgentIdentity,
        client: KafkaClientConfig,
        storage: GuardedStorageManager,
        settings_changed: Callable[[object], None],
        directory_of: Callable[[TopicIdPartition], Path | None],
    ) -> None:
        """`settings_changed` is called in the settings reader's thread."""
        reader = Reader(identity.cluster_id, identity.broker_id, identity.incarnation, identity.rack)
        self.metadata = FollowedMetadata(
            client, reader, storage, settings.process.state_directory, settings.metadata.memory_bytes, wall_ms
        )
        memory = SettingsMemory(settings.process.state_directory)
        self.topic_settings = SettingsReader(client, settings_changed, rack=identity.rack, memory=memory)
        self.lease = LeaseWatch(
            make_lease(storage.blobs, LeasesInTopic(client, self.topic_settings, identity.broker_id)),
            wall_ms,
            settings.lifecycle.uncommitted_ttl_s,
        )
        tiered = TieredOffsets()
        tier = TierFollower(client, tiered, rack=identity.rack)
        self.tiered_storage = TieredStorageTier(tiered, tier, LogEpochs(directory_of, time.monotonic))
        self._all = (self.metadata.consumer, self.topic_settings, tier)

    def start(self) -> None:
        """Start reading; the topics must exist."""
        for reader in self._all:
            reader.start()

    async def watch(self) -> None:
        """Watch until cancelled. Raises what ended one of them for good."""
        while True:
            for reader in self._all:
                if reader.failure is not None:
                    raise reader.failure
            await asyncio.sleep(_LOOK_S)

    async def close(self) -> None:
        """End all of them."""
        for reader in self._all:
            await asyncio.to_thread(reader.close)
