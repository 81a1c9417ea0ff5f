"""What all parts of the storage system use: made once, and kept when one of the parts is restarted."""

from collections.abc import Iterable

from agent.configuration import Configuration
from agent.defects import Supervisor
from agent.identity import AgentIdentity
from agent.metrics.loop_times import WITHOUT_STORE, Loop, LoopTimes
from agent.settings.agent_settings import AgentSettings
from agent.wiring.relaying import Relaying
from metadata_topic.topic.publication_watch import PublicationWatch
from metadata_topic.topic.publisher import RemoteWalMetadataPublisher
from plugin.remote_wal_storage_manager import StorageContext
from plugin.segment_metadata import CombinedSegmentId
from plugin.wall_clock import Clocks, lasting_s
from rlm.write_path.metrics import ArchiveMetrics, LifecycleMetrics, WriteMetrics


class AgentResources:
    """Settings and identity, relaying, the publisher, metrics, and the sequence numbers that were not used yet.

    Records that wait for publication and used sequence numbers are kept, because nothing else has them.
    """

    def __init__(
        self,
        configuration: Configuration,
        identity: AgentIdentity,
        relaying: Relaying,
        supervisor: Supervisor,
        clocks: Clocks,
    ) -> None:
        self.configuration = configuration
        self.relaying = relaying
        self.supervisor = supervisor
        self.clocks = clocks
        self.metrics = StorageMetrics(relaying, clocks, Loop if configuration.settings.has_store else WITHOUT_STORE)
        self.publisher = RemoteWalMetadataPublisher(
            configuration.client,
            identity.broker_id,
            lasting_s,
        )
        self.publication = PublicationWatch(
            self.publisher.stall_reason,
            relaying.metrics.fault,
            lambda: self.metrics.loops.succeeded(Loop.PUBLICATION),
        )
        self.next_gap_record = CombinedSegmentId(identity.broker_id, identity.incarnation, 0)
        self.take_identity(identity)

    def take_identity(self, identity: AgentIdentity) -> None:
        """Work as this incarnation from now on: its sequences begin."""
        self.identity = identity
        self.next_segment_id = CombinedSegmentId(identity.broker_id, identity.incarnation, 0)
        self.next_archive_writer_id = self.next_segment_id

    @property
    def settings(self) -> AgentSettings:
        return self.configuration.settings

    @property
    def storage_context(self) -> StorageContext:
        return StorageContext(self.identity.cluster_id, self.identity.broker_id)


class StorageMetrics:
    """Metrics that are kept across restarts."""

    def __init__(self, relaying: Relaying, clocks: Clocks, loops: Iterable[Loop]) -> None:
        registry = relaying.metrics.registry
        self.write = WriteMetrics(registry)
        self.lifecycle = LifecycleMetrics(registry)
        self.archive = ArchiveMetrics(registry)
        self.loops = LoopTimes(registry, clocks.monotonic_s, loops)
