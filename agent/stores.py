"""Opens the stores that a broker's settings name, for tools beside its agent."""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Self

from agent.settings.agent_settings import AgentSettings
from agent.settings.storage_spec import storage_spec
from kafka_log.broker_files.server_properties import BrokerProperties
from plugin.archive_storage import ArchiveStorage, load_archive_storage
from plugin.loading import ARCHIVE_IMPL_PREFIX, settings_under_prefix
from plugin.remote_wal_storage_manager import RemoteWalStorageManager, StorageContext
from plugin.zones.bucket_loading import load_storage
from plugin.zones.buckets import StorageSpec


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """How to open a broker's stores; may be sent to another process."""

    context: StorageContext
    storage: StorageSpec = field(repr=False)
    """May hold secrets, so it is not part of the repr; nor is the next one."""
    archive: tuple[str, str | None, Mapping[str, str]] | None = field(repr=False)
    """Class name and path, and settings; None: there is no archive."""

    @classmethod
    def of(cls, broker: BrokerProperties, settings: AgentSettings, cluster_id: str) -> Self:
        """Return how to open the stores of the broker's agent, for a command that writes nothing there."""
        archive = None
        if settings.archive.enable:
            archive = (
                settings.archive.storage_manager_class_name,
                settings.storage.manager_class_path,
                settings_under_prefix(broker.raw, ARCHIVE_IMPL_PREFIX),
            )
        context = StorageContext(cluster_id, broker.node_id, can_wait=True, is_written=False)
        return cls(context, storage_spec(settings.storage, broker), archive)

    @contextmanager
    def opened(self) -> Iterator[tuple[RemoteWalStorageManager, ArchiveStorage | None]]:
        """Open the store of combined segments and, if there is one, of the archive. Raises RemoteStorageError."""
        with closing(load_storage(self.storage, self.context)) as storage:
            if self.archive is None:
                yield storage, None
                return
            with closing(load_archive_storage(*self.archive, self.context)) as archive:
                yield storage, archive
