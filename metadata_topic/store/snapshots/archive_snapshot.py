"""The archive's part of a snapshot of the metadata store (`StoreImage.extras`).

A byte for the version, 2, and the store's records (`ArchiveStore.snapshot`), each as it
stands in the topic: u32 sizes of key and value, big endian, then both.

The archive's store must be read from no earlier a point than the metadata store's: records come again without harm, and
none may be missing. So it is written after the image was taken, by a reader that feeds the archive's store first.
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from metadata_topic.records import archive_records
from metadata_topic.records.archive_records import ArchiveRecord
from metadata_topic.records.errors import SnapshotError
from metadata_topic.records.record_fields import UndecodableRecordError
from metadata_topic.records.topic_doubt import TopicDoubt
from metadata_topic.store.archive.archive_store import ArchiveStore
from metadata_topic.store.store import RemoteWalMetadataStore
from metadata_topic.store.store_image import StoreImage

EXTRA_NAME: Final = "archive"
_VERSION: Final = b"\x02"
_SIZES: Final = struct.Struct(">II")


def with_archive(image: StoreImage, archive: ArchiveStore) -> StoreImage:
    """Return the image of a metadata store with an archive's content added, for one snapshot of both."""
    return replace(image, extras={**image.extras, EXTRA_NAME: encode_archive(archive)})


def restore_archive(archive: ArchiveStore, image: StoreImage) -> None:
    """Replace what the archive's store knows by what `with_archive` put into the image.

    Raises SnapshotError when the image has no part of the archive, or an unreadable one; then nothing changed.
    """
    content = image.extras.get(EXTRA_NAME)
    if content is None:
        raise SnapshotError("restore archive", EXTRA_NAME, "the snapshot does not tell of the archive")
    records = decode_archive(content)
    registered = {placed.registration.broker_id: 0 for placed in image.registrations}
    for placed in image.registrations:
        broker_id, incarnation = placed.registration.broker_id, placed.registration.incarnation
        registered[broker_id] = max(registered[broker_id], incarnation)
    archive.restore(registered, records)


def keep_archive(store: RemoteWalMetadataStore, archive: ArchiveStore) -> None:
    """Load the archive's store from the metadata store's file, and keep its changes in that file from now on."""

    def changed() -> Iterator[tuple[str, str | None]]:
        for object_id, records in archive.take_changed():
            yield archive_records.encode_key(object_id).hex(), _encode(records).hex() if records else None

    held = store.keep_also(EXTRA_NAME, changed)
    content = b"".join((_VERSION, *map(bytes.fromhex, held.values())))
    try:
        archive.restore({}, decode_archive(content))  # each was written with the incarnation of its time
    except SnapshotError as error:
        store.topic.doubted(TopicDoubt.UNREADABLE, str(error))
    for registration, _ in store.registrations():
        archive.registered(registration.broker_id, registration.incarnation)
    archive.take_changed()


def encode_archive(archive: ArchiveStore) -> bytes:
    """Return the archive's part of a snapshot."""
    return _VERSION + _encode(archive.snapshot())


def _encode(records: Iterable[ArchiveRecord]) -> bytes:
    parts: list[bytes] = []
    for record in records:
        key, value = archive_records.encode_key(record.object_id), archive_records.encode(record)
        parts += (_SIZES.pack(len(key), len(value)), key, value)
    return b"".join(parts)


def decode_archive(content: bytes) -> list[ArchiveRecord]:
    """Decode the archive's part of a snapshot. Raises SnapshotError."""
    if content[:1] != _VERSION:
        raise SnapshotError("restore archive", EXTRA_NAME, "it is of a version that this reader does not know")
    records = []
    at = len(_VERSION)
    while at < len(content):
        key_at = at + _SIZES.size
        if key_at > len(content):
            raise _cut_off(at)
        key_bytes, value_bytes = _SIZES.unpack_from(content, at)
        value_at = key_at + key_bytes
        at = value_at + value_bytes
        if at > len(content):
            raise _cut_off(key_at)
        try:
            records.append(archive_records.decode(content[key_at:value_at], content[value_at:at]))
        except UndecodableRecordError as error:
            raise SnapshotError("restore archive", EXTRA_NAME, str(error)) from error
    return records


def _cut_off(at: int) -> SnapshotError:
    return SnapshotError("restore archive", EXTRA_NAME, f"the record at byte {at} is cut off")
