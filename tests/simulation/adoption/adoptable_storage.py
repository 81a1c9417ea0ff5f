"""The store with gateways' objects in it, beside the segments that name them."""

import random
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

from plugin.adopted_records import AdoptionTable
from plugin.blob_storage import StoredBlob
from plugin.errors import RemoteResourceNotFoundError, RemoteStorageTimeoutError
from plugin.format.adoption_note import AdoptionNote
from plugin.format.combined_segment import HEADER_BYTES, TRAILER_BYTES, locate_footer, table_place
from plugin.remote_wal_storage_manager import StoredSegment
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteLogSegmentMetadataEntry,
    RemoteWalCombinedLogSegmentMetadata,
)
from plugin.store_loop import ask
from plugin.wrappers.adopting_storage import AdoptingStorage
from tests.rlm.memory_storage import FAIL_BEFORE
from tests.simulation.seeded_storage import SeededStorage


class RouterBlobs:
    """Gateways' objects: `BlobStorage`. Deletions fail as those of segments do."""

    def __init__(self, deletion_fault: Callable[[], str | None], wall_ms: Callable[[], int]) -> None:
        self._deletion_fault = deletion_fault
        self._wall_ms = wall_ms
        self.stored: dict[str, bytes] = {}
        self.written_ms: dict[str, int] = {}
        self.on_delete: Callable[[str], None] = lambda _name: None
        """Told of each before it goes."""

    async def put_blob(self, name: str, *chunks: bytes | memoryview) -> bytes:
        assert name not in self.stored
        self.stored[name], self.written_ms[name] = b"".join(chunks), self._wall_ms()
        return b""

    async def get_blob(self, blob: StoredBlob, start: int = 0, end: int | None = None) -> bytes:
        if blob.name not in self.stored:
            raise RemoteResourceNotFoundError("get", blob.name, "not there")
        return self.stored[blob.name][start:end]

    async def list_blobs(self, directory: str) -> AsyncIterator[list[StoredBlob]]:
        yield [
            StoredBlob(name, len(raw), last_modified_ms=self.written_ms[name])
            for name, raw in self.stored.items()
            if name.startswith(f"{directory}/")
        ]

    async def delete_blob(self, blob: StoredBlob) -> None:
        fault = self._deletion_fault()
        if fault != FAIL_BEFORE and blob.name in self.stored:
            self.on_delete(blob.name)
            del self.stored[blob.name]
        if fault is not None:
            raise RemoteStorageTimeoutError("delete", blob.name, f"planted, {fault} the effect")


class AdoptableStorage(SeededStorage):
    def __init__(self, rng: random.Random, hit: Callable[[str], None], wall_ms: Callable[[], int]) -> None:
        super().__init__(rng, hit, wall_ms)
        self.router = RouterBlobs(lambda: self._fault("deletion"), wall_ms)
        self._sources: dict[CombinedSegmentId, frozenset[str]] = {}

    @property
    def adopts(self) -> bool:
        return True

    @property
    def blobs(self) -> RouterBlobs:
        return self.router

    def note_of(self, segment_id: CombinedSegmentId) -> AdoptionNote | None:
        raw = self.objects[segment_id]
        location = locate_footer(raw[-TRAILER_BYTES:], len(raw))
        place = table_place(raw[:HEADER_BYTES], raw[location.start : location.end])
        if place is None:
            return None
        start, length, crc = place
        table = raw[start : start + length]
        return AdoptionNote.of(AdoptionTable.read(table, crc), table, start)

    def sources_of(self, segment_id: CombinedSegmentId) -> frozenset[str]:
        """The objects of gateways that a segment names, which may be gone itself by now."""
        if segment_id not in self._sources:
            note = self.note_of(segment_id)
            self._sources[segment_id] = frozenset(() if note is None else [one.blob_name for one in note.sources])
        return self._sources[segment_id]

    def records_of(self, segment_id: CombinedSegmentId, entry: RemoteLogSegmentMetadataEntry) -> bytes:
        """As every reader gets them."""
        note = self.note_of(segment_id)
        told = b"" if note is None else note.encode()
        reader = AdoptingStorage(self)
        return ask(reader.fetch_log_segment(segment_id, entry.start_file_position, entry.end_file_position, told))

    async def fetch_segment_metadata(self, stored: StoredSegment) -> RemoteWalCombinedLogSegmentMetadata:
        note = self.note_of(stored.combined_segment_id)
        found = await super().fetch_segment_metadata(stored)
        return found if note is None else replace(found, custom_metadata=note.encode())
