"""Loads the storage managers of buckets, and combines them to one store."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from plugin.errors import RemoteStorageError
from plugin.loading import StorageSpec, load_storage_manager, storage_manager_class
from plugin.remote_wal_storage_manager import RemoteWalStorageManager, StorageContext
from plugin.wrappers.adopting_storage import AdoptingStorage
from plugin.wrappers.guarded_storage import GuardedStorageManager
from plugin.zones.buckets import BucketPlan, BucketSpec, plan_buckets
from plugin.zones.zoned_storage import Bucket, ZoneBuckets, ZonedWalStorageManager


def load_bucket(
    spec: StorageSpec, bucket: BucketSpec, context: StorageContext, *, is_written: bool
) -> RemoteWalStorageManager:
    """Load the storage manager of one bucket. Unless `is_written`, it is not tested by a write.

    Raises like `load_storage_manager`.
    """
    return load_storage_manager(replace(spec, settings=bucket.settings), replace(context, is_written=is_written))


def bucket_plan(spec: StorageSpec) -> BucketPlan:
    """Return the plan of buckets, using the setting in which the storage manager's class expects its bucket. Raises
    RemoteStorageConfigError."""
    return plan_buckets(spec, storage_manager_class(spec.class_name, spec.class_path).bucket_key)


def bring_bucket(
    guard: GuardedStorageManager, spec: StorageSpec, bucket: BucketSpec, context: StorageContext, *, is_written: bool
) -> None:
    """Run `load_bucket` and give the result to `guard`; a failure is given to it as well, and raised."""
    try:
        guard.arrived(load_bucket(spec, bucket, context, is_written=is_written))
    except RemoteStorageError as error:
        guard.did_not_answer(str(error))
        raise


def load_storage(spec: StorageSpec, context: StorageContext) -> RemoteWalStorageManager:
    """Load the store for tools, which write nothing: one storage manager, or all buckets, even if some do not respond.

    Raises like `load_storage_manager`; with a list of buckets only if none of them responds.
    """
    if not spec.buckets:
        return AdoptingStorage(load_bucket(spec, BucketSpec("", spec.settings), context, is_written=False))
    plan = bucket_plan(spec)
    guards = {bucket_id: GuardedStorageManager() for bucket_id in plan.buckets}
    storage = zoned_storage(plan, guards)
    failure: RemoteStorageError | None = None
    try:
        for bucket_id, bucket in plan.buckets.items():
            try:
                bring_bucket(guards[bucket_id], spec, bucket, context, is_written=False)
            except RemoteStorageError as error:
                failure = error
        if failure is not None and not any(guard.is_there for guard in guards.values()):
            raise failure
    except BaseException:
        storage.close()
        raise
    return AdoptingStorage(storage)


def zoned_storage(
    plan: BucketPlan,
    managers: Mapping[bytes, RemoteWalStorageManager],
    clock: Callable[[], float] = time.monotonic,
) -> ZonedWalStorageManager:
    """Return the storage manager that combines those of the planned buckets."""
    buckets = {bucket_id: Bucket(bucket.name, managers[bucket_id]) for bucket_id, bucket in plan.buckets.items()}
    return ZonedWalStorageManager(ZoneBuckets(buckets, plan.own, plan.unnamed), clock)
