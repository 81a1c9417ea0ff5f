"""Packs the messages of one connection between agents by zstd, and unpacks them. Sans-IO.

Messages up to `MAX_STREAMED_BYTES` go through one zstd stream for each direction, flushed after each message:
requests, links and small record batches repeat what came before them. Larger messages are frames of their own, so that
another thread can pack and unpack them. Records that are not to be packed travel as they are beside those that are.

A payload's first byte is the message's kind. Its two highest bits say how the body follows:

    0x00  the body
    0x80  the body's size less one (uint16), then one flushed block of the stream
    0x40  the body's size (uint32), then pieces: form (uint8), size and packed size (uint32 each), bytes
              form 0: plain; 1: a flushed block of the stream; 2: a zstd frame of its own

The body's size is known, and bounded, before anything is unpacked. What unpacks to anything else is malformed.
"""

import struct
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, NamedTuple

from kafka_log.crc32c import Buffer
from kafka_log.zstd import (
    CompressionParameter,
    DecompressionParameter,
    ZstdCompressor,
    ZstdDecompressor,
    ZstdError,
)
from replication.wire.kafka_frame import MalformedFrameError

STREAMED: Final = 0x80
IN_PIECES: Final = 0x40
MAX_STREAMED_BYTES: Final = 64 * 1024
"""Packing so much takes the event loop 0.3 ms, and unpacking 0.1 ms. Measured with events in JSON."""
MAX_PIECES: Final = 1024
"""The most pieces of a message, which bounds the cost of reading one. What would need more is sent plain."""

_LEVEL: Final = 1
"""Level 3 packs by 2 % more and takes five times the memory. Measured with events in JSON."""
_STREAM_WINDOW_LOG: Final = 16
"""64 KiB: 260 KB for both directions of a connection at one end. Larger windows pack no better. Measured likewise."""
_FRAME_WINDOW_LOG: Final = 19
_MIN_BLOCK_BYTES: Final = 2 * 1024
"""Smaller runs of one topic are packed together with others': a flush costs some bytes (guessed)."""
_STREAM_SIZE: Final = struct.Struct(">H")
_SIZE: Final = struct.Struct(">I")
_PIECE: Final = struct.Struct(">BII")
_PLAIN, _BLOCK, _FRAME = range(3)

Topic = Hashable
"""A topic's id, or its name where a frame has names."""


class TopicRecords(NamedTuple):
    """The position in a message's body of one partition's records, and their topic."""

    topic: Topic
    start: int
    end: int


@dataclass(slots=True)
class Piece:
    """A part of a message's body that is either packed or plain as a whole."""

    start: int
    end: int
    is_packed: bool
    records: dict[Topic, int] = field(default_factory=dict)
    """Record bytes by topic."""


class PackedTopic(NamedTuple):
    """The size of a topic's part of a message before and after packing, headers beside the records included."""

    topic: Topic
    plain_bytes: int
    packed_bytes: int


class PackedMessage(NamedTuple):
    """A packed message: flags for the kind byte, and the bytes that follow it."""

    form: int
    payload: list[Buffer]
    topics: list[PackedTopic]


def cut(size: int, records: Iterable[TopicRecords], is_packed: Callable[[Topic], bool]) -> list[Piece]:
    """Cut a body of `size` bytes into pieces: at changes between packed and plain topics, and at topics large enough to
    be measured.

    `records` ascend. What is in front of a topic's records goes with them.
    """
    pieces: list[Piece] = []
    for topic, start, end in records:
        packs, last = is_packed(topic), pieces[-1] if pieces else None
        if last is None or last.is_packed is not packs or (packs and _is_apart(last, topic, end)):
            last = Piece(last.end if last is not None else 0, end, packs)
            pieces.append(last)
        last.end = end
        last.records[topic] = last.records.get(topic, 0) + end - start
    if not pieces:
        return [Piece(0, size, True)]
    pieces[-1].end = size
    return pieces


def _is_apart(last: Piece, topic: Topic, end: int) -> bool:
    return topic not in last.records and min(last.end - last.start, end - last.end) >= _MIN_BLOCK_BYTES


def pack_apart(body: memoryview, pieces: Sequence[Piece]) -> PackedMessage:
    """Pack a large message, on any thread."""
    return _packed(body, pieces, _FRAME, lambda: _compressor(_FRAME_WINDOW_LOG))


def _compressor(window_log: int) -> ZstdCompressor:
    return ZstdCompressor(
        options={CompressionParameter.compression_level: _LEVEL, CompressionParameter.window_log: window_log}
    )


def _packed(
    body: memoryview, pieces: Sequence[Piece], form: int, compressor: Callable[[], ZstdCompressor]
) -> PackedMessage:
    payload: list[Buffer] = [_SIZE.pack(len(body))]
    topics: list[PackedTopic] = []
    for is_packed, run in groupby(pieces, lambda piece: piece.is_packed):
        together = list(run)
        start, end = together[0].start, together[-1].end
        if not is_packed:
            payload += (_PIECE.pack(_PLAIN, end - start, end - start), body[start:end])
            continue
        blocks = list(_blocks(body, together, form, compressor(), topics))
        payload += (_PIECE.pack(form, end - start, sum(map(len, blocks))), *blocks)
    return PackedMessage(IN_PIECES, payload, topics)


def _blocks(
    body: memoryview, pieces: Sequence[Piece], form: int, compressor: ZstdCompressor, topics: list[PackedTopic]
) -> Iterator[bytes]:
    for piece in pieces:
        is_end = form == _FRAME and piece is pieces[-1]
        part = body[piece.start : piece.end]
        block = compressor.compress(part, compressor.FLUSH_FRAME if is_end else compressor.FLUSH_BLOCK)
        size, of_records = piece.end - piece.start, sum(piece.records.values())
        for topic, record_bytes in piece.records.items():
            share = record_bytes / of_records if of_records else 0.0
            topics.append(PackedTopic(topic, round(share * size), round(share * len(block))))
        yield block


class Packer:
    """Packs the small messages of one direction, in their order."""

    def __init__(self) -> None:
        self._stream: ZstdCompressor | None = None

    def pack(self, body: memoryview, pieces: Sequence[Piece]) -> PackedMessage:
        """Pack a message of up to MAX_STREAMED_BYTES. The result must be sent, or the connection closed, as the
        stream goes on."""
        if not all(piece.is_packed for piece in pieces):
            return _packed(body, pieces, _BLOCK, self._compressor)
        topics: list[PackedTopic] = []
        blocks = _blocks(body, pieces, _BLOCK, self._compressor(), topics)
        return PackedMessage(STREAMED, [_STREAM_SIZE.pack(len(body) - 1), *blocks], topics)

    def _compressor(self) -> ZstdCompressor:
        if self._stream is None:
            self._stream = _compressor(_STREAM_WINDOW_LOG)
        return self._stream


def _decompressor(window_log: int) -> ZstdDecompressor:
    return ZstdDecompressor(options={DecompressionParameter.window_log_max: window_log})


class Unpacker:
    """Unpacks the messages of one direction, in their order."""

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes` is the most that a message may unpack to."""
        self._max_bytes = max_bytes
        self._stream: ZstdDecompressor | None = None

    def size(self, payload: memoryview) -> int:
        """Return how many bytes this payload unpacks to. Raises MalformedFrameError."""
        form = payload[0] & (STREAMED | IN_PIECES)
        layout = _STREAM_SIZE if form == STREAMED else _SIZE
        if form not in (STREAMED, IN_PIECES) or len(payload) <= 1 + layout.size:
            raise MalformedFrameError(1, f"a packed message of {len(payload)} bytes")
        size = int(layout.unpack_from(payload, 1)[0]) + (layout is _STREAM_SIZE)
        if size > self._max_bytes:
            raise MalformedFrameError(1, f"a message that unpacks to {size} bytes exceeds {self._max_bytes}")
        return size

    def unpack(self, payload: memoryview, size: int) -> memoryview:
        """Return the body, whose size `size` returned; above MAX_STREAMED_BYTES on any thread, else in order.

        Raises MalformedFrameError.
        """
        if payload[0] & STREAMED:
            return memoryview(self._block(payload[1 + _STREAM_SIZE.size :], size))
        parts, position, left = list[Buffer](), 1 + _SIZE.size, size
        while position < len(payload):
            if position + _PIECE.size > len(payload) or len(parts) == MAX_PIECES:
                raise MalformedFrameError(position, "a piece outside of its message, or one of too many")
            form, plain_bytes, packed_bytes = _PIECE.unpack_from(payload, position)
            start = position + _PIECE.size
            position = start + packed_bytes
            if not 0 < plain_bytes <= left or position > len(payload):
                raise MalformedFrameError(start, f"a piece of {plain_bytes} bytes, where {left} are left")
            parts.append(self._piece(form, payload[start:position], plain_bytes, size))
            left -= plain_bytes
        if left:
            raise MalformedFrameError(position, f"{left} bytes are missing")
        return memoryview(b"".join(parts) if len(parts) > 1 else parts[0])

    def _piece(self, form: int, packed: memoryview, plain_bytes: int, of_bytes: int) -> Buffer:
        if form == _BLOCK and of_bytes <= MAX_STREAMED_BYTES:
            return self._block(packed, plain_bytes)
        if form == _FRAME:
            return _whole(_decompressor(_FRAME_WINDOW_LOG), packed, plain_bytes, ends=True)
        if form == _PLAIN and len(packed) == plain_bytes:
            return packed
        raise MalformedFrameError(1, f"a piece of form {form}, {len(packed)} bytes for {plain_bytes}")

    def _block(self, packed: memoryview, size: int) -> bytes:
        if self._stream is None:
            self._stream = _decompressor(_STREAM_WINDOW_LOG)
        return _whole(self._stream, packed, size, ends=False)


def _whole(decompressor: ZstdDecompressor, packed: memoryview, size: int, *, ends: bool) -> bytes:
    try:
        body: bytes = decompressor.decompress(packed, size + 1)
    except (ZstdError, EOFError) as error:
        raise MalformedFrameError(1, f"a packed message cannot be unpacked: {error}") from error
    if len(body) != size or decompressor.eof is not ends or decompressor.unused_data:
        raise MalformedFrameError(1, f"a packed message does not unpack to {size} bytes")
    return body
