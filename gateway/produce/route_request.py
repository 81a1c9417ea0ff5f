"""The ZoneRouteRequest: a Produce request whose record bytes were replaced by where they are in object storage.

It travels only from a gateway to the agent beside the leader. It carries the client's frame with record bytes cut out
(the skeleton), and for each cut the length and CRC32C of what belongs there. All cuts of a request lie one after the
other in one object of the RouterChannel, so one read brings all of them. The lengths that stand in front of records
stay in the skeleton, so the frame that is put together is the client's own to the last byte, whatever its encoding.

The object is named by its writer's numbers, never by a bucket, key or URL: the reader builds the name itself, within
its own store and cluster. Custom metadata, which the reader's storage manager finds the bucket by, is opaque here.

Layout (integers big endian, `varint` is Kafka's unsigned varint):

    number of the request on its connection   varint
    original frame size                       uint32
    gateway id varint, incarnation uint48, epoch varint, sequence varint
    length of custom metadata varint, custom metadata
    position of the first cut's bytes in the object   varint
    cut count                                         varint
      position in the skeleton, from the previous cut varint, length varint, CRC32C uint32    per cut
    skeleton                                          the rest

Nothing that fails a check of `splice_request` reaches a broker: the agent beside the leader then asks the gateway for
the original. Other messages name such a request by its number:

    ROUTE_INLINE_REQUEST    the request's number                              to the gateway
    ROUTE_OUTCOME           the request's number, then 1 if its records are   to the gateway
                            wanted by a log from now on, else 0
    ORIGINAL                the request's number, then the client's frame     to the leader's agent
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from gateway.produce.produce_frame import ProduceRequestView
from kafka_log.crc32c import Buffer, crc32c
from plugin.router_object_id import RouterObjectId
from plugin.segment_metadata import CUSTOM_METADATA_MAX_BYTES
from replication.wire.kafka_frame import FrameCursor, MalformedFrameError, encode_unsigned_varint

MAX_CUTS: Final = 4096
"""The most cuts in one request, which bounds the cost of reading it. A request that would have more goes inline."""
MAX_POSITION: Final = 2**32 - 1
"""The highest position in an object, in bytes."""

_UINT32: Final = struct.Struct(">I")
_NUMBER: Final = struct.Struct(">Q")
_OUTCOME: Final = struct.Struct(">QB")
_MIN_CUT_BYTES: Final = 6
_NUMBER_BITS: Final = 48


class RecordsCut(NamedTuple):
    """Record bytes of one partition that were cut out of a request: position and length."""

    skeleton_position: int
    """Their position in the skeleton."""
    length: int
    crc32c: int
    """CRC32C of the bytes as the client sent them."""


@dataclass(frozen=True, slots=True)
class ZoneRouteRequest:
    """A Produce request on its way to the leader's agent, with its records named by their place in an object."""

    number: int
    """Counts the requests of the client's connection that were sent this way."""
    original_frame_bytes: int
    object_id: RouterObjectId
    start_position: int
    """Position of the first cut's bytes in the object; each cut's bytes follow those of the one before."""
    cuts: tuple[RecordsCut, ...]
    skeleton: Sequence[Buffer]
    custom_metadata: bytes = b""
    """The object's custom metadata, as its storage manager gave it."""

    @property
    def end_position(self) -> int:
        """The position behind the last record byte in the object (exclusive)."""
        return self.start_position + self.linked_bytes

    @property
    def linked_bytes(self) -> int:
        """The size of all cuts in bytes."""
        return sum([cut.length for cut in self.cuts])


MIN_CUT_BYTES: Final = 64
"""Smaller records stay in the skeleton: naming their position takes ten bytes as well."""


class RouteSpliceError(Exception):
    """The bytes of an object are not those that were cut out of the request."""

    def __init__(self, request: ZoneRouteRequest, reason: str) -> None:
        super().__init__(f"{request.object_id} [{request.start_position}, {request.end_position}): {reason}")


@dataclass(frozen=True, slots=True)
class CutRequest:
    """A Produce request and the positions of the records to upload."""

    frame: Buffer
    spans: tuple[tuple[int, int], ...]
    """[start, end) positions in the frame, ascending and apart."""
    has_all: bool = True
    """Whether they are all the records in it."""

    @property
    def records(self) -> list[memoryview]:
        """The records to upload, in the order of the frame, as views of it: nothing is copied."""
        view = memoryview(self.frame)
        return [view[start:end] for start, end in self.spans]

    @property
    def linked_bytes(self) -> int:
        """The size of all records to upload."""
        return sum([end - start for start, end in self.spans])

    def routed(
        self, number: int, object_id: RouterObjectId, start_position: int, custom_metadata: bytes
    ) -> ZoneRouteRequest:
        """Return the request to send once its records are stored, one after the other, from `start_position` in this
        object on."""
        view = memoryview(self.frame)
        cuts: list[RecordsCut] = []
        skeleton: list[Buffer] = []
        position = skeleton_bytes = 0
        for start, end in self.spans:
            skeleton.append(view[position:start])
            skeleton_bytes += start - position
            cuts.append(RecordsCut(skeleton_bytes, end - start, crc32c(view[start:end])))
            position = end
        skeleton.append(view[position:])
        return ZoneRouteRequest(
            number, len(self.frame), object_id, start_position, tuple(cuts), skeleton, custom_metadata
        )


def cut_request(frame: Buffer, view: ProduceRequestView) -> CutRequest | None:
    """Return the request with the records that may go through object storage; None if there are none, or too many
    pieces."""
    spans = tuple(
        [(one.records_start, one.records_end) for one in view.fields
         if one.records_end - one.records_start >= MIN_CUT_BYTES]
    )  # fmt: skip
    has_all = len(spans) == sum(one.records_end > one.records_start for one in view.fields)
    return CutRequest(frame, spans, has_all) if 0 < len(spans) <= MAX_CUTS else None


def splice_request(request: ZoneRouteRequest, hydrated: Buffer) -> list[Buffer]:
    """Return the client's frame without its size prefix: buffers to be written one after the other.

    `hydrated` is what the object holds from `start_position` to `end_position`. Raises RouteSpliceError when it is
    anything but the bytes that were cut out.
    """
    if len(hydrated) != request.linked_bytes:
        raise RouteSpliceError(request, f"{len(hydrated)} bytes instead of {request.linked_bytes}")
    skeleton, records = memoryview(_joined(request.skeleton)), memoryview(hydrated)
    buffers: list[Buffer] = []
    position = taken = 0
    for cut in request.cuts:
        part = records[taken : taken + cut.length]
        if crc32c(part) != cut.crc32c:
            raise RouteSpliceError(request, f"the CRC32C of {cut.length} bytes from {taken} on differs")
        buffers += (skeleton[position : cut.skeleton_position], part)
        position, taken = cut.skeleton_position, taken + cut.length
    buffers.append(skeleton[position:])
    return buffers


def _joined(buffers: Sequence[Buffer]) -> Buffer:
    return buffers[0] if len(buffers) == 1 else b"".join(buffers)


def encode_route_request(request: ZoneRouteRequest) -> list[Buffer]:
    """Encode a request as buffers to be written one after the other; the skeleton is not copied."""
    object_id = request.object_id
    head = bytearray(encode_unsigned_varint(request.number))
    head += _UINT32.pack(request.original_frame_bytes)
    head += encode_unsigned_varint(object_id.gateway_id) + object_id.incarnation.to_bytes(6, "big")
    head += encode_unsigned_varint(object_id.epoch) + encode_unsigned_varint(object_id.sequence)
    head += encode_unsigned_varint(len(request.custom_metadata)) + request.custom_metadata
    head += encode_unsigned_varint(request.start_position)
    head += encode_unsigned_varint(len(request.cuts))
    previous = 0
    for position, length, crc in request.cuts:
        head += encode_unsigned_varint(position - previous) + encode_unsigned_varint(length) + _UINT32.pack(crc)
        previous = position
    return [head, *request.skeleton]


def decode_route_request(payload: Buffer, max_frame_bytes: int) -> ZoneRouteRequest:
    """Decode a ZoneRouteRequest; its skeleton is a view of the payload, not a copy.

    Raises MalformedFrameError when a count or length leads out of the payload, there are no cuts or more than
    `MAX_CUTS`, a cut lies outside the skeleton, or skeleton and cuts together differ from the stated size of the
    original or exceed `max_frame_bytes`.
    """
    cursor = FrameCursor(memoryview(payload))
    number = cursor.unsigned_varint(_NUMBER_BITS)
    (original_frame_bytes,) = cursor.fields(_UINT32)
    object_id = RouterObjectId(
        cursor.unsigned_varint(31),
        int.from_bytes(cursor.take(6), "big"),
        cursor.unsigned_varint(40),
        cursor.unsigned_varint(48),
    )
    custom_metadata_bytes = cursor.unsigned_varint()
    if custom_metadata_bytes > CUSTOM_METADATA_MAX_BYTES:
        raise cursor.fault("custom_metadata", f"{custom_metadata_bytes} bytes of custom metadata")
    custom_metadata = bytes(cursor.take(custom_metadata_bytes))
    start_position = cursor.unsigned_varint()
    cuts = _decode_cuts(cursor)
    skeleton = cursor.take(cursor.left)
    request = ZoneRouteRequest(
        number, original_frame_bytes, object_id, start_position, cuts, (skeleton,), custom_metadata
    )
    _check_sizes(request, len(skeleton), max_frame_bytes)
    return request


def _decode_cuts(cursor: FrameCursor) -> tuple[RecordsCut, ...]:
    count = cursor.unsigned_varint()
    if not 0 < count <= MAX_CUTS or count * _MIN_CUT_BYTES > cursor.left:
        raise cursor.fault("count", f"{count} cuts in {cursor.left} bytes")
    cuts: list[RecordsCut] = []
    position = 0
    for _ in range(count):
        position += cursor.unsigned_varint()
        length = cursor.unsigned_varint()
        if not length:
            raise cursor.fault("length", "an empty cut")
        cuts.append(RecordsCut(position, length, cursor.fields(_UINT32)[0]))
    return tuple(cuts)


def _check_sizes(request: ZoneRouteRequest, skeleton_bytes: int, max_frame_bytes: int) -> None:
    described_bytes = skeleton_bytes + request.linked_bytes
    if request.original_frame_bytes > max_frame_bytes:
        raise MalformedFrameError(0, f"a frame of {request.original_frame_bytes} bytes exceeds {max_frame_bytes}")
    if described_bytes != request.original_frame_bytes:
        raise MalformedFrameError(0, f"{described_bytes} bytes in the place of {request.original_frame_bytes}")
    if request.cuts[-1].skeleton_position > skeleton_bytes:
        position = request.cuts[-1].skeleton_position
        raise MalformedFrameError(0, f"a cut at {position} lies outside of {skeleton_bytes} bytes")
    if request.end_position > MAX_POSITION:
        raise MalformedFrameError(0, f"an object of {request.end_position} bytes")


def encode_number(number: int) -> bytes:
    """Encode a request's number, with which messages about a routed request begin."""
    return _NUMBER.pack(number)


def decode_number(body: Buffer) -> int:
    """Parse the request's number from a ROUTE_INLINE_REQUEST. Raises MalformedFrameError."""
    if len(body) != _NUMBER.size:
        raise MalformedFrameError(0, f"a request's number of {len(body)} bytes")
    return split_original(body)[0]


def split_original(body: Buffer) -> tuple[int, Buffer]:
    """Return the request's number and the frame in an ORIGINAL message. Raises MalformedFrameError."""
    if len(body) < _NUMBER.size:
        raise MalformedFrameError(0, f"an original of {len(body)} bytes")
    number: int = _NUMBER.unpack_from(body, 0)[0]
    return number, body[_NUMBER.size :]


def encode_outcome(number: int, adopted: bool) -> bytes:
    """Encode a ROUTE_OUTCOME message: whether the leader's agent adopted what a gateway stored."""
    return _OUTCOME.pack(number, adopted)


def decode_outcome(body: Buffer) -> tuple[int, bool]:
    """Parse the request's number and outcome from a ROUTE_OUTCOME. Raises MalformedFrameError."""
    if len(body) != _OUTCOME.size:
        raise MalformedFrameError(0, f"an outcome of {len(body)} bytes")
    number, adopted = _OUTCOME.unpack(body)
    return number, bool(adopted)
