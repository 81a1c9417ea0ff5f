"""A bucket for each zone: what `remote.wal.buckets` says, and the settings of each bucket that follow from it.

    remote.wal.buckets=az1=bucket-one,az2=bucket-two      a zone is a `broker.rack`
    rsm.wal.config.zone.az2.endpoint.url=...              another setting for one zone's bucket

An agent writes to the bucket of its own zone, and reads and deletes in all. The key that names a single bucket
(`bucket_key` of the storage manager) may stay: there, what names no bucket is looked for, as all objects were written
before there was a list.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from plugin.errors import RemoteStorageConfigError
from plugin.format.bucket_id import bucket_id
from plugin.loading import StorageSpec

BUCKETS_KEY: Final = "remote.wal.buckets"
_ZONE: Final = "zone."


@dataclass(frozen=True, slots=True)
class BucketSpec:
    """One bucket, and the settings of its storage manager."""

    name: str
    settings: Mapping[str, str]

    @property
    def bucket_id(self) -> bytes:
        """The bucket's id, which objects' custom metadata have."""
        return bucket_id(self.name)


@dataclass(frozen=True, slots=True)
class BucketPlan:
    """All buckets by their ids, and the one to write to."""

    buckets: Mapping[bytes, BucketSpec]
    own: bytes | None
    """In which is written."""
    unnamed: bytes | None
    """In which objects are that name none."""


def parse_buckets(text: str) -> dict[str, str]:
    """Parse `remote.wal.buckets` to buckets by zone. Raises ValueError."""
    buckets: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        zone, equals, name = (part.strip() for part in item.partition("="))
        if not (zone and equals and name):
            raise ValueError(f"{item!r} is not <zone>=<bucket>")
        if zone in buckets:
            raise ValueError(f"zone {zone} is named twice")
        buckets[zone] = name
    return buckets


def check_own_zone(spec: StorageSpec) -> None:
    """Check that there is a bucket for the own zone, to write to. Raises RemoteStorageConfigError."""
    if spec.buckets and spec.zone not in spec.buckets:
        zone = "this broker has no broker.rack" if spec.zone is None else f"it names no bucket for zone {spec.zone}"
        raise RemoteStorageConfigError(
            "configure", BUCKETS_KEY, zone, f"it names {', '.join(spec.buckets)}; a zone is a broker.rack"
        )


def plan_buckets(spec: StorageSpec, bucket_key: str | None) -> BucketPlan:
    """Derive each bucket's settings; `bucket_key` is the storage manager's setting for a bucket. Raises
    RemoteStorageConfigError."""
    if bucket_key is None:
        raise RemoteStorageConfigError("configure", BUCKETS_KEY, f"{spec.class_name} cannot be given a list of buckets")
    common = {key: value for key, value in spec.settings.items() if not key.startswith(_ZONE)}
    of_zones = _settings_of_zones(spec, bucket_key)
    planned: dict[bytes, BucketSpec] = {}
    for zone, name in spec.buckets.items():
        bucket = BucketSpec(name, {**common, bucket_key: name, **of_zones[zone]})
        if planned.setdefault(bucket.bucket_id, bucket) != bucket:
            raise RemoteStorageConfigError(
                "configure",
                BUCKETS_KEY,
                f"{name}, of zone {zone}, cannot be told from {planned[bucket.bucket_id].name}",
                "buckets are told apart by their names alone; give one of them another name",
            )
    unnamed = common.get(bucket_key)
    if unnamed is not None:
        planned.setdefault(bucket_id(unnamed), BucketSpec(unnamed, common))
    own = spec.buckets.get(spec.zone) if spec.zone is not None else None
    return BucketPlan(planned, _id_of(own), _id_of(unnamed))


def _id_of(name: str | None) -> bytes | None:
    return bucket_id(name) if name is not None else None


def _settings_of_zones(spec: StorageSpec, bucket_key: str) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {zone: {} for zone in spec.buckets}
    for key, value in spec.settings.items():
        if not key.startswith(_ZONE):
            continue
        rest = key.removeprefix(_ZONE)
        zone = max((one for one in spec.buckets if rest.startswith(f"{one}.")), key=len, default=None)
        if zone is None:
            hint = f"it names {', '.join(spec.buckets)}"
            raise RemoteStorageConfigError("configure", spec.impl_prefix + key, f"no zone of {BUCKETS_KEY}", hint)
        own_key = rest.removeprefix(f"{zone}.")
        if own_key == bucket_key:
            raise RemoteStorageConfigError("configure", spec.impl_prefix + key, f"the bucket stands in {BUCKETS_KEY}")
        found[zone][own_key] = value
    return found
