"""Brings the storage manager to those who wait for it, however long the store is away, or refuses what it is told."""

import asyncio
from collections.abc import Mapping

import structlog

from agent.upload_settings import StorageSettings
from plugin.errors import RemoteStorageConfigError, RemoteStorageError
from plugin.guarded_storage import GuardedStorageManager
from plugin.loading import load_storage_manager, settings_under_prefix
from plugin.remote_wal_storage_manager import StorageContext

log = structlog.get_logger(__name__)

RETRY_S = 2.0
_REFUSED_RETRY_S = 30.0
"""A setting, or what the store lacks, changes by a person's hand."""


class StorageLoading:
    """Neither may take replication with it: until then all bytes go inline, and /readyz says why."""

    def __init__(
        self,
        settings: StorageSettings,
        raw_properties: Mapping[str, str],
        context: StorageContext,
        storage: GuardedStorageManager,
    ) -> None:
        self._settings = settings
        self._raw = raw_properties
        self._context = context
        self._storage = storage
        self.missing: str | None = "no answer yet"
        """Why there is no storage; None when there is."""

    async def run(self) -> None:
        """Until it is there."""
        while True:
            pause_s = await self._try_once()
            if pause_s is None:
                break
            await asyncio.sleep(pause_s)
        self.missing = None
        log.info("storage_ready", manager=self._settings.manager_class_name)

    async def _try_once(self) -> float | None:
        """Seconds until the next try; None when the storage is there."""
        settings = self._settings
        prefix = settings.manager_impl_prefix
        try:
            manager = await asyncio.to_thread(
                load_storage_manager,
                settings.manager_class_name,
                settings.manager_class_path,
                settings_under_prefix(self._raw, prefix),
                self._context,
                prefix,
            )
        except RemoteStorageError as error:
            self.missing = str(error)
            if isinstance(error, RemoteStorageConfigError):
                log.error("storage_refused", error=str(error), consequence="inline")
                return _REFUSED_RETRY_S
            log.warning("storage_not_there", error=str(error), consequence="inline")
            return RETRY_S
        self._storage.arrived(manager)
        return None
