"""The linked response: a Fetch response in which links to object storage replace the records.

A linked response travels only between two agents. It carries the original frame with some records fields cut out (the
skeleton). For each cut it lists what belongs there, in order: ranges of bytes of an object (`SegmentLink`), or the
bytes themselves (`InlineBytes`). The reader fills in the fields and need not understand the Fetch frame itself.

A link names a combined segment by its writer's broker id, incarnation and sequence, or an archive object by partition,
offsets and writer. It cannot name a bucket, a key or a URL: the reader builds the key itself, within its own store and
cluster. Links to archive objects (`PeerCapabilities.ARCHIVE_LINKS`) are long and rare: each has its object's whole id.
Custom metadata, by which the reader's storage manager finds a combined segment, is opaque here. Only the first link to
a segment carries it; where there is none, it takes no byte.

Layout (integers big endian, `varint` is Kafka's unsigned varint):

original frame size   uint32
segment count         varint
broker id varint, incarnation uint48, sequence uint48         per segment
cut count             varint
position in the skeleton, from the previous cut   varint      per cut
part count                                        varint
    kind 0: segment index varint, start position varint, length varint, CRC32C uint32
    kind 1: length varint, bytes
    kind 2: archive object id (52 bytes), start position varint, length varint, CRC32C uint32
    kind 3: segment index varint, length varint, custom metadata of that segment from here on; the rest as kind 0
    a link's kind with its highest bit: behind the CRC32C, SHA-256 (32 bytes; `PeerCapabilities.LINK_DIGESTS`)
skeleton              the rest

`splice` puts a linked response together again, and checks that it is what the leader's broker sent. Nothing that fails
a check there reaches a broker: the caller then asks the leader's agent for the bytes inline.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from kafka_log.batch_digests import DIGEST_BYTES, records_digest
from kafka_log.byte_cursor import ByteCursor
from kafka_log.crc32c import Buffer, crc32c
from kafka_log.record_batch import CorruptBatchError, scan_batches
from plugin.format.archive_object_id import ARCHIVE_OBJECT_ID_BYTES, ArchiveObjectId, StoredObjectId
from plugin.segment_metadata import CUSTOM_METADATA_MAX_BYTES, CombinedSegmentId
from replication.wire.fetch_frame import RecordsField
from replication.wire.kafka_frame import MalformedFrameError, encode_unsigned_varint
from replication.wire.packed_message import TopicRecords

_FRAME_SIZE = struct.Struct(">I")
_CRC32C = struct.Struct(">I")
_SEGMENT_LINK = 0
_INLINE_BYTES = 1
_ARCHIVE_LINK = 2
_LINK_WITH_CUSTOM_METADATA = 3
_HAS_DIGEST = 0x80
_VARINT_BITS = 63

MAX_ITEMS = 8192
"""The most objects, cuts and parts in one response together, which bounds the cost of reading a payload of megabytes. A
response that would have more goes inline."""


@dataclass(frozen=True, slots=True)
class SegmentLink:
    """A link: whole record batches that are the bytes [start_position, start_position + length) of an object."""

    object_id: StoredObjectId
    start_position: int
    length: int
    crc32c: int
    """CRC32C of those bytes as the leader's broker returned them in this very response."""
    custom_metadata: bytes = b""
    """The combined segment's custom metadata, as its storage manager gave it."""
    sha256: bytes = b""
    """SHA-256 of those bytes (`kafka_log.batch_digests`); empty unless both agents agreed on digests."""

    @property
    def end_position(self) -> int:
        """The position behind the link's last byte in the object (exclusive)."""
        return self.start_position + self.length


@dataclass(frozen=True, slots=True)
class InlineBytes:
    """A part of a records field whose bytes travel with the response."""

    data: Buffer

    @property
    def length(self) -> int:
        """The number of bytes."""
        return len(self.data)


Part = SegmentLink | InlineBytes


@dataclass(frozen=True, slots=True)
class Cut:
    """A records field that was cut out of a response, as links and inline bytes; without parts it is now empty."""

    skeleton_position: int
    """The position in the skeleton of the field, including its length varint."""
    parts: tuple[Part, ...]

    @property
    def length(self) -> int:
        """The number of record bytes that the parts stand for."""
        return sum([part.length for part in self.parts])


@dataclass(frozen=True, slots=True)
class LinkedResponse:
    """A Fetch response on its way between agents, with links in place of records."""

    original_frame_bytes: int
    cuts: tuple[Cut, ...]
    skeleton: Sequence[Buffer]
    links: tuple[SegmentLink, ...] = field(init=False, compare=False, repr=False)
    """All links in the order of the frame. Collected once, because each step on a response's way asks for them."""

    def __post_init__(self) -> None:
        links = tuple([part for cut in self.cuts for part in cut.parts if isinstance(part, SegmentLink)])
        object.__setattr__(self, "links", links)

    @property
    def items(self) -> int:
        """The number of cuts, parts, and objects named by links, which `MAX_ITEMS` bounds."""
        parts = [part for cut in self.cuts for part in cut.parts]
        return len(self.cuts) + len(parts) + len({part.object_id for part in parts if isinstance(part, SegmentLink)})


def encode_linked_response(response: LinkedResponse) -> list[Buffer]:
    """Return the response as buffers to be written one after the other; record bytes are not copied."""
    segments: dict[CombinedSegmentId, int] = {}
    told: dict[int, bytes] = {}
    for link in response.links:
        if not isinstance(link.object_id, ArchiveObjectId):
            segments.setdefault(link.object_id, len(segments))
    head = bytearray(_FRAME_SIZE.pack(response.original_frame_bytes))
    head += encode_unsigned_varint(len(segments))
    for segment in segments:
        head += encode_unsigned_varint(segment.broker_id)
        head += segment.incarnation.to_bytes(6, "big") + segment.sequence.to_bytes(6, "big")
    head += encode_unsigned_varint(len(response.cuts))
    buffers: list[Buffer] = []
    previous = 0
    for cut in response.cuts:
        head += encode_unsigned_varint(cut.skeleton_position - previous)
        head += encode_unsigned_varint(len(cut.parts))
        previous = cut.skeleton_position
        for part in cut.parts:
            if isinstance(part, SegmentLink):
                head += _encode_link(part, segments, told)
            else:
                head.append(_INLINE_BYTES)
                head += encode_unsigned_varint(part.length)
                buffers += [head, part.data]
                head = bytearray()
    return [*buffers, head, *response.skeleton]


def records_of(response: LinkedResponse, fields: Sequence[RecordsField], body: Sequence[Buffer]) -> list[TopicRecords]:
    """Return where in `body`, the encoded linked response, records are; `fields` are those of the original response."""
    heads = body[: len(body) - len(response.skeleton)]  # every second one is inline bytes, in the order of the cuts
    inline_ends, cuts = iter(list(accumulate(map(len, heads)))[1::2]), iter(response.cuts)
    skeleton_start = sum(map(len, body)) - sum(map(len, response.skeleton))
    within, behind = list[TopicRecords](), list[TopicRecords]()
    cut, removed_bytes = next(cuts, None), 0
    for one in fields:
        topic, shift = one.topic_id or one.topic_name or "", skeleton_start - removed_bytes
        if cut is not None and cut.skeleton_position == one.length_start - removed_bytes:
            removed_bytes += one.records_end - one.length_start
            inline = [part.length for part in cut.parts if isinstance(part, InlineBytes)]
            within += [TopicRecords(topic, end - size, end) for size, end in zip(inline, inline_ends, strict=False)]
            cut = next(cuts, None)
        elif one.records_end > one.records_start:
            behind.append(TopicRecords(topic, one.records_start + shift, one.records_end + shift))
    return within + behind


def _encode_link(link: SegmentLink, segments: Mapping[CombinedSegmentId, int], told: dict[int, bytes]) -> bytes:
    """Encode one link. `told` has the custom metadata of the segments that earlier links named."""
    digest = _HAS_DIGEST if link.sha256 else 0
    if isinstance(link.object_id, ArchiveObjectId):
        named = bytes((_ARCHIVE_LINK | digest,)) + link.object_id.to_bytes()
    elif told.get(index := segments[link.object_id], b"") == link.custom_metadata:
        named = bytes((_SEGMENT_LINK | digest,)) + encode_unsigned_varint(index)
    else:
        told[index] = link.custom_metadata
        named = bytes((_LINK_WITH_CUSTOM_METADATA | digest,)) + encode_unsigned_varint(index)
        named += encode_unsigned_varint(len(link.custom_metadata)) + link.custom_metadata
    return b"".join(
        (named, encode_unsigned_varint(link.start_position), encode_unsigned_varint(link.length),
         _CRC32C.pack(link.crc32c), link.sha256)
    )  # fmt: skip


def decode_linked_response(payload: Buffer, max_frame_bytes: int) -> LinkedResponse:
    """Decode what `encode_linked_response` made.

    Raises MalformedFrameError when a count or length leads out of the payload, there are more than `MAX_ITEMS`, a cut
    lies outside the skeleton, two links name the same bytes, the frame that it describes is larger than the stated size
    of the original, or that size exceeds `max_frame_bytes`.
    """
    reader = _Reader(payload)
    original_frame_bytes = reader.uint32()
    if original_frame_bytes > max_frame_bytes:
        raise MalformedFrameError(0, f"an original frame of {original_frame_bytes} bytes exceeds {max_frame_bytes}")
    segments = [_decode_segment(reader) for _ in range(reader.count(min_item_bytes=13))]
    told: dict[int, bytes] = {}
    cuts: list[Cut] = []
    position = 0
    for _ in range(reader.count(min_item_bytes=2)):
        position += reader.unsigned_varint(_VARINT_BITS)
        parts = tuple([_decode_part(reader, segments, told) for _ in range(reader.count(min_item_bytes=2))])
        cuts.append(Cut(position, parts))
    skeleton = reader.take(reader.left)
    if position > len(skeleton):
        raise MalformedFrameError(reader.position, f"a cut at {position} lies outside of {len(skeleton)} bytes")
    described_bytes = len(skeleton) + sum(_field_bytes(cut.length) for cut in cuts)
    if described_bytes > original_frame_bytes:  # things are left out at most
        raise MalformedFrameError(0, f"{described_bytes} bytes in the place of {original_frame_bytes}")
    response = LinkedResponse(original_frame_bytes, tuple(cuts), (skeleton,))
    _expect_each_range_once(response.links)
    return response


def _field_bytes(length: int) -> int:
    """Return the size of a records field: so many bytes of records, and their length before them."""
    return len(encode_unsigned_varint(length + 1)) + length


def _expect_each_range_once(links: Sequence[SegmentLink]) -> None:
    """Raise MalformedFrameError if two links overlap: an object's bytes belong to one log, where they occur once."""
    ends: dict[StoredObjectId, int] = {}
    for link in sorted(links, key=lambda one: one.start_position):
        if link.start_position < ends.get(link.object_id, 0):
            raise MalformedFrameError(0, f"{link.object_id} is linked twice at {link.start_position}")
        ends[link.object_id] = link.end_position


def _decode_segment(reader: "_Reader") -> CombinedSegmentId:
    broker_id = reader.unsigned_varint(_VARINT_BITS)
    if broker_id > 0x7FFFFFFF:
        raise MalformedFrameError(reader.position, f"broker id {broker_id}")
    return CombinedSegmentId(broker_id, int.from_bytes(reader.take(6), "big"), int.from_bytes(reader.take(6), "big"))


def _decode_part(reader: "_Reader", segments: Sequence[CombinedSegmentId], told: dict[int, bytes]) -> Part:
    kind = reader.take(1)[0]
    has_digest, kind = bool(kind & _HAS_DIGEST), kind & ~_HAS_DIGEST
    if kind == _INLINE_BYTES and not has_digest:
        return InlineBytes(reader.take(reader.unsigned_varint(_VARINT_BITS)))
    object_id: StoredObjectId
    custom_metadata = b""
    if kind in (_SEGMENT_LINK, _LINK_WITH_CUSTOM_METADATA):
        segment_index = reader.unsigned_varint(_VARINT_BITS)
        if segment_index >= len(segments):
            raise MalformedFrameError(reader.position, f"segment {segment_index} of {len(segments)}")
        object_id = segments[segment_index]
        if kind == _LINK_WITH_CUSTOM_METADATA:
            told[segment_index] = _decode_custom_metadata(reader)
        custom_metadata = told.get(segment_index, b"")
    elif kind == _ARCHIVE_LINK:
        object_id = _decode_archive_object(reader)
    else:
        raise MalformedFrameError(reader.position, f"unknown kind of part {kind}")
    start_position, length = reader.unsigned_varint(_VARINT_BITS), reader.unsigned_varint(_VARINT_BITS)
    crc, sha256 = reader.uint32(), bytes(reader.take(DIGEST_BYTES)) if has_digest else b""
    return SegmentLink(object_id, start_position, length, crc, custom_metadata, sha256)


def _decode_custom_metadata(reader: "_Reader") -> bytes:
    size = reader.unsigned_varint(_VARINT_BITS)
    if size > CUSTOM_METADATA_MAX_BYTES:
        raise MalformedFrameError(reader.position, f"{size} bytes of custom metadata")
    return bytes(reader.take(size))


def _decode_archive_object(reader: "_Reader") -> ArchiveObjectId:
    start = reader.position
    try:
        return ArchiveObjectId.from_bytes(bytes(reader.take(ARCHIVE_OBJECT_ID_BYTES)))
    except ValueError as error:
        raise MalformedFrameError(start, str(error)) from error


class _Reader(ByteCursor):
    """Takes bytes from a payload."""

    __slots__ = ("_items_left",)

    def __init__(self, payload: Buffer) -> None:
        super().__init__(memoryview(payload))
        self._items_left = MAX_ITEMS

    def fault(self, _reason: str, detail: str) -> MalformedFrameError:
        return MalformedFrameError(self.position, detail)

    def uint32(self) -> int:
        return self.fields(_CRC32C)[0]

    def count(self, min_item_bytes: int) -> int:
        count = self.unsigned_varint(_VARINT_BITS)
        if count * min_item_bytes > self.left:
            raise MalformedFrameError(self.position, f"{count} items exceed the payload")
        self._items_left -= count
        if self._items_left < 0:
            raise MalformedFrameError(self.position, f"{count} more items than {MAX_ITEMS} in all")
        return count


class SpliceError(Exception):
    """Bytes from object storage are not those that the link names. `link` is that link."""

    def __init__(self, link: SegmentLink, reason: str) -> None:
        self.link = link
        self.reason = reason
        super().__init__(f"object {link.object_id} [{link.start_position}, {link.end_position}): {reason}")


class ForgedRangeError(SpliceError):
    """The bytes have the right CRC32C and the wrong SHA-256: that is no accident."""


def verify_digests(links: Sequence[SegmentLink], hydrated: Sequence[Buffer]) -> None:
    """Check bytes that passed `splice` against the links' SHA-256; links without one are skipped. Raises
    ForgedRangeError."""
    for link, data in zip(links, hydrated, strict=True):
        if link.sha256 and records_digest(data) != link.sha256:
            raise ForgedRangeError(link, "the SHA-256 differs where the CRC32C does not")


def verify_hydrated(link: SegmentLink, hydrated: Buffer, above: int = -1) -> int:
    """Check the bytes that were fetched for a link: length, CRC32C, and a chain of whole batch headers.

    The leader's agent took the CRC32C over the bytes in its broker's own response. So equal CRCs mean equal bytes, base
    offsets and leader epochs included. Offsets must ascend, and be above `above`, because no honest leader sends the
    same batch twice. Returns the last offset; raises SpliceError.
    """
    if len(hydrated) != link.length:
        raise SpliceError(link, f"{len(hydrated)} bytes instead of {link.length}")
    if crc32c(hydrated) != link.crc32c:
        raise SpliceError(link, "the CRC32C differs")
    try:
        batches = scan_batches(hydrated, 0, len(hydrated))
    except CorruptBatchError as error:
        raise SpliceError(link, str(error)) from error
    if not batches or batches[-1].end != len(hydrated):
        raise SpliceError(link, "the bytes are no whole record batches")
    for batch in batches:
        if batch.base_offset <= above:
            raise SpliceError(link, f"offset {batch.base_offset} comes after {above}")
        above = batch.last_offset
    return above


def splice(response: LinkedResponse, hydrated: Sequence[Buffer]) -> list[Buffer]:
    """Return the response as Kafka's frame, without its size prefix: buffers to be written one after the other.

    `hydrated[i]` are the bytes for `response.links[i]`. Raises SpliceError when any of them does not match its link.
    """
    remaining = zip(response.links, hydrated, strict=True)
    for cut in response.cuts:
        last_offset = -1
        for part in cut.parts:
            if isinstance(part, SegmentLink):
                last_offset = verify_hydrated(*next(remaining), last_offset)
    return _put_together(response, iter(hydrated))


def _put_together(response: LinkedResponse, remaining: Iterator[Buffer]) -> list[Buffer]:
    skeleton = memoryview(b"".join(response.skeleton))
    buffers: list[Buffer] = []
    position = 0
    for cut in response.cuts:
        buffers.append(skeleton[position : cut.skeleton_position])
        position = cut.skeleton_position
        records = [part.data if isinstance(part, InlineBytes) else next(remaining) for part in cut.parts]
        buffers.append(encode_unsigned_varint(sum(map(len, records)) + 1))
        buffers += records
    buffers.append(skeleton[position:])
    return buffers
