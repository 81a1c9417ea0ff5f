"""The protocol between two agents, sans-IO.

Every message is framed as Kafka frames are: four bytes of size, then the payload. The first message in either direction
is a hello, told from a Kafka request by its first four bytes (no API has their number); a connection without a hello is
a plain Kafka connection, whose peer gets no links. After the hellos, a payload's first byte is its kind (and how the
rest is packed, see `replication.wire.packed_message`):

    KAFKA           a Kafka frame, unchanged                                   both ways
    LINKED          a linked response (`replication.wire.link`)                     leader to follower
    ANNOUNCE        a combined segment was stored, and which of its bytes      leader to follower
                    hold partitions that this connection fetches
    INLINE_REQUEST  the linked response with this number, counted from 1 on    follower to leader
                    each connection, could not be hydrated: send the original
    LINKS_PAUSED    object storage fails here: send everything inline          follower to leader
    LINKS_RESUMED   it answers again                                           follower to leader
    READ_AHEAD      ranges of an object that this connection, which is far     leader to follower
                    behind, will be given links to; as ANNOUNCE
    LINKED_OLD      as LINKED, to a follower that is far behind                leader to follower
    READ_ARCHIVE_AHEAD  as READ_AHEAD, of an archive object                    leader to follower
    ZONE_ROUTE_REQUEST  a client's Produce request without its records         gateway to leader
    ORIGINAL        the frame of such a request, or of a linked response, as   both ways
                    it was asked for; it takes the place of that
    ROUTE_INLINE_REQUEST  the request with this number could not be spliced:   leader to gateway
                    send the original
    ROUTE_OUTCOME   whether a log wants what was spliced of the request with   leader to gateway
                    this number
    ANNOUNCE_SHARED as ANNOUNCE, with who else in the follower's zone reads    leader to follower
                    the object (`ZoneReading`)
    RANGE_REQUEST   a range of an object that the neighbour reads              asker to neighbour
    RANGE           its bytes                                                  neighbour to asker
    RANGE_REFUSED   they are to be read from the store                         neighbour to asker
    IDLE_REQUEST    a Fetch without partitions (`replication.wire.idle_fetch`)     follower to leader
    IDLE_RESPONSE   its response, which has none                               leader to follower

What READ_AHEAD, LINKED_OLD and READ_ARCHIVE_AHEAD name is read within the quota for such reads. All agents of one
protocol version understand all of this; a peer is sent only what its hello asks for (`PeerCapabilities`).

One peer connection stands for one connection of a broker's replica fetcher, so order and closing carry over. One whose
hello asks for CLIENTS stands for a connection of a client in another zone, and carries none of these messages, but for
KAFKA and, where both have ROUTED_PRODUCE, ZONE_ROUTE_REQUEST, ORIGINAL and ROUTE_INLINE_REQUEST, with ADOPTED_RECORDS
ROUTE_OUTCOME as well; where both have LINKED_FETCH, LINKED, INLINE_REQUEST, ORIGINAL, LINKS_PAUSED and LINKS_RESUMED.
One whose hello asks for RANGES is between two agents of a zone, and carries RANGE_REQUEST, RANGE and RANGE_REFUSED
alone. One whose hello asks for VISIBLE carries KAFKA, with Fetch requests of the gateway itself, and what LINKED_FETCH
adds. One whose hello asks for PRESENCE carries hellos alone: each is answered by one, for as long as the agent lives.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import CONFORM, Flag, IntEnum
from hashlib import blake2b

from kafka_log.crc32c import Buffer, crc32c
from plugin.format.archive_object_id import ARCHIVE_OBJECT_ID_BYTES, ArchiveObjectId, StoredObjectId
from plugin.segment_metadata import CUSTOM_METADATA_MAX_BYTES, CombinedSegmentId
from replication.wire.kafka_frame import MalformedFrameError

HELLO_MAGIC = b"RWAL"
PROTOCOL_VERSION = 1
"""Changes with any change of a message or a link. Agents of two versions replicate, with all records inline."""
MAX_HELLO_BYTES = 512
MAX_ANNOUNCED_RANGES = 256

_HELLO = struct.Struct(">4sHIiQH")  # magic, version, capabilities, broker id, incarnation, cluster id's length
_SEGMENT_ID_BYTES = 16
_RANGE = struct.Struct(">II")
_SIZE = struct.Struct(">H")
_NUMBER = struct.Struct(">i")
_MAX_NUMBER = 2**31 - 1
MAX_READERS = 255
_RANGE_REQUEST = struct.Struct(">Q16sIIII")  # number, object, start, end, and what to read where nothing is there
_RANGE_RESPONSE = struct.Struct(">QI")  # number, CRC32C
_RANGE_REFUSAL = struct.Struct(">QB")  # number, why
MAX_RANGE_REQUEST_BYTES = _RANGE_REQUEST.size + CUSTOM_METADATA_MAX_BYTES
_BROKER = struct.Struct(">i")
NO_BROKER_SERVED = (-1,)
"""`Hello.unserved` of an agent that can serve clients of no broker."""
_MAX_UNSERVED = 50
"""More are told as NO_BROKER_SERVED: a hello is small."""


class PeerCapabilities(Flag, boundary=CONFORM):
    """What a connection is for, and what an agent understands; or what two agents have of that in common."""

    NONE = 0
    LINKS = 1
    """The connection is for replication, with links: never so between two protocol versions."""
    ARCHIVE_LINKS = 4
    """The agent has an archive: READ_ARCHIVE_AHEAD, and links to archive objects."""
    CLIENTS = 16
    """The connection is for a client in another zone, not for replication: requested, or, in the answer, granted."""
    ROUTED_PRODUCE = 32
    """With CLIENTS: messages follow instead of bare frames, because Produce requests may go through object storage."""
    LINKED_FETCH = 64
    """With CLIENTS: messages follow instead of bare frames, because consumers' Fetch responses may contain links."""
    ADOPTED_RECORDS = 128
    """With ROUTED_PRODUCE: objects that gateways stored may serve as the stored form of the log."""
    LINK_DIGESTS = 256
    """Links have a SHA-256, and links without are refused. Only agents with that setting announce it."""
    SHARED_READS = 512
    """ANNOUNCE_SHARED: one agent of a zone reads an object for all of them."""
    RANGES = 1024
    """The connection is for ranges of objects, not for replication: requested, or, in the answer, granted."""
    PRESENCE = 4096
    """The connection asks only whether the agent is there: requested, or, in the answer, granted."""
    VISIBLE = 8192
    """The connection is for what becomes visible to consumers of the agent's broker: requested, or, in the answer,
    granted.
    """
    PACKED = 16384
    """Messages may be packed (`replication.wire.packed_message`). With CLIENTS: messages follow instead of bare
    frames. Only agents with that setting announce it.
    """


MESSAGES = PeerCapabilities.ROUTED_PRODUCE | PeerCapabilities.LINKED_FETCH | PeerCapabilities.PACKED
"""With any of these, messages instead of bare frames are exchanged for a client."""
CAPABILITIES = PeerCapabilities.LINKS | PeerCapabilities.ARCHIVE_LINKS
"""Those of a connection for replication, where no setting says otherwise."""


class MessageKind(IntEnum):
    """The kinds of messages: a payload's first byte, without the bits that mark packed ones."""

    KAFKA = 0
    LINKED = 1
    ANNOUNCE = 2
    INLINE_REQUEST = 3
    LINKS_PAUSED = 4
    LINKS_RESUMED = 5
    READ_AHEAD = 6
    LINKED_OLD = 7
    READ_ARCHIVE_AHEAD = 8
    ZONE_ROUTE_REQUEST = 9
    ORIGINAL = 10
    ROUTE_INLINE_REQUEST = 11
    ROUTE_OUTCOME = 12
    ANNOUNCE_SHARED = 13
    RANGE_REQUEST = 14
    RANGE = 15
    RANGE_REFUSED = 16
    IDLE_REQUEST = 17
    IDLE_RESPONSE = 18


class PeerRefusedError(Exception):
    """The other side is not the expected agent: another cluster, another broker, or no agent at all."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message on a connection: which agent sends it, and what it understands."""

    cluster_id: str
    broker_id: int
    incarnation: int
    capabilities: PeerCapabilities = CAPABILITIES
    version: int = PROTOCOL_VERSION
    unserved: tuple[int, ...] = ()
    """In an answer to PRESENCE: brokers whose clients the agent cannot serve now as their zone's gateway."""

    def encode(self) -> bytes:
        """Return the hello's payload."""
        cluster_id = self.cluster_id.encode()
        told = self.unserved if len(self.unserved) <= _MAX_UNSERVED else NO_BROKER_SERVED
        fields = self.version, self.capabilities.value, self.broker_id, self.incarnation, len(cluster_id)
        return _HELLO.pack(HELLO_MAGIC, *fields) + cluster_id + b"".join(map(_BROKER.pack, told))

    @classmethod
    def decode(cls, payload: Buffer) -> "Hello":
        """Parse a hello. Raises MalformedFrameError when the payload is not a hello."""
        if len(payload) > MAX_HELLO_BYTES or len(payload) < _HELLO.size:
            raise MalformedFrameError(0, f"a hello of {len(payload)} bytes")
        magic, version, capabilities, broker_id, incarnation, cluster_id_bytes = _HELLO.unpack_from(payload, 0)
        end = _HELLO.size + cluster_id_bytes
        if magic != HELLO_MAGIC or len(payload) < end or (len(payload) - end) % _BROKER.size or broker_id < 0:
            raise MalformedFrameError(0, "not a hello")
        cluster_id = bytes(payload[_HELLO.size : end]).decode("utf-8", "replace")
        unserved = tuple(one for (one,) in _BROKER.iter_unpack(payload[end:]))
        return cls(cluster_id, broker_id, incarnation, PeerCapabilities(capabilities), version, unserved)


def is_hello(payload: Buffer) -> bool:
    """Whether a connection's first frame is a hello rather than a Kafka request."""
    return bytes(payload[: len(HELLO_MAGIC)]) == HELLO_MAGIC


def agree(own: Hello, peer: Hello) -> PeerCapabilities:
    """Return the capabilities that both have; with different versions CLIENTS at most, as both understand bare frames.

    Raises PeerRefusedError when the peer belongs to another cluster.
    """
    if own.cluster_id != peer.cluster_id:
        raise PeerRefusedError(f"broker {peer.broker_id} belongs to cluster {peer.cluster_id}, not {own.cluster_id}")
    common = own.capabilities & peer.capabilities
    return common if own.version == peer.version else common & PeerCapabilities.CLIENTS


@dataclass(frozen=True, slots=True)
class Announcement:
    """A stored object, and its ranges that the follower will get links to."""

    object_id: StoredObjectId
    ranges: tuple[tuple[int, int], ...]
    """[start, end) positions in bytes, ascending and apart."""
    custom_metadata: bytes = b""
    """The combined segment's custom metadata; opaque here."""

    def encode(self) -> bytes:
        """Return the announcement's body. Whether it names a combined segment or an archive object, the message's
        kind says."""
        return b"".join(
            (
                self.object_id.to_bytes(),
                encode_ranges(self.ranges),
                *((_SIZE.pack(len(self.custom_metadata)), self.custom_metadata) if self.custom_metadata else ()),
            )
        )

    @classmethod
    def decode(cls, body: Buffer) -> "Announcement":
        """Parse an announcement of a combined segment from a message's body. Raises MalformedFrameError."""
        ranges, rest = decode_ranges(body, _SEGMENT_ID_BYTES)
        segment_id = CombinedSegmentId.from_bytes(bytes(body[:_SEGMENT_ID_BYTES]))
        return cls(segment_id, ranges, _decode_custom_metadata(rest) if rest else b"")

    @classmethod
    def decode_archive(cls, body: Buffer) -> "Announcement":
        """Parse an announcement of an archive object from a message's body. Raises MalformedFrameError."""
        ranges, rest = decode_ranges(body, ARCHIVE_OBJECT_ID_BYTES)
        if rest:
            raise MalformedFrameError(0, f"{len(rest)} bytes behind the ranges of an archive object")
        try:
            return cls(ArchiveObjectId.from_bytes(bytes(body[:ARCHIVE_OBJECT_ID_BYTES])), ranges)
        except ValueError as error:
            raise MalformedFrameError(0, str(error)) from error


def encode_ranges(ranges: tuple[tuple[int, int], ...]) -> bytes:
    """Encode ranges: their number less one as a byte, then start and end of each."""
    return b"".join((bytes((len(ranges) - 1,)), *(_RANGE.pack(start, end) for start, end in ranges)))


def decode_ranges(body: Buffer, position: int) -> tuple[tuple[tuple[int, int], ...], bytes]:
    """Decode the ranges at this position; also return what follows them. Raises MalformedFrameError."""
    first = position + 1
    if len(body) < first:
        raise MalformedFrameError(0, f"an announcement of {len(body)} bytes")
    count = body[position] + 1
    rest = first + count * _RANGE.size
    if len(body) < rest:
        raise MalformedFrameError(first, f"{count} ranges in {len(body)} bytes")
    ranges = tuple(_RANGE.unpack_from(body, first + index * _RANGE.size) for index in range(count))
    if any(start >= end for start, end in ranges):
        raise MalformedFrameError(first, "an empty range")
    return ranges, bytes(body[rest:])


def _decode_custom_metadata(body: bytes) -> bytes:
    size = int.from_bytes(body[: _SIZE.size], "big")
    if not 0 < size <= CUSTOM_METADATA_MAX_BYTES or len(body) != _SIZE.size + size:
        raise MalformedFrameError(0, f"{size} bytes of custom metadata in {len(body)} bytes")
    return body[_SIZE.size :]


def next_number(number: int) -> int:
    """Return the number of the linked response behind the one with this number."""
    return (number + 1) & _MAX_NUMBER


def encode_inline_request(number: int) -> bytes:
    return _NUMBER.pack(number)


def decode_inline_request(body: Buffer) -> int:
    """Parse the response's number from a message's body. Raises MalformedFrameError."""
    if len(body) != _NUMBER.size:
        raise MalformedFrameError(0, f"an inline request of {len(body)} bytes")
    return int(_NUMBER.unpack_from(body)[0])


def coalesce_ranges(
    ranges: list[tuple[int, int]], max_gap_bytes: int, max_ranges: float = MAX_ANNOUNCED_RANGES
) -> tuple[tuple[int, int], ...]:
    """Join ascending ranges if reading the gap between them costs less than another request.

    Beyond `max_ranges` the last range covers the rest.
    """
    joined: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if joined and (start - joined[-1][1] <= max_gap_bytes or len(joined) == max_ranges):
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return tuple(joined)


class RangeRefusal(IntEnum):
    """The reason why a neighbour does not give a range."""

    BUSY = 0
    """It already reads and gives as much as it may."""
    NOT_READ = 1
    """Its own read failed, or it asks another agent itself."""


_REASONS = {one.value: one.name.lower() for one in RangeRefusal}


@dataclass(frozen=True, slots=True)
class ZoneReading:
    """Which agents of a zone read an object, and the ranges that all of them together want.

    A leader's agent knows which brokers of a zone follow partitions of an object, and which of their agents are
    connected. So it says which of them to ask, in which order, and what the first one must read. All agents of a zone
    get the same list at the same time, so none needs to know which others are alive.
    """

    readers: tuple[int, ...]
    """Brokers in the order in which to ask their agents; the first reads for all."""
    ranges: tuple[tuple[int, int], ...]
    """[start, end) positions in bytes, ascending and apart."""

    def around(self, start: int, end: int) -> tuple[int, int]:
        """Return the range that the reader reads for all agents, around these bytes."""
        return next((each for each in self.ranges if each[0] <= start and end <= each[1]), (start, end))

    def encode(self) -> bytes:
        """Encode readers and ranges as bytes, which stand in front of an announcement's body."""
        readers = (_BROKER.pack(one) for one in self.readers)
        return b"".join((bytes((len(self.readers),)), *readers, encode_ranges(self.ranges)))

    @classmethod
    def decode(cls, body: Buffer) -> tuple["ZoneReading", bytes]:
        """Parse readers and ranges from a body; also return the announcement behind. Raises MalformedFrameError."""
        end = 1 + body[0] * _BROKER.size if len(body) else 1
        if len(body) <= end:
            raise MalformedFrameError(0, f"a shared announcement of {len(body)} bytes")
        readers = tuple(one for (one,) in _BROKER.iter_unpack(bytes(body[1:end])))
        ranges, rest = decode_ranges(body, end)
        return cls(readers, ranges), rest


def in_order(segment_id: CombinedSegmentId, readers: Iterable[int]) -> tuple[int, ...]:
    """Return the readers in the order of rendezvous hashing: the first reads the object, the next ones replace it.

    Rendezvous hashing spreads objects evenly, and when a reader leaves, only the objects that it would have read move.
    """
    key = segment_id.to_bytes()

    def weight(reader: int) -> tuple[bytes, int]:
        return blake2b(_BROKER.pack(reader), digest_size=8, key=key).digest(), reader

    return tuple(sorted(readers, key=weight)[:MAX_READERS])


@dataclass(frozen=True, slots=True)
class RangeRequest:
    """A request for bytes [start, end) of a combined segment.

    If they are not cached, the neighbour reads all of `read`.
    """

    number: int
    segment_id: CombinedSegmentId
    start: int
    end: int
    read: tuple[int, int]
    custom_metadata: bytes = b""

    def encode(self) -> bytes:
        """Return the request as a message's body."""
        raw_id = self.segment_id.to_bytes()
        return _RANGE_REQUEST.pack(self.number, raw_id, self.start, self.end, *self.read) + self.custom_metadata

    @classmethod
    def decode(cls, body: Buffer) -> "RangeRequest":
        """Parse a request from a message's body. Raises MalformedFrameError."""
        if not _RANGE_REQUEST.size <= len(body) <= MAX_RANGE_REQUEST_BYTES:
            raise MalformedFrameError(0, f"a range request of {len(body)} bytes")
        number, raw_id, start, end, read_start, read_end = _RANGE_REQUEST.unpack_from(body)
        if not read_start <= start < end <= read_end:
            raise MalformedFrameError(0, f"bytes {start} to {end} of those from {read_start} to {read_end}")
        segment_id = CombinedSegmentId.from_bytes(raw_id)
        return cls(number, segment_id, start, end, (read_start, read_end), bytes(body[_RANGE_REQUEST.size :]))


def encode_range_response(number: int, data: Buffer) -> bytes:
    """Return the header of a response to a RANGES request; the data follows it."""
    return _RANGE_RESPONSE.pack(number, crc32c(data))


def decode_range_response(body: memoryview) -> tuple[int, memoryview | None]:
    """Return the request's number and the data; None for data that was altered on the network. Raises
    MalformedFrameError."""
    if len(body) < _RANGE_RESPONSE.size:
        raise MalformedFrameError(0, f"an answer of {len(body)} bytes")
    number, checksum = _RANGE_RESPONSE.unpack_from(body)
    data = body[_RANGE_RESPONSE.size :]
    return number, data if crc32c(data) == checksum else None


def encode_refusal(number: int, why: RangeRefusal) -> bytes:
    """Return the body of a message that refuses a RANGES request, with the reason."""
    return _RANGE_REFUSAL.pack(number, why)


def decode_refusal(body: Buffer) -> tuple[int, str]:
    """Return the refused request's number and the reason. Raises MalformedFrameError."""
    if len(body) != _RANGE_REFUSAL.size:
        raise MalformedFrameError(0, f"a refusal of {len(body)} bytes")
    number, why = _RANGE_REFUSAL.unpack(body)
    return number, _REASONS.get(why, "unknown")
