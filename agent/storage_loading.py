"""Loads the storage manager, however long the store is away, or reports why it refuses the settings.

With a bucket for each zone, each is loaded separately. The combined one is ready once each was tried and one of them
works: another zone's missing bucket delays nothing, and the own one delays only uploads.
"""

import asyncio
from collections.abc import Callable
from functools import partial

import structlog

from plugin.loading import StorageSpec, load_storage_manager, until_loaded
from plugin.remote_wal_storage_manager import RemoteWalStorageManager, StorageContext
from plugin.wrappers.adopting_storage import AdoptingStorage
from plugin.wrappers.guarded_storage import GuardedStorageManager
from plugin.zones.bucket_loading import bring_bucket, bucket_plan, zoned_storage
from plugin.zones.buckets import BucketPlan, BucketSpec, check_own_zone

log = structlog.get_logger(__name__)


class StorageLoading:
    """Loads the storage managers, retrying while they fail. Until then all bytes go inline, and /readyz says why."""

    def __init__(self, spec: StorageSpec, context: StorageContext, storage: GuardedStorageManager) -> None:
        self._spec = spec
        self._context = context
        self._storage = storage
        self._buckets: dict[bytes, GuardedStorageManager] = {}
        self._untried: set[bytes] = set()
        self.missing: str | None = "no answer yet"
        """Why there is no storage, or no bucket to write to; None when there is."""
        self.away: dict[str, str] = {}
        """Why other zones' buckets are not there, by their names."""

    async def run(self) -> None:
        """Load the storage managers, retrying, until all are there."""
        if self._spec.buckets:
            await self._run_buckets()
        else:
            await self._until(self._load, self._is_missing)
        log.info("storage_ready", manager=self._spec.class_name, buckets=len(self._buckets) or None)

    def _load(self) -> None:
        self._storage.arrived(AdoptingStorage(load_storage_manager(self._spec, self._context)))

    async def _run_buckets(self) -> None:
        plans: list[BucketPlan] = []
        await self._until(lambda: plans.append(self._plan()), self._is_missing)
        plan = plans[0]
        self._buckets = {bucket_id: GuardedStorageManager() for bucket_id in plan.buckets}
        self._untried = set(plan.buckets)
        storage = zoned_storage(plan, self._buckets)
        self.missing = f"bucket {plan.buckets[plan.own].name}: no answer yet" if plan.own is not None else None
        async with asyncio.TaskGroup() as group:
            for bucket_id, bucket in plan.buckets.items():
                group.create_task(self._bring(bucket_id, bucket, plan, storage))

    def _plan(self) -> BucketPlan:
        check_own_zone(self._spec)
        return bucket_plan(self._spec)

    async def _bring(
        self, bucket_id: bytes, bucket: BucketSpec, plan: BucketPlan, storage: RemoteWalStorageManager
    ) -> None:
        guard = self._buckets[bucket_id]
        is_own = bucket_id == plan.own
        load = partial(bring_bucket, guard, self._spec, bucket, self._context, is_written=is_own)

        def tried(failure: str | None) -> None:
            if is_own:
                self.missing = None if failure is None else f"bucket {bucket.name}: {failure}"
            elif failure is not None:
                self.away[bucket.name] = failure
            else:
                self.away.pop(bucket.name, None)
            self._untried.discard(bucket_id)
            if not (self._untried or self._storage.is_there) and any(one.is_there for one in self._buckets.values()):
                self._storage.arrived(AdoptingStorage(storage))

        await self._until(load, tried)

    def _is_missing(self, failure: str | None) -> None:
        self.missing = failure

    async def _until(self, load: Callable[[], None], tried: Callable[[str | None], None]) -> None:
        """Try until it succeeds; `tried` is called with each failure, and at the end with None."""
        await until_loaded(partial(asyncio.to_thread, load), tried, "inline")
        tried(None)
