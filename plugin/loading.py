"""Loads a storage manager by its dotted class name in the broker's server.properties."""

import asyncio
import importlib
import inspect
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

import structlog

from plugin.errors import RemoteStorageConfigError, RemoteStorageError
from plugin.remote_wal_storage_manager import RemoteWalStorageManager, StorageContext

T = TypeVar("T")

log = structlog.get_logger(__name__)

CLASS_NAME_KEY: Final = "remote.log.wal.storage.manager.class.name"
CLASS_PATH_KEY: Final = "remote.log.wal.storage.manager.class.path"
DEFAULT_CLASS_NAME: Final = "plugin.local_directory.LocalWalStorageManager"
IMPL_PREFIX: Final = "rsm.wal.config."
ARCHIVE_CLASS_NAME_KEY: Final = "remote.wal.archive.storage.manager.class.name"
DEFAULT_ARCHIVE_CLASS_NAME: Final = "plugin.s3.S3WalStorageManager"
ARCHIVE_IMPL_PREFIX: Final = "rsm.wal.archive.config."
STORE_PREFIXES: Final = (IMPL_PREFIX, ARCHIVE_IMPL_PREFIX)

RETRY_S = 2.0
_REFUSED_RETRY_S = 30.0
"""Time between tries after a refusal, because a person must change the setting or the store."""


async def until_loaded(
    load: Callable[[], Awaitable[T]],
    failed: Callable[[str], object],
    consequence: str,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> T:
    """Return the store that `load` returns, however long it is away.

    `failed` gets each failure as text; it is logged with `consequence`.
    """
    from tenacity import AsyncRetrying, retry_if_exception, wait_exception

    def may_come(error: BaseException) -> bool:
        if not isinstance(error, RemoteStorageError):
            return False
        failed(str(error))
        is_refusal = isinstance(error, RemoteStorageConfigError)
        tell, event = (log.error, "storage_refused") if is_refusal else (log.warning, "storage_not_there")
        tell(event, error=str(error), consequence=consequence)
        return True

    def wait_s(error: BaseException) -> float:
        return _REFUSED_RETRY_S if isinstance(error, RemoteStorageConfigError) else RETRY_S

    return await AsyncRetrying(retry=retry_if_exception(may_come), wait=wait_exception(wait_s), sleep=sleep)(load)


def settings_under_prefix(properties: Mapping[str, str], impl_prefix: str = IMPL_PREFIX) -> dict[str, str]:
    """Return the storage manager's own settings, with the prefix removed from keys. No other values are read."""
    return {key.removeprefix(impl_prefix): properties[key] for key in properties if key.startswith(impl_prefix)}


@dataclass(frozen=True, slots=True)
class StorageSpec:
    """A storage manager's class, its settings, and the buckets by zone."""

    class_name: str
    class_path: str | None
    """A directory that is added to the import path, behind what is there: it cannot replace our own modules."""
    settings: Mapping[str, str] = field(repr=False)
    """Its own, without their prefix. They may hold secrets, so the repr leaves them out."""
    impl_prefix: str = IMPL_PREFIX
    buckets: Mapping[str, str] = field(default_factory=dict)
    """By zone; none where one bucket serves all."""
    zone: str | None = None
    """In which objects are written. None: where nothing is written."""


def load_storage_manager(spec: StorageSpec, context: StorageContext) -> RemoteWalStorageManager:
    """Return a configured storage manager, whatever buckets the spec has.

    Raises RemoteStorageConfigError naming the Kafka key that is wrong, or another RemoteStorageError when the store
    does not respond.
    """
    manager_class = storage_manager_class(spec.class_name, spec.class_path)
    try:
        manager = manager_class()
    except TypeError as error:
        raise RemoteStorageConfigError(
            "load", CLASS_NAME_KEY, f"{spec.class_name} cannot be made without arguments: {error}"
        ) from error
    try:
        manager.configure(spec.settings, context)
    except RemoteStorageConfigError as error:
        manager.close()
        raise RemoteStorageConfigError(
            error.operation, spec.impl_prefix + error.key, error.reason, error.hint
        ) from error
    except BaseException:
        manager.close()
        raise
    return manager


def storage_manager_class(class_name: str, class_path: str | None) -> type[RemoteWalStorageManager]:
    """Import a storage manager's class, from `class_path` as well. Raises RemoteStorageConfigError naming the Kafka
    key."""
    if class_path:
        _add_to_import_path(class_path)
    return _find_class(class_name)


def _add_to_import_path(class_path: str) -> None:
    directory = Path(class_path)
    if not directory.is_absolute() or not directory.is_dir():
        raise RemoteStorageConfigError("load", CLASS_PATH_KEY, f"{class_path} is no directory", "give an absolute path")
    if str(directory) not in sys.path:
        sys.path.append(str(directory))


def _find_class(class_name: str) -> type[RemoteWalStorageManager]:
    module_name, _, name = class_name.rpartition(".")
    if not module_name or not name:
        raise RemoteStorageConfigError(
            "load", CLASS_NAME_KEY, f"{class_name!r} is no dotted class name", f"such as {DEFAULT_CLASS_NAME}"
        )
    try:
        found = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise RemoteStorageConfigError(
            "load", CLASS_NAME_KEY, f"cannot import {class_name}: {error}", f"see also {CLASS_PATH_KEY}"
        ) from error
    if not (inspect.isclass(found) and issubclass(found, RemoteWalStorageManager)):
        raise RemoteStorageConfigError(
            "load", CLASS_NAME_KEY, f"{class_name} is no subclass of RemoteWalStorageManager"
        )
    if inspect.isabstract(found):
        raise RemoteStorageConfigError("load", CLASS_NAME_KEY, f"{class_name} leaves methods abstract")
    return found
