"""Names the bucket of an object at the beginning of its custom metadata; the rest is the bucket's storage manager's."""

import hashlib
from typing import Final

from plugin.errors import UnknownBucketError
from plugin.segment_metadata import CombinedSegmentId

BUCKET_ID_BYTES: Final = 8


def bucket_id(name: str) -> bytes:
    """Return a bucket's id, by which objects' custom metadata name it: the first bytes of the SHA-256 of its name.

    It follows from the bucket's name alone. So no numbers have to be assigned, the order of a list means nothing, and a
    bucket that is no longer listed is simply unknown. Only the KIP's custom metadata has the id: neither links nor
    metadata name a bucket.
    """
    return hashlib.sha256(name.encode()).digest()[:BUCKET_ID_BYTES]


def unknown_bucket(operation: str, segment_id: CombinedSegmentId, custom_metadata: bytes) -> UnknownBucketError:
    """Return the error for an object whose custom metadata names no known bucket."""
    named = f"bucket {custom_metadata[:BUCKET_ID_BYTES].hex()}" if custom_metadata else "no bucket"
    return UnknownBucketError(
        operation, str(segment_id), f"is in {named}, which is not known here", "see remote.wal.buckets"
    )
