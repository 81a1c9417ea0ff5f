"""S3's storage managers, whose requests go over an event loop wherever they may, though tests ask in threads."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

import uvloop

from plugin.adopted_records import RecordsList
from plugin.object_wal_storage_manager import ObjectWalStorageManager
from plugin.s3 import S3WalStorageManager
from plugin.s3_express import S3ExpressWalStorageManager
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteWalCombinedLogSegmentMetadata,
    RemoteWalCombinedLogSegmentMetadataUpdate,
)

T = TypeVar("T")
THREADS = ThreadPoolExecutor(4)


@cache
def the_loop() -> asyncio.AbstractEventLoop:
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return loop


def awaited(coroutine: Coroutine[Any, Any, T]) -> T:
    """What it returns or raises, on the one loop of all tests."""
    return asyncio.run_coroutine_threadsafe(coroutine, the_loop()).result(30)


class _OnLoop(ObjectWalStorageManager):
    def copy_log_segment_data(
        self, metadata: RemoteWalCombinedLogSegmentMetadata, records_list: RecordsList
    ) -> RemoteWalCombinedLogSegmentMetadataUpdate:
        segments = self.on_loop(sum(map(len, records_list)))
        if segments is None:
            return super().copy_log_segment_data(metadata, records_list)
        return awaited(segments.copy_log_segment_data(metadata, records_list, THREADS))

    def fetch_log_segment(
        self,
        combined_segment_id: CombinedSegmentId,
        start_position: int,
        end_position: int,
        custom_metadata: bytes = b"",
    ) -> bytes:
        segments = self.on_loop(end_position - start_position, custom_metadata)
        if segments is None:
            return super().fetch_log_segment(combined_segment_id, start_position, end_position, custom_metadata)
        wanted = (combined_segment_id, start_position, end_position, custom_metadata)
        return awaited(segments.fetch_log_segment(*wanted, THREADS))


class S3OnLoop(_OnLoop, S3WalStorageManager):
    pass


class S3ExpressOnLoop(_OnLoop, S3ExpressWalStorageManager):
    pass
