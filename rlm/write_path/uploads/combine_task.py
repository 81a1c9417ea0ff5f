"""RLMWalCombineTask: makes one combined segment of many partitions' batches and uploads it (KIP-1176).

Uploads run concurrently, one per thread of `remote.wal.log.manager.combiner.thread.pool.size`; metadata is published in
the order of the objects' sequence, whichever upload ends first. COPY_SEGMENT_STARTED is published before the upload but
not waited for, unlike in the KIP: waiting would add a replicated write to every round, and an object without metadata
describes itself, so it can be found and judged from a listing.

When the publisher is full, a stored object's metadata waits (`FinishedInOrder`), and nothing new is uploaded.

A failed upload leaves its sequence number unused: its outcome may be unknown, so its key is never used again, and the
items come back under a new one.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import structlog

from kafka_cluster.errors import KafkaClusterError
from kafka_log.batch_digests import batch_digests, run_digest
from metadata_topic.records.errors import PublicationBacklogFullError
from metadata_topic.records.publishable import SegmentPublisher
from plugin.errors import RemoteStorageError, RemoteStorageTimeoutError, defect_site, failure_label
from plugin.remote_wal_storage_manager import RemoteWalStorageManager
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteLogSegmentState,
    RemoteWalCombinedLogSegmentMetadata,
    RemoteWalCombinedLogSegmentMetadataUpdate,
)
from plugin.wall_clock import Clocks
from rlm.write_path.metrics import WriteMetrics
from rlm.write_path.uploads.adoptable_records import AdoptableRecords, Adoption, Records
from rlm.write_path.uploads.segment_queue import MetaQueueItem, UploadedSegment

log = structlog.get_logger(__name__)

_PUBLISH_AGAIN_S = 0.5
_TIMEOUT_S: Final = 60.0
"""An upload that takes longer counts as failed (guessed; above the storage managers' `total.timeout.ms`)."""


class FinishedInOrder:
    """Publishes metadata of stored objects in the order of the objects' sequence, whichever upload ends first.

    A record that the publisher refuses waits here and is retried: metadata of an upload is never dropped while the
    process lives.
    """

    def __init__(
        self,
        publisher: SegmentPublisher,
        first_sequence: int,
        not_publishable: Callable[[CombinedSegmentId, Exception], None],
    ) -> None:
        """`not_publishable` is called with a segment whose metadata can never be published."""
        self._publisher = publisher
        self._not_publishable = not_publishable
        self._next_sequence = first_sequence
        self._waiting: dict[int, RemoteWalCombinedLogSegmentMetadata | None] = {}
        self._awaited: dict[int, list[Callable[[], object]]] = {}
        """Callbacks for segments that the publisher has not taken yet."""
        self._lost: set[int] = set()
        """Segments whose metadata can never be published."""
        self._again: asyncio.TimerHandle | None = None

    def add(self, sequence: int, record: RemoteWalCombinedLogSegmentMetadata | None) -> None:
        """Record the end of an upload; without a record the sequence number stays unused."""
        self._waiting[sequence] = record
        self._publish_or_try_again()

    def publish(self) -> bool:
        """Publish the records that are next in order. Returns whether the publisher refused none."""
        while self._next_sequence in self._waiting:
            ready = self._waiting[self._next_sequence]
            if ready is not None:
                try:
                    self._publisher.publish(ready)
                except PublicationBacklogFullError:
                    return False
                except Exception as error:  # any publisher may raise anything
                    self._lost.add(self._next_sequence)
                    self._awaited.pop(self._next_sequence, None)
                    self._not_publishable(ready.combined_segment_id, error)
                else:
                    for tell in self._awaited.pop(self._next_sequence, ()):
                        self._publisher.when_published(ready.combined_segment_id, tell)
            del self._waiting[self._next_sequence]
            self._next_sequence += 1
        return True

    def _publish_or_try_again(self) -> None:
        if not self.publish() and self._again is None:
            self._again = asyncio.get_running_loop().call_later(_PUBLISH_AGAIN_S, self._try_again)

    def _try_again(self) -> None:
        self._again = None
        self._publish_or_try_again()

    def holds(self, segment_id: CombinedSegmentId) -> bool:
        """Whether the segment's metadata waits here. On any thread."""
        return segment_id.sequence in self._waiting

    def await_published(self, segment_id: CombinedSegmentId, tell: Callable[[], object]) -> bool:
        """Call `tell` once the segment is published, if its metadata waits here. Returns whether that waits.

        `tell` is never called for a segment whose metadata can never be published.
        """
        if segment_id.sequence in self._lost:
            return True
        if not self.holds(segment_id):
            return False
        self._awaited.setdefault(segment_id.sequence, []).append(tell)
        return True

    @property
    def unpublished(self) -> int:
        """How many stored objects have metadata that the publisher has not taken yet."""
        return sum(record is not None for record in self._waiting.values())

    def close(self) -> None:
        """Publish waiting records for the last time; those that the publisher refuses are lost."""
        if self._again is not None:
            self._again.cancel()
        if not self.publish():
            log.error("metadata_unpublished", segments=self.unpublished)


_BACKLOG_LABEL = "publication_backlog"
_UNPUBLISHABLE_LABEL = "not_publishable"
Copied = tuple[RemoteWalCombinedLogSegmentMetadataUpdate, tuple[tuple[bytes, ...], ...]]
"""What was stored, and the SHA-256 of each batch of each item, if they are taken."""


def _digests(items: list[MetaQueueItem]) -> tuple[tuple[bytes, ...], ...]:
    return tuple([batch_digests(item.records, item.batches) for item in items])


class RLMWalCombineTask:
    """Combines batches into objects and uploads them, for one agent incarnation."""

    def __init__(
        self,
        storage: RemoteWalStorageManager,
        publisher: SegmentPublisher,
        first_segment_id: CombinedSegmentId,
        metrics: WriteMetrics,
        clocks: Clocks,
        adoptable: AdoptableRecords | None = None,
        *,
        timeout_s: float = _TIMEOUT_S,
        digests: bool = False,
    ) -> None:
        """`adoptable` are batches that gateways have already stored.

        `timeout_s` is for storage managers that do not keep their own deadlines. `digests`: SHA-256 is taken of all
        batches, for metadata and links.
        """
        self._storage = storage
        self._timeout_s = timeout_s
        self._digests = digests
        self._publisher = publisher
        self._next_segment_id = first_segment_id
        self._metrics = metrics
        self._clocks = clocks
        self._adoptable = AdoptableRecords() if adoptable is None else adoptable
        self._uploading: set[int] = set()
        self._finished = FinishedInOrder(publisher, first_segment_id.sequence, self._not_publishable)

    async def combine(self, items: list[MetaQueueItem]) -> UploadedSegment | None:
        """Upload the items as one object, in this order; None when that failed: the items are then the caller's to
        retry."""
        if not self._finished.publish():
            self._metrics.upload_failures.labels(_BACKLOG_LABEL).inc()
            return None
        segment_id = self._next_segment_id
        self._next_segment_id = segment_id._replace(sequence=segment_id.sequence + 1)
        self._uploading.add(segment_id.sequence)
        records, adoption = self._records_of(items)
        try:
            update, digests = await self._upload(segment_id, items, records)
            if self._clocks.wall_ms() > adoption.until_ms:  # this process was frozen
                raise RemoteStorageTimeoutError("copy", str(segment_id), "it names what may be gone", label="hung")
        except Exception as error:  # any storage manager may raise anything; the records are in the log
            self._metrics.upload_failures.labels(_failure_label(error)).inc()
            log.warning("upload_failed", segment=str(segment_id), error=_told(error))
            adoption.failed()
            self._finished.add(segment_id.sequence, None)
            return None
        except asyncio.CancelledError:
            adoption.failed()
            self._finished.add(segment_id.sequence, None)  # so that later stored segments are published all the same
            raise
        else:
            self._finished.add(segment_id.sequence, _finished(update, self._clocks.wall_ms()))
            adoption.stored(partial(self.is_under_way, segment_id))
            self._metrics.adopted_bytes.inc(adoption.size_bytes)
        finally:
            self._uploading.discard(segment_id.sequence)
        stored_s = self._clocks.monotonic_s()
        return UploadedSegment(
            segment_id, tuple(items), update.entries, update.size_bytes, stored_s, update.custom_metadata, digests
        )

    def _records_of(self, items: list[MetaQueueItem]) -> tuple[Sequence[Records], Adoption]:
        """Return what of the items must be stored, and what gateways have already stored."""
        if self._storage.adopts:
            return self._adoptable.adopt(items, self._clocks.wall_ms())
        return [item.records for item in items], Adoption(self._adoptable, ())

    async def _upload(
        self, segment_id: CombinedSegmentId, items: list[MetaQueueItem], records: Sequence[Records]
    ) -> Copied:
        metadata = RemoteWalCombinedLogSegmentMetadata(
            segment_id,
            tuple(item.metadata_entry() for item in items),
            RemoteLogSegmentState.COPY_SEGMENT_STARTED,
            self._clocks.wall_ms(),
        )
        self._publisher.publish(_started(metadata))
        return await self.copy(metadata, items, records)

    async def copy(
        self, metadata: RemoteWalCombinedLogSegmentMetadata, items: list[MetaQueueItem], records: Sequence[Records]
    ) -> Copied:
        """Store the items' records as one object. Raises RemoteStorageTimeoutError, and what the storage manager does.

        A copy that takes far longer than the storage manager's deadlines is abandoned.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                digests = await asyncio.to_thread(_digests, items) if self._digests else ()
                update = await self._storage.copy_log_segment_data(metadata, records)
        except TimeoutError as error:
            key, reason = str(metadata.combined_segment_id), f"the storage manager took over {self._timeout_s} s"
            raise RemoteStorageTimeoutError("copy", key, reason, label="hung") from error
        if len(update.entries) != len(metadata.entries):
            raise ValueError("the storage manager tells of other entries than it was given")
        if digests:
            entries = zip(update.entries, digests, strict=True)
            update = replace(update, entries=tuple(replace(entry, sha256=run_digest(each)) for entry, each in entries))
        return update, digests

    def is_under_way(self, segment_id: CombinedSegmentId) -> bool:
        """Whether the segment is being uploaded, or its end is not acknowledged by the topic. On any thread.

        It checks the places in the order in which a segment passes them, so that none is missed.
        """
        is_own = segment_id[:2] == self._next_segment_id[:2]
        is_here = is_own and (segment_id.sequence in self._uploading or self._finished.holds(segment_id))
        return is_here or self._publisher.is_pending(segment_id)

    def when_published(self, segment_id: CombinedSegmentId, tell: Callable[[], object]) -> None:
        """Call `tell` once the topic has acknowledged a stored segment's metadata; on any thread, maybe at once.

        All stored segments before it are then published, too, except those whose metadata can never be published.
        """
        if not self._finished.await_published(segment_id, tell):
            self._publisher.when_published(segment_id, tell)

    @property
    def unpublished(self) -> int:
        """How many stored objects have metadata that the publisher has not taken yet."""
        return self._finished.unpublished

    def close(self) -> None:
        """Shut down; uploads under way may or may not finish."""
        self._finished.close()

    def _not_publishable(self, segment_id: CombinedSegmentId, error: Exception) -> None:
        """Count a segment that cannot be published; its object is found as one without metadata."""
        self._metrics.upload_failures.labels(_UNPUBLISHABLE_LABEL).inc()
        log.error("metadata_not_publishable", segment=str(segment_id), error=_told(error))


PRETENDED_UPLOAD_S: Final = 0.01
"""Seconds that an upload takes in S3 Express (guessed)."""


class PretendedUploads(RLMWalCombineTask):
    """The uploads of shadow mode: stores and publishes nothing, and counts each object as stored after
    `PRETENDED_UPLOAD_S`."""

    async def combine(self, items: list[MetaQueueItem]) -> UploadedSegment | None:
        """Return the object that would have been stored."""
        await asyncio.sleep(PRETENDED_UPLOAD_S)
        entries = tuple(item.metadata_entry() for item in items)
        size_bytes = sum(len(item.records) for item in items)
        stored_s = self._clocks.monotonic_s()
        return UploadedSegment(self._next_segment_id, tuple(items), entries, size_bytes, stored_s)


def _failure_label(error: Exception) -> str:
    return _BACKLOG_LABEL if isinstance(error, PublicationBacklogFullError) else failure_label(error)


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, RemoteStorageError | KafkaClusterError) else defect_site(error)


def _started(metadata: RemoteWalCombinedLogSegmentMetadata) -> RemoteWalCombinedLogSegmentMetadata:
    """Return the record to publish at the start: without entries, whose positions are not known yet."""
    return replace(metadata, entries=())


def _finished(
    update: RemoteWalCombinedLogSegmentMetadataUpdate, event_timestamp_ms: int
) -> RemoteWalCombinedLogSegmentMetadata:
    return RemoteWalCombinedLogSegmentMetadata(
        update.combined_segment_id,
        update.entries,
        update.state,
        event_timestamp_ms,
        update.size_bytes,
        update.custom_metadata,
    )
