"""Decompresses the records of a batch, by the codecs that Kafka's producers have."""

import gzip

from kafka_log import zstd
from kafka_log.record_batch import BATCH_OVERHEAD_BYTES, CorruptBatchError, RecordBatchHeader

_XERIAL = b"\x82SNAPPY\x00"
"""Java's snappy is framed (org.xerial.snappy.SnappyOutputStream): this, two versions, then blocks with their length."""
_XERIAL_HEADER_BYTES = 16


def decompressed(header: RecordBatchHeader, batch: memoryview) -> bytes:
    """Return what follows the header of a whole batch, decompressed.

    Raises CorruptBatchError when it cannot be decompressed, ModuleNotFoundError without pyarrow.
    """
    body = batch[BATCH_OVERHEAD_BYTES:]
    codec = header.codec
    try:
        if codec == "none":
            return bytes(body)
        if codec == "gzip":
            return gzip.decompress(body)
        if codec == "zstd":
            return bytes(zstd.decompress(body))
        if codec == "snappy":
            return _snappy(body)
        if codec == "lz4":
            import pyarrow as pa

            with pa.input_stream(pa.py_buffer(body), compression=codec) as stream:
                return bytes(stream.read())
    except (OSError, EOFError, IndexError, zstd.ZstdError) as error:
        raise CorruptBatchError(0, f"{codec} of the batch at {header.base_offset}: {error}") from error
    raise CorruptBatchError(0, f"the batch at {header.base_offset} has an unknown codec, {codec}")


def _snappy(body: memoryview) -> bytes:
    if body[: len(_XERIAL)] != _XERIAL:  # as librdkafka writes it
        return _snappy_block(body)
    blocks, position = [], _XERIAL_HEADER_BYTES
    while position < len(body):
        start = position + 4
        position = start + int.from_bytes(body[position:start], "big")
        blocks.append(_snappy_block(body[start:position]))
    return b"".join(blocks)


def _snappy_block(block: memoryview) -> bytes:
    """Decompress one block, which begins with its decompressed size as a varint."""
    import pyarrow as pa

    size = shift = position = 0
    while True:
        byte = block[position]
        size |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            break
    return bytes(pa.Codec("snappy").decompress(pa.py_buffer(block), size, asbytes=True))
