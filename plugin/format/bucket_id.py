"""Names the bucket of an object at the beginning of its custom metadata; the rest is the bucket's storage manager's."""

import hashlib
from typing import Final

from plugin.errors import UnknownBucketError
from plugin.segment_metadata import CombinedSegmentId

BUCKET_ID_BYTES: Final = 8


def bucket_id(name: str) -> bytes:
    """Return the number by which an object says in which bucket it is: the first bytes of the name's SHA-256.

    It follows from the bucket's name alone. So nobody has to agree on numbers, the order of a list means nothing, and a
    bucket that is not listed any more is simply unknown. The number is in the KIP's custom metadata: neither links nor
    metadata name a bucket.
    """
    return hashlib.sha256(name.encode()).digest()[:BUCKET_ID_BYTES]


def unknown_bucket(operation: str, segment_id: CombinedSegmentId, custom_metadata: bytes) -> UnknownBucketError:
    """Return the error for an object whose custom metadata names no known bucket."""
    named = f"bucket {custom_metadata[:BUCKET_ID_BYTES].hex()}" if custom_metadata else "no bucket"
    return UnknownBucketError(
        operation, str(segment_id), f"is in {named}, which is not known here", "see remote.wal.buckets"
    )
