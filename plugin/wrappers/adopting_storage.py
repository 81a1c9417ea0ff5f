"""Reads combined segments whose batches are partly where gateways stored them, as if all were in them.

It wraps the storage manager that knows all of the cluster's buckets, because a gateway's object may be in another
bucket than the segment. This is the only place where a log's bytes are assembled: readers of a segment by id, positions
and custom metadata get the log's bytes, and need not know about adoption.

A range is read with few requests: a gap between two wanted parts of an object is read along if that costs less than a
request. Tables are cached, because a segment is read a few times, and soon.
"""

from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from plugin.adopted_records import RECORDS_START, AdoptionTable, BatchSource, RecordsList, TableLine, stamped
from plugin.blob_storage import BlobStorage, StoredBlob
from plugin.errors import RemoteSegmentCorruptError
from plugin.format.adoption_note import AdoptionNote, split_note
from plugin.remote_wal_storage_manager import (
    RemoteWalStorageManager,
    RequestCounts,
    StorageContext,
    StoredSegment,
    blobs_of,
)
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteWalCombinedLogSegmentMetadata,
    RemoteWalCombinedLogSegmentMetadataUpdate,
)

TABLES_KEPT: Final = 256
GAP_BYTES: Final = 64 * 1024
"""So many bytes cost less to read along than a request."""


class _Part(NamedTuple):
    """Bytes of a segment, in order, and where they are stored."""

    source: BatchSource | None
    """None: in the segment's own object."""
    start: int
    end: int
    line: TableLine | None = None
    at: int = 0
    """Position in the batch."""


class AdoptingStorage(RemoteWalStorageManager):
    """Reads adopted records from gateways' objects, as if they were in the segment. All other calls are passed on."""

    def __init__(self, storage: RemoteWalStorageManager) -> None:
        """`storage` must be configured already."""
        self._storage = storage
        self._tables: OrderedDict[CombinedSegmentId, AdoptionTable] = OrderedDict()

    def configure(self, settings: Mapping[str, str], context: StorageContext) -> None:
        """Do nothing: the wrapped storage is already configured."""

    @property
    def adopts(self) -> bool:
        return self._storage.adopts and self._storage.blobs is not None

    async def copy_log_segment_data(
        self, metadata: RemoteWalCombinedLogSegmentMetadata, records_list: RecordsList
    ) -> RemoteWalCombinedLogSegmentMetadataUpdate:
        return await self._storage.copy_log_segment_data(metadata, records_list)

    async def fetch_log_segment(
        self,
        combined_segment_id: CombinedSegmentId,
        start_position: int,
        end_position: int,
        custom_metadata: bytes = b"",
    ) -> bytes:
        plain, note = split_note(custom_metadata)

        async def read(start: int, end: int) -> bytes:
            return await self._storage.fetch_log_segment(combined_segment_id, start, end, plain)

        if note is None or end_position <= RECORDS_START:
            return await read(start_position, end_position)
        table = await self._table(combined_segment_id, note, read)
        parts = list(_parts(table, start_position, end_position))
        last = parts[-1]
        if last.source is None and last.end > note.table_start:
            reason = f"no bytes {start_position} to {end_position} in it, with those that are elsewhere"
            raise RemoteSegmentCorruptError("fetch", str(combined_segment_id), reason)
        return b"".join(await self._read(parts, read))

    async def _table(self, segment_id: CombinedSegmentId, note: AdoptionNote, read: "_Read") -> AdoptionTable:
        known = self._tables.get(segment_id)
        if known is not None:
            self._tables.move_to_end(segment_id)
            return known
        raw = await read(note.table_start, note.table_start + note.table_bytes)
        try:
            table = AdoptionTable.read(raw, note.table_crc32c)
        except ValueError as error:
            raise RemoteSegmentCorruptError("fetch", str(segment_id), str(error)) from error
        self._tables[segment_id] = table
        if len(self._tables) > TABLES_KEPT:
            self._tables.popitem(last=False)
        return table

    async def _read(self, parts: Sequence[_Part], read: "_Read") -> list[bytes]:
        found = [b""] * len(parts)
        for indexes in _requests(parts):
            source, start = parts[indexes[0]].source, parts[indexes[0]].start
            end = max(parts[index].end for index in indexes)
            if source is None:
                data = await read(start, end)
            else:
                blob = StoredBlob(source.object_id.blob_name, end, source.custom_metadata)
                data = await blobs_of(self._storage, "get", blob.name).get_blob(blob, start, end)
            for index in indexes:
                part = parts[index]
                piece = data[part.start - start : part.end - start]
                found[index] = piece if part.line is None else stamped(part.line, piece, part.at)
        return found

    async def fetch_segment_metadata(self, stored: StoredSegment) -> RemoteWalCombinedLogSegmentMetadata:
        plain, _ = split_note(stored.custom_metadata)
        return await self._storage.fetch_segment_metadata(replace(stored, custom_metadata=plain))

    async def delete_log_segment_data(
        self, combined_segment_id: CombinedSegmentId, custom_metadata: bytes = b""
    ) -> None:
        """Delete the segment's own object. The gateways' objects that it names are deleted elsewhere
        (`rlm.lifecycle.expiration`)."""
        await self._storage.delete_log_segment_data(combined_segment_id, split_note(custom_metadata)[0])

    def list_log_segments(self, broker_id: int | None = None) -> AsyncIterator[Sequence[StoredSegment]]:
        return self._storage.list_log_segments(broker_id)

    def place_of(self, custom_metadata: bytes) -> str | None:
        return self._storage.place_of(split_note(custom_metadata)[0])

    @property
    def blobs(self) -> BlobStorage | None:
        return self._storage.blobs

    @property
    def request_counts(self) -> RequestCounts:
        return self._storage.request_counts

    def close(self) -> None:
        self._storage.close()


_Read = Callable[[int, int], Awaitable[bytes]]


def _parts(table: AdoptionTable, start: int, end: int) -> Iterator[_Part]:
    """Yield the non-empty parts of bytes [start, end) of a segment."""
    elsewhere = 0
    """Bytes before this position that are not in the object."""
    for line in table.lines:
        line_end = line.start + line.length
        if start < line.start:
            inline_end = min(line.start, end)
            yield _Part(None, start - elsewhere, inline_end - elsewhere)
            start = inline_end
        if start < min(line_end, end):
            at, until = start - line.start, min(line_end, end) - line.start
            yield _Part(line.source, line.source_start + at, line.source_start + until, line, at)
            start = min(line_end, end)
        if start >= end:
            return
        elsewhere += line.length
    yield _Part(None, start - elsewhere, end - elsewhere)


def _requests(parts: Sequence[_Part]) -> Iterator[list[int]]:
    """Yield groups of parts, by number, that one request reads."""
    by_source: dict[BatchSource | None, list[int]] = {}
    for index, part in enumerate(parts):
        by_source.setdefault(part.source, []).append(index)
    for indexes in by_source.values():
        together: list[int] = []
        end = 0
        for index in sorted(indexes, key=lambda one: parts[one].start):
            if together and parts[index].start > end + GAP_BYTES:
                yield together
                together = []
            together.append(index)
            end = max(end, parts[index].end) if len(together) > 1 else parts[index].end
        yield together
