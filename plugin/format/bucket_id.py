"""How an object says which bucket it is in: by a number that follows from the bucket's name alone.

So nobody has to agree on numbers, the order of a list means nothing, and a bucket that nobody lists any more is one
that nobody knows. The number is what stands in the KIP's custom metadata: neither links nor metadata name a bucket.
"""

import hashlib
from typing import Final

from plugin.errors import UnknownBucketError
from plugin.segment_metadata import CombinedSegmentId

BUCKET_ID_BYTES: Final = 8


def bucket_id(name: str) -> bytes:
    """The first bytes of the name's SHA-256."""
    return hashlib.sha256(name.encode()).digest()[:BUCKET_ID_BYTES]


def unknown_bucket(operation: str, segment_id: CombinedSegmentId, custom_metadata: bytes) -> UnknownBucketError:
    """To be raised where an object's custom metadata names no bucket that is known here."""
    named = f"bucket {custom_metadata[:BUCKET_ID_BYTES].hex()}" if custom_metadata else "no bucket"
    return UnknownBucketError(
        operation, str(segment_id), f"is in {named}, which is not known here", "see remote.wal.buckets"
    )
