"""Where an agent's snapshots of the metadata store are kept: in object storage, beside its segments.

`metadata-snapshots/{broker id}/{created, ms:015}-{incarnation:012x}/{part:05}-of-{parts:05}`

Theory. A snapshot is cut into parts of some megabytes, as one request must stay within its deadline, and each
part is written once and never altered. It is whole when all its parts are there and its checksums are right,
so a writer that dies half-way leaves nothing that counts. The newest whole one of any broker wins, as each tells of the
whole topic; instead of a damaged one the one before it is used. After a save the newest two
stay and the others of this broker are deleted, parts of unfinished ones included. Each broker's agent keeps its
own, so no two write in one place. Which is the newest the store's clock says: a host's, by which they are named, may
have been ahead once, and an old snapshot would then be the newest for as long.

Blocks; `load` is for the thread that reads the topic, `save` for one that may wait.
"""

import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import structlog

from metadata_topic.records.errors import SnapshotError
from metadata_topic.store.snapshots.snapshot import SpooledSnapshot, read_image, snapshot_chunks
from metadata_topic.store.store_image import StoreImage
from plugin.blob_storage import BlobStorage, StoredBlob
from plugin.errors import IncompleteListingError, RemoteStorageError
from plugin.store_loop import ask, ask_each

log = structlog.get_logger(__name__)

PART_BYTES: Final = 8 * 1024 * 1024
_KEPT: Final = 2
_KIND: Final = "metadata-snapshots"
_PART: Final = re.compile(rf"{_KIND}/([0-9]+)/([0-9]{{15}}-[0-9a-f]{{12}})/([0-9]{{5}})-of-([0-9]{{5}})", re.ASCII)
_FAILURES_MAX: Final = 3
"""So many brokers' snapshots may be unreadable, as their zone's bucket does not answer, before no other is tried."""

_Listed = Mapping[tuple[str, str], list[StoredBlob]]
"""Snapshots by name and broker, each with its parts in their order."""


def brokers_with_snapshots(storage: BlobStorage) -> tuple[list[int], bool]:
    """Return the brokers whose agents have saved snapshots, and whether every bucket could be listed.

    Raises RemoteStorageError.
    """
    unanswered: list[object] = []
    listed = _of_those_that_answer(ask_each(storage.list_blobs(_KIND)), unanswered.append)
    found = {blob.name.split("/")[1] for blob in listed}
    return sorted(int(broker_id) for broker_id in found if broker_id.isascii() and broker_id.isdigit()), not unanswered


class SnapshotKeeper:
    """Saves and loads one broker's snapshots of the metadata store in object storage."""

    def __init__(
        self,
        storage: BlobStorage,
        cluster_id: str,
        broker_id: int,
        incarnation: int,
        part_bytes: int = PART_BYTES,
        spool_directory: Path | None = None,
    ) -> None:
        """A snapshot is spooled to a file in `spool_directory`; None: in the system's temporary directory."""
        self._spool_directory = spool_directory
        self._storage = storage
        self._cluster_id = cluster_id
        self._directory = f"{_KIND}/{broker_id}"
        self._incarnation = incarnation
        self._part_bytes = part_bytes
        self._counters: Counter[str] = Counter()

    def save(self, image: StoreImage, now_ms: int) -> int:
        """Write a snapshot and remove old ones; returns its size in bytes. `now_ms` must differ from call to call.

        Raises RemoteStorageError, or OSError of the spool; readers ignore a snapshot that is written in part, and the
        next save removes it. Old snapshots that cannot be removed are logged and left to the next save.
        """
        name = f"{now_ms:015}-{self._incarnation:012x}"
        with tempfile.TemporaryFile(dir=self._spool_directory) as content:  # how many parts it has must be known first
            for chunk in snapshot_chunks(image, self._cluster_id):
                content.write(chunk)
            size_bytes = content.tell()
            parts = -(-size_bytes // self._part_bytes)
            content.seek(0)
            for part in range(parts):
                held = content.read(self._part_bytes)
                ask(self._storage.put_blob(f"{self._directory}/{name}/{part:05}-of-{parts:05}", held))
        self._counters["saved"] += 1
        try:
            self._remove_old()
        except RemoteStorageError as error:
            log.warning("metadata_snapshots_not_removed", error=str(error), consequence="the next save removes them")
        return size_bytes

    def load(self) -> StoreImage | None:
        """Load the newest complete snapshot of any broker; None when there is none, or the object store does not
        respond."""
        failed: set[str] = set()
        try:
            snapshots = self._list(_KIND)
            for name, broker_id in _newest_first(snapshots):
                if broker_id in failed or len(failed) == _FAILURES_MAX:
                    continue
                try:
                    if (image := self._read(name, snapshots[name, broker_id])) is not None:
                        return image
                except RemoteStorageError as error:
                    failed.add(broker_id)
                    self._not_loaded(name, error)
        except RemoteStorageError as error:
            self._not_loaded("-", error)
        return None

    def load_own(self) -> StoreImage | None:
        """Load this broker's newest complete snapshot; None when there is none. Raises RemoteStorageError."""
        snapshots = self._list(self._directory)
        images = (self._read(name, snapshots[name, broker_id]) for name, broker_id in _newest_first(snapshots))
        return next((image for image in images if image is not None), None)

    def _not_loaded(self, name: str, error: Exception) -> None:
        self._counters["load_failures"] += 1
        log.warning("metadata_snapshot_not_loaded", snapshot=name, error=str(error))

    @property
    def counters(self) -> dict[str, int]:
        """Counts of snapshots: `saved`, `loaded`, `refused` (damaged or foreign ones), `load_failures`, `removed`."""
        return dict(self._counters)

    def _read(self, name: str, parts: list[StoredBlob]) -> StoreImage | None:
        try:
            if not _is_whole(parts):
                raise SnapshotError("read metadata snapshot", name, f"only {len(parts)} of its parts are there")
            content = SpooledSnapshot((ask(self._storage.get_blob(part)) for part in parts), self._spool_directory)
            image = read_image(content, self._cluster_id)
        except SnapshotError as error:
            self._counters["refused"] += 1
            log.warning("metadata_snapshot_refused", snapshot=name, reason=error.reason, hint=error.hint)
            return None
        except OSError as error:
            self._not_loaded(name, error)
            return None
        self._counters["loaded"] += 1
        return image

    def _list(self, directory: str) -> _Listed:
        found = defaultdict(list)
        listed = ask_each(self._storage.list_blobs(directory))
        for blob in _of_those_that_answer(listed, lambda error: self._not_loaded("-", error)):
            if (match := _PART.fullmatch(blob.name)) is not None:
                found[match[2], match[1]].append(blob)
        return {key: sorted(parts, key=lambda part: part.name) for key, parts in found.items()}

    def _remove_old(self) -> None:
        snapshots = self._list(self._directory)
        whole = [key for key in _newest_first(snapshots) if _is_whole(snapshots[key])]
        for key in snapshots.keys() - set(whole[:_KEPT]):
            for part in snapshots[key]:
                ask(self._storage.delete_blob(part))
            self._counters["removed"] += 1


def _of_those_that_answer(
    listed: Iterator[StoredBlob], missed: Callable[[IncompleteListingError], object]
) -> Iterator[StoredBlob]:
    """Yield the blobs of the buckets that answer; `missed` gets to know which did not."""
    try:
        yield from listed
    except IncompleteListingError as error:
        missed(error)


def _newest_first(snapshots: _Listed) -> list[tuple[str, str]]:
    """Return the keys; names decide where the store does not say when a blob was written."""
    return sorted(
        snapshots, key=lambda key: (max(part.last_modified_ms or 0 for part in snapshots[key]), key), reverse=True
    )


def _is_whole(parts: Iterable[StoredBlob]) -> bool:
    numbers = [(int(name[-14:-9]), int(name[-5:])) for name in (part.name for part in parts)]
    return numbers == [(part, len(numbers)) for part in range(len(numbers))]
