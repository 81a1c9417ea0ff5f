"""What the parts of the storage system share in one run."""

from collections.abc import Iterable
from dataclasses import dataclass

from agent.configuration import Configuration
from agent.identity import AgentIdentity
from agent.metrics.loop_times import Loop, LoopTimes
from agent.settings.agent_settings import AgentSettings
from agent.wiring.relaying import Relaying
from metadata_topic.topic.publication_watch import PublicationWatch
from metadata_topic.topic.publisher import RemoteWalMetadataPublisher
from plugin.remote_wal_storage_manager import StorageContext
from plugin.segment_metadata import CombinedSegmentId
from plugin.wall_clock import Clocks
from rlm.write_path.metrics import ArchiveMetrics, LifecycleMetrics, WriteMetrics


class StorageMetrics:
    """Metrics that outlive a restart of the storage system."""

    def __init__(self, relaying: Relaying, clocks: Clocks, loops: Iterable[Loop]) -> None:
        registry = relaying.metrics.registry
        self.write = WriteMetrics(registry)
        self.lifecycle = LifecycleMetrics(registry)
        self.archive = ArchiveMetrics(registry)
        self.loops = LoopTimes(registry, clocks.monotonic_s, loops)


@dataclass(frozen=True, slots=True)
class AgentResources:
    """What the parts of the storage system share. All but the identity stays when that is restarted."""

    configuration: Configuration
    identity: AgentIdentity
    """With the incarnation of this run."""
    relaying: Relaying
    clocks: Clocks
    metrics: StorageMetrics
    publisher: RemoteWalMetadataPublisher
    publication: PublicationWatch

    @property
    def settings(self) -> AgentSettings:
        return self.configuration.settings

    @property
    def storage_context(self) -> StorageContext:
        return StorageContext(self.identity.cluster_id, self.identity.broker_id)

    @property
    def writer_id(self) -> CombinedSegmentId:
        """The first id of this incarnation, for each kind of numbered record."""
        return CombinedSegmentId(self.identity.broker_id, self.identity.incarnation, 0)
