"""The keys of combined segments and archive objects, built and parsed here and nowhere else.

`{prefix}{cluster id}/{broker id}/{incarnation:012x}/{sequence:012x}.rwal`
`{prefix}{cluster id}/archive/{topic id}/{partition}/{first offset:020}-{last offset:020}-{writer id}.rwal`

The writer id is `{broker id}-{incarnation:012x}-{sequence:012x}`. A topic id is 32 hex digits, not Kafka's base64,
so that no two keys differ in upper and lower case alone. Offsets have 20 digits, as in the names of Kafka's segment
files, so that a sorted listing is in the order of the log.
`{prefix}{cluster id}/metadata-snapshots/{broker id}/…`: blobs, see `metadata_topic.store.snapshots.snapshot_keeper`
`{prefix}{cluster id}/router/{gateway id}/{incarnation:012x}/{epoch:010x}/{sequence:012x}`: blobs, see
`plugin.router_object_id`

A key holds nothing that a user of Kafka can choose: the prefix and the cluster id are checked once, the
rest are integers. Every prefix that is listed ends in "/", as S3 Express asks.
"""

import re
from dataclasses import dataclass
from typing import Final, Self

from kafka_log.topic_partition import TopicId, TopicIdPartition
from plugin.format.archive_object_id import ArchiveObjectId
from plugin.router_object_id import ROUTER_KIND
from plugin.segment_metadata import CombinedSegmentId

_CLUSTER_ID: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}", re.ASCII)
_PREFIX_PART: Final = re.compile(r"[A-Za-z0-9!_.*'()=-]{1,255}", re.ASCII)
_SEGMENT: Final = re.compile(r"(0|[1-9][0-9]{0,9})/([0-9a-f]{12})/([0-9a-f]{12})\.rwal", re.ASCII)
_ARCHIVE_OBJECT: Final = re.compile(
    r"([0-9a-f]{32})/(0|[1-9][0-9]{0,9})/([0-9]{20})-([0-9]{20})-(0|[1-9][0-9]{0,9})-([0-9a-f]{12})-([0-9a-f]{12})\.rwal",
    re.ASCII,
)
_BLOB_PART: Final = re.compile(r"[a-z0-9][a-z0-9.-]{0,127}", re.ASCII)
_MAX_PREFIX_CHARACTERS: Final = 512

BLOB_KINDS: Final = frozenset({"metadata-snapshots", "lease", ROUTER_KIND})
"""The first names of blobs, which are beside the segments in a cluster's part of the store."""


@dataclass(frozen=True, slots=True)
class ObjectKeyFactory:
    """Builds and parses the object keys of one cluster. Create it with `of`, which checks the parts."""

    prefix: str
    cluster_id: str

    @classmethod
    def of(cls, prefix: str, cluster_id: str) -> Self:
        """Build a factory for a cluster. `prefix` may be empty; a missing "/" at its end is added.

        Raises ValueError when a part could leave its place in the store: absolute, `..`, NUL, control characters.
        """
        if not _CLUSTER_ID.fullmatch(cluster_id):
            raise ValueError(f"cluster id {cluster_id!r} is not 1 to 64 of A-Z a-z 0-9 . _ - (no dot in front)")
        if prefix and not prefix.endswith("/"):
            prefix += "/"
        parts = prefix.split("/")[:-1]
        if len(prefix) > _MAX_PREFIX_CHARACTERS or any(
            part in (".", "..") or not _PREFIX_PART.fullmatch(part) for part in parts
        ):
            raise ValueError(f"prefix {prefix!r} is not made of plain names with / between them")
        return cls(prefix, cluster_id)

    def key_of(self, combined_segment_id: CombinedSegmentId) -> str:
        broker_id, incarnation, sequence = combined_segment_id
        return f"{self.prefix}{self.cluster_id}/{broker_id}/{incarnation:012x}/{sequence:012x}.rwal"

    def parse(self, key: str) -> CombinedSegmentId | None:
        """Parse a combined segment's key; None when it is not one that `key_of` builds for this cluster."""
        start = self.list_prefix()
        if not key.startswith(start):
            return None
        match = _SEGMENT.fullmatch(key, len(start))
        if match is None or int(match[1]) >= 2**31:
            return None
        return CombinedSegmentId(int(match[1]), int(match[2], 16), int(match[3], 16))

    def list_prefix(self, broker_id: int | None = None) -> str:
        return f"{self.prefix}{self.cluster_id}/" + ("" if broker_id is None else f"{broker_id}/")

    def archive_key_of(self, object_id: ArchiveObjectId) -> str:
        prefix = self.archive_prefix(object_id.topic_id_partition)
        return f"{prefix}{object_id.first_offset:020}-{object_id.last_offset:020}-{object_id.writer_id}.rwal"

    def parse_archive(self, key: str) -> ArchiveObjectId | None:
        """Parse an archive object's key; None when it is not one that `archive_key_of` builds for this cluster."""
        start = self.archive_prefix()
        match = _ARCHIVE_OBJECT.fullmatch(key, len(start)) if key.startswith(start) else None
        if match is None:
            return None
        partition, first, last, broker_id = (int(match[group]) for group in (2, 3, 4, 5))
        if partition >= 2**31 or broker_id >= 2**31 or not first <= last < 2**62:
            return None
        return ArchiveObjectId(
            TopicIdPartition(TopicId(bytes.fromhex(match[1])), partition),
            first,
            last,
            CombinedSegmentId(broker_id, int(match[6], 16), int(match[7], 16)),
        )

    def archive_prefix(self, topic_id_partition: TopicIdPartition | None = None) -> str:
        """Return the prefix of all archive objects' keys of the cluster, or of one partition."""
        start = f"{self.prefix}{self.cluster_id}/archive/"
        if topic_id_partition is None:
            return start
        return f"{start}{topic_id_partition.topic_id.hex()}/{topic_id_partition.partition}/"

    def blob_key(self, name: str) -> str:
        """Return the key of a blob, such as `metadata-snapshots/1/…`.

        Raises ValueError when the name is not made of plain names with "/" between them, the first of them one of
        `BLOB_KINDS`.
        """
        kind, *rest = name.split("/")
        if kind not in BLOB_KINDS or not rest or any(not _BLOB_PART.fullmatch(part) for part in rest):
            raise ValueError(f"{name!r} is no name of a blob")
        return f"{self.prefix}{self.cluster_id}/{name}"

    def blob_prefix(self, directory: str) -> str:
        """Return the prefix of all blobs' keys in a directory: one of `BLOB_KINDS`, or below it. Raises ValueError."""
        if directory in BLOB_KINDS:
            return f"{self.list_prefix()}{directory}/"
        return self.blob_key(directory) + "/"

    def parse_blob(self, key: str) -> str | None:
        """Parse a blob's key to its name; None when it is not one that `blob_key` builds for this cluster."""
        start = self.list_prefix()
        name = key[len(start) :]
        try:
            return name if key.startswith(start) and self.blob_key(name) == key else None
        except ValueError:
            return None

    def probe_key(self, broker_id: int, probe_id: str) -> str:
        """Return the key for the self-test at the start; `parse` never takes it for a segment."""
        return f"{self.list_prefix(broker_id)}probe-{probe_id}"

    def listable_probe(self, broker_id: int, probe_id: str) -> tuple[str, str]:
        """Return a prefix for probes only, and a key in it: listing it finds few keys, and neither parses as an
        object's."""
        prefix = f"{self.list_prefix(broker_id)}probes/"
        return prefix, f"{prefix}{probe_id}"

    def cluster_of(self, key: str) -> str | None:
        """Return the id of the cluster, this or another, in an object's key; None if it is not one of our keys."""
        if not key.startswith(self.prefix):
            return None
        cluster_id, _, _ = key[len(self.prefix) :].partition("/")
        if not _CLUSTER_ID.fullmatch(cluster_id):
            return None
        owner = ObjectKeyFactory(self.prefix, cluster_id)
        return cluster_id if owner.parse(key) or owner.parse_archive(key) or owner.parse_blob(key) else None
