"""The store of two zones, each with a directory as its bucket, of which some may be away."""

from collections.abc import Collection
from pathlib import Path

from plugin.loading import StorageSpec
from plugin.local_directory import LocalWalStorageManager
from plugin.remote_wal_storage_manager import StorageContext
from plugin.wrappers.guarded_storage import GuardedStorageManager
from plugin.zones.bucket_loading import load_bucket, zoned_storage
from plugin.zones.buckets import plan_buckets
from plugin.zones.zoned_storage import ZonedWalStorageManager

ZONES = ("az1", "az2")


def bucket(directory: Path, zone: str) -> str:
    return str(directory / zone)


def two_zones(
    directory: Path,
    own: str,
    cluster_id: str,
    away: Collection[str] = (),
    listed: Collection[str] = ZONES,
) -> ZonedWalStorageManager:
    """As the agent of a broker in the zone `own` has it. `away` are zones whose buckets do not answer."""
    buckets = {zone: bucket(directory, zone) for zone in listed}
    spec = StorageSpec("plugin.local_directory.LocalWalStorageManager", None, {}, "rsm.", buckets, own)
    plan = plan_buckets(spec, LocalWalStorageManager.bucket_key)
    guards = {bucket_id: GuardedStorageManager() for bucket_id in plan.buckets}
    for bucket_id, one in plan.buckets.items():
        if one.name not in {bucket(directory, zone) for zone in away}:
            guards[bucket_id].arrived(load_bucket(spec, one, StorageContext(cluster_id, 1), is_written=True))
    return zoned_storage(plan, guards)
