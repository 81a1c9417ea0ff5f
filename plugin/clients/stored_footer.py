"""Reads an object's own header, entries and note with few requests."""

from typing import Final

from plugin.adopted_records import AdoptionTable
from plugin.clients.object_requests import ObjectRequests
from plugin.errors import RemoteSegmentCorruptError
from plugin.format.adoption_note import AdoptionNote
from plugin.format.combined_segment import (
    HEADER_BYTES,
    TRAILER_BYTES,
    SegmentHeader,
    decode_footer,
    locate_footer,
    table_place,
)
from plugin.segment_metadata import RemoteLogSegmentMetadataEntry

_TAIL_BYTES: Final = 64 * 1024
"""Read at an object's end; usually the whole footer is in it: some 2,500 entries are."""


def read_footer(
    requests: ObjectRequests, key: str, size_bytes: int, cluster_id: str
) -> tuple[SegmentHeader, tuple[RemoteLogSegmentMetadataEntry, ...], AdoptionNote | None]:
    """Return header, entries and note of the object itself, checked, and of that cluster.

    Raises RemoteSegmentCorruptError when they are not, and RemoteStorageError.
    """
    if size_bytes < HEADER_BYTES + TRAILER_BYTES:
        raise RemoteSegmentCorruptError("fetch metadata", key, f"{size_bytes} bytes are no combined segment")
    tail_start = max(0, size_bytes - _TAIL_BYTES)
    tail = requests.get(key, tail_start, size_bytes)
    header = tail[:HEADER_BYTES] if tail_start == 0 else requests.get(key, 0, HEADER_BYTES)
    try:
        location = locate_footer(tail[-TRAILER_BYTES:], size_bytes)
        if location.start >= tail_start:
            footer = tail[location.start - tail_start : location.end - tail_start]
        else:
            footer = requests.get(key, location.start, location.end)
        decoded, entries = decode_footer(header, footer, location)
        note = _read_note(requests, key, table_place(header, footer))
    except ValueError as error:
        raise RemoteSegmentCorruptError("fetch metadata", key, str(error)) from error
    if decoded.cluster_id != cluster_id:
        raise RemoteSegmentCorruptError("fetch metadata", key, f"belongs to cluster {decoded.cluster_id}")
    return decoded, entries, note


def _read_note(requests: ObjectRequests, key: str, place: tuple[int, int, int] | None) -> AdoptionNote | None:
    if place is None:
        return None
    start, length, crc = place
    raw = requests.get(key, start, start + length)
    return AdoptionNote.of(AdoptionTable.read(raw, crc), raw, start)
