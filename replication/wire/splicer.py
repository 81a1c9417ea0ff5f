"""Puts a linked response together again, and checks that it is what the leader's broker sent.

Nothing that fails a check here reaches a broker: the caller then asks the leader's agent for the bytes inline.
"""

from collections.abc import Iterator, Sequence

from kafka_log.batch_digests import records_digest
from kafka_log.crc32c import Buffer, crc32c
from kafka_log.record_batch import CorruptBatchError, scan_batches
from replication.wire.kafka_frame import encode_unsigned_varint
from replication.wire.link import InlineBytes, LinkedResponse, SegmentLink


class SpliceError(Exception):
    """Bytes from object storage are not those that the link names. `link` is that link."""

    def __init__(self, link: SegmentLink, reason: str) -> None:
        self.link = link
        self.reason = reason
        super().__init__(f"object {link.object_id} [{link.start_position}, {link.end_position}): {reason}")


class ForgedRangeError(SpliceError):
    """The bytes have the right CRC32C and another SHA-256: this is no accident."""


def verify_digests(links: Sequence[SegmentLink], hydrated: Sequence[Buffer]) -> None:
    """Check what passed `splice` against the links' SHA-256, if they have one. Raises ForgedRangeError.

    It takes a millisecond for 2 MB, so large responses belong on another thread than the event loop's.
    """
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
    """The response as Kafka's frame, without its size prefix: buffers to be written one after the other.

    `hydrated[i]` are the bytes for `response.links[i]`. Raises SpliceError when any of them is not what it should be.
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
