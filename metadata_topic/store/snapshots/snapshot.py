"""A store as bytes, so that an agent that starts need not read the whole metadata topic.

Theory. A snapshot is a stream of sections behind a head, little endian:

====  =======================================================
size  field
====  =======================================================
8     magic, "RWALSNAP"
2     format version
per section:
1     kind: 1 = state, 2 = segments, 3 = extra, 255 = end
4     the content's size before compression
4     its size as it stands here
4     CRC32C of kind, both sizes and the content as it stands here
n     the content, compressed with zlib
====  =======================================================

- State, once and first: a JSON array of the cluster's id, how many segments follow, and the fields of `StoreImage`
  but segments and extras; bytes as hex.
- Segments, as often as needed: u32 count, then one array per field (see `_COLUMNS`), then the custom metadata
  one after the other, then the entry blocks.
- Extra: what another reader of the same records knows: u16 length of its name, the name, its bytes.
- End: nothing in it. A snapshot without it was cut off.

A reader that finds anything else (another magic, a newer version, a wrong checksum, too few segments, the
cluster id of another cluster) refuses all of it with SnapshotError, and the topic is read from its beginning:
a snapshot is a short cut and never the only copy. It has no counters.

All of it is checked before any of it is used. Its segments are decoded once more when they are asked for, section
by section, so that they need not be in memory all at once.
"""

import os
import struct
import tempfile
import weakref
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from kafka_log.crc32c import crc32c
from metadata_topic.records.errors import SnapshotError
from metadata_topic.records.records import PublishedSegment
from metadata_topic.store.store_image import JSON_CONFIG, Segments, StoreImage
from plugin.format.entry_column_batches import PADDING_BYTES, Bools, LogFilter, are_laid_out
from plugin.segment_metadata import CombinedSegmentId, RemoteLogSegmentState

FORMAT_VERSION: Final = 4
_MAGIC: Final = b"RWALSNAP"
_HEAD: Final = struct.Struct("<8sH")
_SECTION: Final = struct.Struct("<BII")
_CRC: Final = struct.Struct("<I")
_COUNT: Final = struct.Struct("<I")
_STATE: Final = 1
_SEGMENTS: Final = 2
_EXTRA: Final = 3
_END: Final = 255
_NAME: Final = struct.Struct("<H")
_STATE_JSON: Final = TypeAdapter(tuple[str, int, StoreImage], config=JSON_CONFIG)
_COMPRESSION_LEVEL: Final = 1
_SECTION_BYTES: Final = 4 * 1024 * 1024
_SECTION_SEGMENTS: Final = 20_000
_SECTION_BYTES_MAX: Final = 1024 * 1024 * 1024

_COLUMNS: Final = (
    ("broker_id", "<i4"),
    ("incarnation", "<i8"),
    ("sequence", "<i8"),
    ("state", "<u1"),
    ("event_timestamp_ms", "<i8"),
    ("size_bytes", "<i8"),
    ("custom_metadata_bytes", "<u2"),
    ("entry_block_bytes", "<u4"),
)
_BYTES: Final = ("custom_metadata_bytes", "entry_block_bytes")


class SnapshotSource(Protocol):
    """The bytes of a snapshot, to be read by position."""

    size: int

    def read(self, at: int, size: int, /) -> bytes | memoryview:
        """Read `size` bytes from position `at` on; fewer if the snapshot ends before. Raises OSError."""


class SnapshotBytes:
    """A snapshot in memory."""

    def __init__(self, content: bytes | memoryview) -> None:
        self._content = memoryview(content)
        self.size = len(content)

    def read(self, at: int, size: int, /) -> memoryview:
        """Return some of the bytes, without a copy."""
        return self._content[at : at + size]


class SpooledSnapshot:
    """A snapshot in a file without a name, which is removed with this object."""

    def __init__(self, parts: Iterable[bytes], directory: Path | None) -> None:
        """Write the parts to a file in `directory`; None: in the system's temporary directory.

        Raises OSError, and whatever `parts` raises.
        """
        with tempfile.TemporaryFile(dir=directory) as file:
            self._descriptor = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._descriptor)
        self.size = 0
        for part in parts:
            at = 0
            while at < len(part):
                written = os.pwrite(self._descriptor, memoryview(part)[at:], self.size)
                at, self.size = at + written, self.size + written

    def read(self, at: int, size: int, /) -> bytes:
        """Return some of the file's bytes."""
        return os.pread(self._descriptor, size, at)


def snapshot_chunks(image: StoreImage, cluster_id: str = "") -> Iterator[bytes]:
    """Yield a store's image as a snapshot, in chunks of at most some megabytes."""
    yield _HEAD.pack(_MAGIC, FORMAT_VERSION)
    yield _section(_STATE, _STATE_JSON.dump_json((cluster_id, len(image.segments), image)))
    for segments in _portions(image.segments):
        yield _section(_SEGMENTS, _encode_segments(segments))
    for name, content in image.extras.items():
        yield _section(_EXTRA, _NAME.pack(len(name.encode())) + name.encode() + content)
    yield _section(_END, b"")


def read_image(snapshot: bytes | memoryview | SnapshotSource, cluster_id: str = "") -> StoreImage:
    """Read the image in a snapshot. Raises SnapshotError, and OSError of the source.

    Iterating over its segments may raise them as well, if the source returns other bytes by then.
    """
    source = SnapshotBytes(snapshot) if isinstance(snapshot, bytes | memoryview) else snapshot
    try:
        return _read_image(source, cluster_id)
    except (ValueError, KeyError, TypeError, IndexError, OverflowError, RecursionError, struct.error) as error:
        # The checksums are right, so this was written so: by a defect, or by somebody else.
        raise _refused(f"its content makes no sense: {type(error).__name__}: {error}") from error


def _refused(reason: str) -> SnapshotError:
    return SnapshotError("read metadata snapshot", "-", reason, "the topic is read from its beginning instead")


# Sections


def _section(kind: int, content: bytes) -> bytes:
    stored = zlib.compress(content, _COMPRESSION_LEVEL)
    head = _SECTION.pack(kind, len(content), len(stored))
    return b"".join((head, _CRC.pack(crc32c(stored, crc32c(head))), stored))


def _sections(snapshot: SnapshotSource) -> Iterator[tuple[int, bytes]]:
    """Yield each section's kind and content, up to the end section. Raises SnapshotError."""
    if snapshot.size < _HEAD.size:
        raise _refused(f"it ends at byte {snapshot.size}, inside its head")
    magic, version = _HEAD.unpack(snapshot.read(0, _HEAD.size))
    if magic != _MAGIC:
        raise _refused("it does not begin as one")
    if version != FORMAT_VERSION:
        raise _refused(f"it has format version {version}, this reader knows {FORMAT_VERSION}")
    at = _HEAD.size
    while True:
        content_at = at + _SECTION.size + _CRC.size
        if content_at > snapshot.size:
            raise _refused(f"it ends at byte {snapshot.size}, before its end section")
        head = snapshot.read(at, _SECTION.size + _CRC.size)
        kind, content_bytes, stored_bytes = _SECTION.unpack_from(head)
        [checksum] = _CRC.unpack_from(head, _SECTION.size)
        stored = snapshot.read(content_at, stored_bytes) if content_at + stored_bytes <= snapshot.size else b""
        if crc32c(stored, crc32c(head[: _SECTION.size])) != checksum:
            raise _refused(f"the checksum of the section at byte {at} is wrong")
        yield kind, _decompress(stored, content_bytes, at)
        if kind == _END:
            return
        at = content_at + stored_bytes


def _decompress(stored: bytes | memoryview, content_bytes: int, at: int) -> bytes:
    if content_bytes > _SECTION_BYTES_MAX:
        raise _refused(f"the section at byte {at} claims {content_bytes} bytes")
    try:
        content = zlib.decompressobj().decompress(stored, content_bytes + 1)
    except zlib.error as error:
        raise _refused(f"the section at byte {at} cannot be decompressed: {error}") from error
    if len(content) != content_bytes:
        raise _refused(f"the section at byte {at} has {len(content)} bytes, not {content_bytes}")
    return content


def _read_image(snapshot: SnapshotSource, cluster_id: str) -> StoreImage:
    sections = _sections(snapshot)
    kind, content = next(sections)
    if kind != _STATE:
        raise _refused(f"its first section is of kind {kind}, not the state")
    of_cluster, count, image = _STATE_JSON.validate_json(content)
    if of_cluster != cluster_id:
        raise _refused(f"it is of cluster {of_cluster!r}, this is {cluster_id!r}")
    segments = 0
    extras: dict[str, bytes] = {}
    for kind, content in sections:
        if kind == _SEGMENTS:
            portion = SegmentPortion(content)
            portion.check()
            segments += len(portion)
        elif kind == _EXTRA:
            [name_bytes] = _NAME.unpack_from(content)
            start = _NAME.size + name_bytes
            extras[content[_NAME.size : start].decode()] = content[start:]
        elif kind != _END:
            raise _refused(f"a section of kind {kind} is not known")
    if segments != count:
        raise _refused(f"it holds {segments} segments, not {count}")
    return replace(image, segments=StoredSegments(snapshot, segments), extras=extras)


class StoredSegments:
    """The segments of a snapshot whose checksums were checked; each iteration decodes them again."""

    def __init__(self, snapshot: SnapshotSource, count: int) -> None:
        self._snapshot, self._count = snapshot, count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[PublishedSegment]:
        for portion in self.portions():
            yield from (portion[at] for at in range(len(portion)))

    def portions(self) -> Iterator["SegmentPortion"]:
        """Yield the segments section by section."""
        for kind, content in _sections(self._snapshot):
            if kind == _SEGMENTS:
                yield SegmentPortion(content)


# Segments


def _portions(segments: Segments) -> Iterator[list[PublishedSegment]]:
    rest = iter(segments)
    while portion := list(islice(rest, _SECTION_SEGMENTS)):
        size, start = 0, 0
        for at, segment in enumerate(portion):
            size += len(segment.entry_block)
            if size >= _SECTION_BYTES:
                yield portion[start : at + 1]
                size, start = 0, at + 1
        if start < len(portion):
            yield portion[start:]


def _encode_segments(segments: Sequence[PublishedSegment]) -> bytes:
    rows = [
        (
            *segment.combined_segment_id,
            segment.state,
            segment.event_timestamp_ms,
            segment.size_bytes,
            len(segment.custom_metadata),
            len(segment.entry_block),
        )
        for segment in segments
    ]
    columns = [
        np.array(values, dtype=dtype).tobytes()
        for (_, dtype), values in zip(_COLUMNS, zip(*rows, strict=True), strict=True)
    ]
    return b"".join(
        (
            _COUNT.pack(len(segments)),
            *columns,
            *(segment.custom_metadata for segment in segments),
            *(segment.entry_block for segment in segments),
        )
    )


class SegmentPortion:
    """The segments of one section of a snapshot, as columns; each is decoded to a record on demand."""

    def __init__(self, content: bytes) -> None:
        """Split a section into columns. Raises ValueError when it is malformed."""
        [count] = _COUNT.unpack_from(content)
        at = _COUNT.size
        columns: dict[str, NDArray[Any]] = {}
        for name, dtype in _COLUMNS:
            columns[name] = np.frombuffer(content, dtype=dtype, count=count, offset=at)
            at += columns[name].nbytes
        self._columns, self._content = columns, content
        ends = np.cumsum(np.concatenate([columns[name].astype(np.int64) for name in _BYTES])) + at
        if (end := int(ends[-1]) if count else at) != len(content):
            raise ValueError(f"segments need {end} bytes, there are {len(content)}")
        self._custom_ends, self.block_ends = ends[:count], ends[count:]
        self.block_starts = self.block_ends - columns["entry_block_bytes"]
        self.states = columns["state"]
        self.written_ms, self.size_bytes = columns["event_timestamp_ms"], columns["size_bytes"]
        self._writers = np.stack((columns["broker_id"].astype(np.int64), columns["incarnation"]))
        self.data = np.frombuffer(content + bytes(PADDING_BYTES), dtype=np.uint8)
        """All bytes, with what `entry_column_batches` wants behind them."""

    def __len__(self) -> int:
        return len(self.states)

    def __getitem__(self, at: int) -> PublishedSegment:
        columns, custom_end = self._columns, int(self._custom_ends[at])
        return PublishedSegment(
            self.segment_id(at),
            RemoteLogSegmentState(int(self.states[at])),
            int(self.written_ms[at]),
            int(self.size_bytes[at]),
            self._content[custom_end - int(columns["custom_metadata_bytes"][at]) : custom_end],
            self._content[int(self.block_starts[at]) : int(self.block_ends[at])],
        )

    def segment_id(self, at: int) -> CombinedSegmentId:
        return CombinedSegmentId(*(int(self._columns[name][at]) for name in ("broker_id", "incarnation", "sequence")))

    def custom_metadata(self, at: int) -> bytes:
        end = int(self._custom_ends[at])
        return self._content[end - int(self._columns["custom_metadata_bytes"][at]) : end]

    def check(self) -> None:
        """Raise ValueError unless every segment has a valid state and well-formed entries."""
        if not np.isin(self.states, [int(state) for state in RemoteLogSegmentState]).all():
            raise ValueError("a segment has no state that is known")
        has_entries = self.block_ends > self.block_starts
        if not are_laid_out(self.data, self.block_starts[has_entries], self.block_ends[has_entries]).all():
            raise ValueError("a segment's entries cannot be read")

    def is_of(self, writer: tuple[int, int]) -> Bools:
        """Return a mask of the segments that this writer made."""
        found: Bools = (self._writers == np.array(writer)[:, None]).all(axis=0)
        return found

    def by_writer(self, chosen: Bools) -> Iterator[tuple[tuple[int, int], NDArray[np.int64]]]:
        """Yield each writer of the segments in the mask `chosen`, with the sequences of its segments in their order."""
        for broker_id, incarnation in np.unique(self._writers[:, chosen], axis=1).T.tolist():
            writer = (broker_id, incarnation)
            yield writer, self._columns["sequence"][chosen & self.is_of(writer)].astype(np.int64)

    def find_holders(self, logs: LogFilter, chosen: Bools) -> NDArray[np.int64]:
        """Return the indexes of those segments in the mask `chosen` that have entries of some of the logs."""
        places = np.flatnonzero(chosen & (self.block_ends > self.block_starts))
        return places[logs.find_blocks(self.data, self.block_starts[places], self.block_ends[places])]
