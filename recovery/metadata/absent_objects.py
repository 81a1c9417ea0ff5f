"""Judges absent objects by the rules by which agents release what is stored: what these do not release is lost.

What cannot be told releases nothing: a topic that the client may not describe, settings or a tier that cannot be read,
a log start that no agent has told.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic

from kafka_cluster.client_config import KafkaClientConfig
from kafka_cluster.errors import KafkaClusterError
from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.kip405.tiered_offsets import TieredOffsets
from metadata_topic.settings.settings_memory import SettingsMemory
from metadata_topic.settings.settings_table import SettingsTable
from metadata_topic.settings.settings_topic import read_settings
from metadata_topic.settings.wal_retention import ALL_AS_BEFORE, AgentsRetention
from metadata_topic.store.archive.archive_store import ArchiveStore
from metadata_topic.store.held_records import HeldRecords
from metadata_topic.store.store import RemoteWalMetadataStore
from rlm.archive.archived_topics import ArchiveTier
from rlm.lifecycle.cluster_observer import ClusterObserver, with_wal_retention
from rlm.lifecycle.log_starts import LogStarts
from rlm.lifecycle.release import LongTermTier, ReleaseJudge, Tiers, TopicWatch
from rlm.lifecycle.tiered_storage import LogEpochs, TieredStorageTier

Judges = Callable[[Collection[TopicId], Sequence[RemoteWalMetadataStore], ArchiveStore], Sequence[ReleaseJudge]]
"""Takes the topics in question, what is known of objects, and what is archived. Every judge must release an object."""


def agents_judges(
    client: KafkaClientConfig,
    broker_id: int,
    wall_ms: Callable[[], int],
    read_tier: Callable[[], TieredOffsets | None],
    state_directory: Path,
) -> Judges:
    """Return functions that judge absent objects by the cluster's topics: one for each retention that agents have.

    `read_tier` returns what KIP-405's tier holds, None if that is unknown. What an agent remembers in its
    `state_directory` of a lost settings topic counts as well. The judges raise ClusterUnknownError and
    KafkaClusterError.
    """

    def judges(
        topics: Collection[TopicId], known: Sequence[RemoteWalMetadataStore], archive: ArchiveStore
    ) -> list[ReleaseJudge]:
        table = _settings(client, state_directory)
        names = () if table is None else tuple(table.topics)
        observation = ClusterObserver(client, broker_id, TopicWatch(0)).observe(topics, names, wall_ms)
        held = HeldRecords()
        for store in known:
            held.add(loss for losses in store.local_losses().values() for loss in losses)
        starts = _highest(LogStarts(store).told(observation.view.log_start) for store in known)

        def is_archived(topic: TopicId) -> bool:
            settings = None if table is None else table.of(observation.names.get(topic, ""), topic)
            return table is None or (settings is not None and settings.archive)

        tiers: list[LongTermTier] = [ArchiveTier(archive, is_archived, lambda _: None)]
        if observation.tier_ms and (tier := read_tier()) is not None:
            tiers.append(TieredStorageTier(tier, LogEpochs(lambda _: None, monotonic)))
        agents = ALL_AS_BEFORE if table is None else AgentsRetention.registered(table.agents.values())
        observations = (with_wal_retention(observation, table, one) for one in agents.agents)
        return [
            ReleaseJudge(replace(one.view, log_start=starts, held=held.losses), Tiers(tiers)) for one in observations
        ]

    return judges


def _settings(client: KafkaClientConfig, state_directory: Path) -> SettingsTable | None:
    try:
        return read_settings(client, memory=SettingsMemory(state_directory))
    except KafkaClusterError:
        return None


def _highest(starts: Iterable[dict[TopicIdPartition, int]]) -> dict[TopicIdPartition, int]:
    highest: dict[TopicIdPartition, int] = {}
    for one in starts:
        highest |= {partition: max(start, highest.get(partition, 0)) for partition, start in one.items()}
    return highest
