"""Opens the stores that a broker's settings name, for tools beside its agent."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Self

from agent.settings.agent_settings import AgentSettings
from kafka_log.broker_files.server_properties import BrokerProperties
from plugin.archive_storage import ArchiveStorage, load_archive_storage
from plugin.loading import StorageSpec
from plugin.remote_wal_storage_manager import RemoteWalStorageManager, StorageContext
from plugin.zones.bucket_loading import load_storage


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """How to open a broker's stores; may be sent to another process."""

    context: StorageContext
    storage: StorageSpec
    archive: StorageSpec | None
    """None: there is no archive."""

    @classmethod
    def of(cls, broker: BrokerProperties, settings: AgentSettings, cluster_id: str) -> Self:
        """Return how to open the stores of the broker's agent, for a command that writes nothing there."""
        context = StorageContext(cluster_id, broker.node_id, can_wait=True, is_written=False, makes_missing=False)
        return cls(context, settings.store_spec(broker), settings.archive_spec(broker))

    @contextmanager
    def opened(self) -> Iterator[tuple[RemoteWalStorageManager, ArchiveStorage | None]]:
        """Open the store of combined segments and, if there is one, of the archive. Raises RemoteStorageError."""
        with closing(load_storage(self.storage, self.context)) as storage:
            if self.archive is None:
                yield storage, None
                return
            with closing(load_archive_storage(self.archive, self.context)) as archive:
                yield storage, archive
