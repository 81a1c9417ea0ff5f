"""Puts the archive together: `rlm.archive`, from the settings."""

from collections.abc import Callable

import structlog

from agent.settings.agent_settings import AgentSettings
from agent.settings.memory_shares import ARCHIVE_OBJECT_MAX_BYTES
from agent.settings.setting_types import milliseconds
from agent.settings.upload_settings import ArchiveSettings
from agent.wiring.agent_resources import AgentResources
from agent.wiring.kafka_following import KafkaFollowing
from metadata_topic.store.archive.archive_store import ArchiveStore
from plugin.archive_storage import ArchiveStorage, load_archive_storage
from plugin.loading import ARCHIVE_IMPL_PREFIX, settings_under_prefix
from plugin.prices import NEVER_PAYS, Prices
from rlm.archive.archive_plan import ArchiveLimits
from rlm.archive.archive_task import ArchiveSources, ArchiveTaskLimits
from rlm.archive.archived_topics import CareDuties
from rlm.archive.archiving import Archiving, ArchivingLimits
from rlm.archive.stored_runs import ArchiveLinks
from rlm.write_path.runtime import Runtime

log = structlog.get_logger(__name__)


def archive_links(settings: ArchiveSettings, archive: ArchiveStore, prices: Prices) -> ArchiveLinks | None:
    """Return the source of links to archive objects; None when this agent's archive is off.

    Without its own archive the agent still knows archive objects, but its peers may not be able to read them. If
    reading from the archive never pays, only topics with the policy `always` get such links.
    """
    if not settings.enable:
        return None
    min_run_bytes = prices.get_break_even_bytes(prices.of_section(settings.price_section))
    if min_run_bytes == NEVER_PAYS:
        log.warning("archive_links_never_pay", reason="no read is ever cheaper than cross-zone traffic")
    return ArchiveLinks(archive, min_run_bytes)


def archiving_limits(settings: AgentSettings) -> ArchivingLimits:
    """Return the limits of the archive's task and of deletions, by the settings."""
    archive = settings.archive
    plan = ArchiveLimits(ARCHIVE_OBJECT_MAX_BYTES, milliseconds(archive.object_max_age_s))
    return ArchivingLimits(ArchiveTaskLimits(plan, archive.bytes_per_second, settings.link.takes_digests))


def build_archiving(around: AgentResources, kafka: KafkaFollowing, duties: Callable[[], CareDuties]) -> Archiving:
    """Build the archive. `duties` is called on a thread, before each round of deletions."""
    metadata, settings = kafka.metadata, around.settings
    sources = ArchiveSources(
        around.identity.cluster_id,
        around.relaying.storage,
        metadata.store,
        metadata.archive,
        around.publisher,
        metadata.read_to_end,
        metadata.doubt,
    )

    def load() -> ArchiveStorage:
        storage = load_archive_storage(
            settings.archive.storage_manager_class_name,
            settings.storage.manager_class_path,
            settings_under_prefix(around.configuration.broker.raw, ARCHIVE_IMPL_PREFIX),
            around.storage_context,
        )
        log.info("archive_storage_ready", manager=settings.archive.storage_manager_class_name)
        return storage

    limits, runtime = archiving_limits(settings), Runtime(around.clocks)
    return Archiving(load, around.writer_id, sources, limits, duties, around.metrics.archive, runtime)
