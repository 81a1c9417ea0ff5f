"""Names buckets in an object's custom metadata, also several of them that each hold the whole object.

A single bucket is named by its id and its own storage manager's metadata. For several, a mark that is no bucket's id
comes before the list. So readers that do not know of copies see an unknown bucket: they neither read nor delete the
object, and conclude nothing about it.

    mark 8 bytes | number that took it 1 | for each bucket: length 2, id 8, what its storage manager says

Buckets that took the object come first, the nearest to the writer at their head. Behind them are those whose answer was
not waited for, or was an error: nothing is expected there, but a write may have taken effect, so it is deleted there.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, Self

from plugin.errors import UnknownBucketError
from plugin.remote_wal_storage_manager import StoredSegment
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


MARK: Final = bucket_id("")
"""No bucket has an empty name."""
_LENGTH_BYTES: Final = 2


@dataclass(frozen=True, slots=True)
class NamedCopies:
    """Buckets, each as the custom metadata of an object that is only in it."""

    taken: tuple[bytes, ...]
    """Buckets that have the object; at least one."""
    doubtful: tuple[bytes, ...] = ()
    """Buckets that may have it."""

    @classmethod
    def decode(cls, custom_metadata: bytes) -> Self:
        """Parse custom metadata. Unreadable metadata becomes one bucket that does not exist."""
        if not custom_metadata.startswith(MARK):
            return cls((custom_metadata,))
        named: list[bytes] = []
        position = BUCKET_ID_BYTES + 1
        while position < len(custom_metadata):
            start = position + _LENGTH_BYTES
            position = start + int.from_bytes(custom_metadata[start - _LENGTH_BYTES : start])
            named.append(custom_metadata[start:position])
        number = int.from_bytes(custom_metadata[BUCKET_ID_BYTES : BUCKET_ID_BYTES + 1])
        if position != len(custom_metadata) or not 0 < number <= len(named) or min(map(len, named)) < BUCKET_ID_BYTES:
            return cls((custom_metadata,))
        return cls(tuple(named[:number]), tuple(named[number:]))

    def encode(self) -> bytes:
        """Encode it; the inverse of `decode`."""
        if len(self.taken) == 1 and not self.doubtful:
            return self.taken[0]
        listed = b"".join(len(one).to_bytes(_LENGTH_BYTES) + one for one in (*self.taken, *self.doubtful))
        return MARK + len(self.taken).to_bytes() + listed


def joined(listed: Iterable[StoredSegment]) -> dict[CombinedSegmentId, StoredSegment]:
    """Return each object once, in however many buckets it was listed: its custom metadata names them all."""
    objects: dict[CombinedSegmentId, StoredSegment] = {}
    for stored in listed:
        known = objects.setdefault(stored.combined_segment_id, stored)
        if known is not stored:
            objects[stored.combined_segment_id] = joined_with(known, stored)
    return objects


def joined_with(known: StoredSegment, other: StoredSegment) -> StoredSegment:
    """Combine two listed copies of one object; the time is the later one."""
    copies = NamedCopies.decode(known.custom_metadata), NamedCopies.decode(other.custom_metadata)
    taken = tuple(dict.fromkeys(one for each in copies for one in each.taken))
    last_modified_ms = max(known.last_modified_ms, other.last_modified_ms)
    return replace(known, custom_metadata=NamedCopies(taken).encode(), last_modified_ms=last_modified_ms)


def copies_taken(custom_metadata: bytes) -> int:
    """Return how many buckets hold an object with this custom metadata, for reports and listings."""
    return custom_metadata[BUCKET_ID_BYTES] if custom_metadata.startswith(MARK) and custom_metadata != MARK else 1
