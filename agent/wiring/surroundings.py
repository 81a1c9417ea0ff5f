"""What the storage system needs from outside, and what outlives its failures."""

from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from agent.configuration import Configuration
from agent.defects import Supervisor
from agent.identity import AgentIdentity
from agent.metrics.loop_times import LoopTimes
from agent.metrics.usage import UsageReport
from agent.settings.agent_settings import AgentSettings
from agent.wiring.relaying import Relaying
from metadata_topic.topic.publication_watch import PublicationWatch
from metadata_topic.topic.publisher import RemoteWalMetadataPublisher
from plugin.remote_wal_storage_manager import StorageContext
from plugin.segment_metadata import CombinedSegmentId
from rlm.write_path.clocks import Clocks
from rlm.write_path.metrics import ArchiveMetrics, LifecycleMetrics, WriteMetrics


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The surroundings of one incarnation."""

    configuration: Configuration
    identity: AgentIdentity
    registry: CollectorRegistry
    relaying: Relaying
    supervisor: Supervisor
    clocks: Clocks
    next_incarnation: Callable[[int], int]
    """Returns an incarnation above the given one, and above all that existed here."""

    @property
    def settings(self) -> AgentSettings:
        return self.configuration.settings

    @property
    def storage_context(self) -> StorageContext:
        return StorageContext(self.identity.cluster_id, self.identity.broker_id)


class StorageMetrics:
    """Metrics that are kept across restarts."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.write = WriteMetrics(registry)
        self.lifecycle = LifecycleMetrics(registry)
        self.archive = ArchiveMetrics(registry)


@dataclass(slots=True)
class Kept:
    """The parts that are made once and kept across failures."""

    publisher: RemoteWalMetadataPublisher
    publication: PublicationWatch
    usage: UsageReport
    metrics: StorageMetrics
    next_segment_id: CombinedSegmentId
    next_archive_writer_id: CombinedSegmentId
    next_gap_record: CombinedSegmentId
    loops: LoopTimes
