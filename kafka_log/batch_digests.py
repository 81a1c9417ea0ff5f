"""SHA-256 of record batches, for users who do not trust where the bytes have been.

The digest of a run is the digest of its batches' digests in order. So each batch is hashed once, when it is uploaded,
and the digest of any run of whole batches follows without its bytes. For large batches hashlib lets other threads run.
"""

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Final

from kafka_log.crc32c import Buffer
from kafka_log.record_batch import BatchSpan, scan_batches

DIGEST_BYTES: Final = 32


def batch_digests(records: Buffer, batches: Sequence[BatchSpan]) -> tuple[bytes, ...]:
    with memoryview(records) as view:
        return tuple([sha256(view[batch.start : batch.end]).digest() for batch in batches])


def run_digest(digests: Iterable[bytes]) -> bytes:
    """Return the digest of consecutive batches from their digests, 32 bytes; empty if one of them has no digest."""
    found = list(digests)
    return sha256(b"".join(found)).digest() if all(found) else b""


def records_digest(records: Buffer) -> bytes:
    """Return the digest of the batches in these bytes, 32 bytes. Raises CorruptBatchError."""
    return run_digest(batch_digests(records, scan_batches(records, 0, len(records))))
