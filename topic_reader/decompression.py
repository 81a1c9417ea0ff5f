"""Decompresses the records of a batch, by the codecs that Kafka's producers have.

Brokers bound a batch as it is sent, and a few bytes may stand for gigabytes. A batch is refused if it is longer than
`MAX_BYTES`.
"""

import gzip
import io
import zlib
from typing import Protocol

from kafka_log import zstd
from kafka_log.record_batch import BATCH_OVERHEAD_BYTES, CorruptBatchError, RecordBatchHeader

MAX_BYTES = 128 * 1024 * 1024
"""Decompressed, of one batch. Clients made of librdkafka read 100 MB by default."""
_CHUNK_BYTES = 1024 * 1024
_XERIAL = b"\x82SNAPPY\x00"
"""Java's snappy is framed (org.xerial.snappy.SnappyOutputStream): this, two versions, then blocks with their length."""
_XERIAL_HEADER_BYTES = 16


def decompressed(header: RecordBatchHeader, batch: memoryview) -> bytes:
    """Return the decompressed bytes that follow a batch's header.

    Raises CorruptBatchError when it cannot be decompressed or is too long, ModuleNotFoundError without pyarrow.
    """
    body = batch[BATCH_OVERHEAD_BYTES:]
    codec = header.codec
    try:
        if codec == "none":
            return bytes(body)
        if codec == "gzip":
            with gzip.GzipFile(fileobj=io.BytesIO(body)) as stream:
                return _read(stream)
        if codec == "zstd":
            with zstd.ZstdFile(io.BytesIO(body)) as stream:
                return _read(stream)
        if codec == "snappy":
            return _snappy(body)
        if codec == "lz4":
            import pyarrow as pa

            with pa.input_stream(pa.py_buffer(body), compression=codec) as stream:
                return _read(stream)
    except (OSError, EOFError, IndexError, zlib.error, zstd.ZstdError) as error:
        raise CorruptBatchError(0, f"{codec} of the batch at {header.base_offset}: {error}") from error
    raise CorruptBatchError(0, f"the batch at {header.base_offset} has an unknown codec, {codec}")


class _Stream(Protocol):
    def read(self, size: int, /) -> bytes: ...


def _read(stream: _Stream) -> bytes:
    parts: list[bytes] = []
    size = 0
    while part := stream.read(_CHUNK_BYTES):
        size += len(part)
        if size > MAX_BYTES:
            raise _too_long()
        parts.append(part)
    return b"".join(parts)


def _too_long() -> OSError:
    return OSError(f"it is longer than {MAX_BYTES:,} bytes")


def _snappy(body: memoryview) -> bytes:
    if body[: len(_XERIAL)] != _XERIAL:  # as librdkafka writes it
        return _snappy_block(body, MAX_BYTES)
    blocks, position, left = [], _XERIAL_HEADER_BYTES, MAX_BYTES
    while position < len(body):
        start = position + 4
        position = start + int.from_bytes(body[position:start], "big")
        blocks.append(_snappy_block(body[start:position], left))
        left -= len(blocks[-1])
    return b"".join(blocks)


def _snappy_block(block: memoryview, max_bytes: int) -> bytes:
    """Decompress one block, which begins with its decompressed size as a varint."""
    import pyarrow as pa

    size = shift = position = 0
    while True:
        byte = block[position]
        size |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            break
    if size > max_bytes:
        raise _too_long()
    return bytes(pa.Codec("snappy").decompress(pa.py_buffer(block), size, asbytes=True))
