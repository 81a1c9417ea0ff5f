"""Writes one small object into the store, and checks what the store does with it. It is deleted at the end."""

from collections.abc import Callable
from dataclasses import replace
from itertools import islice

from doctor.facts import ClockReading, StepFailure, Store, Unknown
from plugin.clients.object_store import VersionedStore
from plugin.errors import RemoteSegmentConflictError, RemoteStorageError
from plugin.loading import StorageSpec, load_storage_manager
from plugin.object_wal_storage_manager import ObjectWalStorageManager
from plugin.remote_wal_storage_manager import RemoteWalStorageManager, StorageContext
from plugin.store_loop import ask, ask_each

_KEYS_LOOKED_AT = 2000
_RESOLUTION_MS = 1000
"""S3 gives the time of a change in whole seconds."""
_BODY = b"remote-wal doctor"
_OTHER_BODY = b"remote-wal doctor, overwritten"


def probe_store(
    spec: StorageSpec, context: StorageContext, probe_id: str, wall_ms: Callable[[], int]
) -> Store | Unknown:
    """Probe one bucket with a small object. Blocks; each request for up to `total.timeout.ms`."""
    # The manager's own test would stop at its first failure; each of its steps is made here.
    context = replace(context, is_written=False, makes_missing=False)
    try:
        manager = load_storage_manager(spec, context)
    except RemoteStorageError as error:
        return unopened(error)
    try:
        return probe(manager, context, probe_id, wall_ms)
    finally:
        manager.close()


def unopened(error: RemoteStorageError) -> Store:
    """Return the facts about a store that could not be opened."""
    nothing = Unknown("the store could not be opened")
    return Store({"open": _failure(error)}, nothing, nothing, nothing)


def probe(
    manager: RemoteWalStorageManager, context: StorageContext, probe_id: str, wall_ms: Callable[[], int]
) -> Store | Unknown:
    """Write, list, read and delete a small object, and return what that showed; `probe_id` must be new at each call."""
    if not isinstance(manager, ObjectWalStorageManager):
        return Unknown(f"{type(manager).__name__} is no object store of ours, and cannot be probed")
    return _Probe(manager, context, probe_id, wall_ms).run()


class _Probe:
    def __init__(
        self, manager: ObjectWalStorageManager, context: StorageContext, probe_id: str, wall_ms: Callable[[], int]
    ) -> None:
        self._keys, self._requests = manager.keys, manager.requests
        self._context = context
        self._prefix, self._key = manager.keys.listable_probe(context.broker_id, probe_id)
        self._wall_ms = wall_ms
        self._failures: dict[str, StepFailure] = {}
        self._refuses_overwriting: bool | Unknown = Unknown("no probe object could be written")
        self._clock: ClockReading | Unknown = Unknown("no probe object was listed")

    def run(self) -> Store:
        before_ms = self._wall_ms()
        try:
            if self._step("put", lambda: self._write(_BODY)):
                after_ms = self._wall_ms()
                self._step("list", lambda: self._read_clock(before_ms, after_ms))
                self._step("get", lambda: ask(self._requests.get(self._key, 0, len(_BODY))))
                self._refuses_overwriting = self._overwrite()
        finally:
            # Also after a PUT of unknown outcome. Deleting a missing object gives no error.
            self._step("delete", lambda: ask(self._requests.delete(self._key)))
        return self._store()

    def _step(self, name: str, request: Callable[[], object]) -> bool:
        try:
            request()
        except RemoteStorageError as error:
            self._failures[name] = _failure(error)
            return False
        return True

    def _write(self, body: bytes) -> None:
        ask(self._requests.put(self._key, (body,), len(body)))

    def _read_clock(self, before_ms: int, after_ms: int) -> None:
        for listed in ask_each(self._requests.list(self._prefix)):
            if listed.key == self._key:
                self._clock = ClockReading(before_ms, after_ms, listed.last_modified_ms, _RESOLUTION_MS)

    def _overwrite(self) -> bool | Unknown:
        try:
            self._write(_OTHER_BODY)
        except RemoteSegmentConflictError:
            return True
        except RemoteStorageError as error:
            return Unknown(str(error))
        return False

    def _store(self) -> Store:
        keys = self._keys
        try:
            listed = [item.key for item in islice(ask_each(self._requests.list(keys.prefix)), _KEYS_LOOKED_AT + 1)]
        except RemoteStorageError as error:
            return Store(self._failures, self._refuses_overwriting, self._clock, Unknown(str(error)))
        looked_at = listed[:_KEYS_LOOKED_AT]
        others = {keys.cluster_of(key) for key in looked_at} - {None, self._context.cluster_id}
        return Store(
            self._failures,
            self._refuses_overwriting,
            self._clock,
            frozenset(str(cluster_id) for cluster_id in others),
            len(looked_at),
            len(listed) <= _KEYS_LOOKED_AT,
            self._keeps_versions(),
        )

    def _keeps_versions(self) -> bool | Unknown | None:
        store = self._requests.store
        try:
            return ask(store.keeps_versions()) if isinstance(store, VersionedStore) else None
        except RemoteStorageError as error:
            return Unknown(str(error))


def _failure(error: RemoteStorageError) -> StepFailure:
    return StepFailure(error.label, str(error))
