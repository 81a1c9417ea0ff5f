"""Exchanges messages between agents over one connection, and compresses the small ones.

Requests and linked responses repeat nearly the same content: client ids, topic ids, partitions. So small messages go
through one DEFLATE stream per direction (RFC 1951), flushed after each message without the constant end of a sync
flush, as RFC 7692 does for WebSocket. A message's kind says whether it is packed. Large messages hold record bytes that
producers have already compressed, and are never packed.

Unpacking is bounded: a packed message that grows beyond `MAX_UNPACKED_BYTES` is malformed.
"""

import zlib

from kafka_log.crc32c import Buffer
from replication.wire.framed_connection import FramedConnection
from replication.wire.kafka_frame import MalformedFrameError
from replication.wire.peer_protocol import MessageKind

MESSAGE_KIND_BYTES = 1
MAX_PACKED_PAYLOAD_BYTES = 8 * 1024
"""Payloads up to this size are packed."""
MAX_UNPACKED_BYTES = 64 * 1024
_MIN_PACKED_PAYLOAD_BYTES = 16
_PACKED = 0x80
_SYNC_FLUSH_END = b"\x00\x00\xff\xff"
_RAW_DEFLATE = -15
_FASTEST = 1
_KINDS = tuple(MessageKind)
_PLAIN_KINDS = tuple(bytes((kind,)) for kind in MessageKind)
_PACKED_KINDS = tuple(bytes((kind | _PACKED,)) for kind in MessageKind)


class PeerChannel:
    """Sends and receives messages after the hellos."""

    def __init__(self, connection: FramedConnection) -> None:
        self._connection = connection
        self._packer = zlib.compressobj(_FASTEST, zlib.DEFLATED, _RAW_DEFLATE)
        self._unpacker = zlib.decompressobj(_RAW_DEFLATE)

    def send(self, kind: MessageKind, *body: Buffer) -> None:
        """Send one message. Large buffers must not change until they are sent. Raises ConnectionError."""
        size = sum(map(len, body))
        if not _MIN_PACKED_PAYLOAD_BYTES <= size <= MAX_PACKED_PAYLOAD_BYTES:
            self._connection.write_frame(_PLAIN_KINDS[kind], *body)
            return
        packed = self._packer.compress(b"".join(body)) + self._packer.flush(zlib.Z_SYNC_FLUSH)
        self._connection.write_frame(_PACKED_KINDS[kind], memoryview(packed)[: -len(_SYNC_FLUSH_END)])

    async def receive(self) -> tuple[MessageKind, memoryview] | None:
        """Return the next message; None at the end. Raises MalformedFrameError."""
        payload = await self._connection.read_frame()
        if payload is None:
            return None
        number = payload[0] & ~_PACKED
        if number >= len(_KINDS):
            raise MalformedFrameError(0, f"unknown kind of message {number}")
        body = memoryview(payload)[1:]
        return _KINDS[number], self._unpacked(body) if payload[0] & _PACKED else body

    def _unpacked(self, packed: memoryview) -> memoryview:
        try:
            body = self._unpacker.decompress(b"".join((packed, _SYNC_FLUSH_END)), MAX_UNPACKED_BYTES)
        except zlib.error as error:
            raise MalformedFrameError(1, f"a packed message cannot be unpacked: {error}") from error
        if self._unpacker.unconsumed_tail or self._unpacker.eof:
            raise MalformedFrameError(1, f"a packed message exceeds {MAX_UNPACKED_BYTES} bytes, or ends its stream")
        return memoryview(body)
