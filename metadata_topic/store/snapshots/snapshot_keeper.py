"""Where an agent's snapshots of the metadata store are kept: in object storage, beside its segments.

`metadata-snapshots/{broker id}/{created, ms:015}-{incarnation:012x}/{part:05}-of-{parts:05}`

Theory. A snapshot is cut into parts of some megabytes, as one request must stay within its deadline, and each
part is written once and never altered. It is whole when all its parts are there and its checksums are right,
so a writer that dies half-way leaves nothing that counts. The newest whole one of any broker wins, as each tells of the
whole topic; instead of a damaged one the one before it is used, and `NewestSnapshot.doubt` says so: what it does not
tell may have been told. After a save the newest two stay and the others of this broker are deleted, parts of unfinished
ones included. Each broker's agent keeps its own, so no two write in one place. Which is the newest the store's clock
says: a host's, by which they are named, may have been ahead once, and an old snapshot would then be the newest for as
long.

Blocks; `load` is for the thread that reads the topic, `save` for one that may wait.
"""

import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

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


class NewestSnapshot(NamedTuple):
    image: StoreImage | None = None
    """The newest that can be read; None: none can."""
    doubt: str = ""
    """Names what may be newer and cannot be read; empty: nothing."""


NO_SNAPSHOT: Final = NewestSnapshot()


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
        self._unread: list[str] = []

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
        return self.newest().image

    def newest(self) -> NewestSnapshot:
        """Load the newest complete snapshot of any broker, and say whether there may be a newer one."""
        return next(self.newest_of_each(), NO_SNAPSHOT)

    def newest_of_each(self) -> Iterator[NewestSnapshot]:
        """Yield each broker's newest complete snapshot, the newest first; if none can be read, one without an image."""
        done: set[str] = set()
        failures, is_any_read, self._unread = 0, False, []
        snapshots: _Listed = {}
        try:
            snapshots = self._list(_KIND)
        except RemoteStorageError as error:
            self._not_loaded("all", error)
        for key in _newest_first(snapshots):
            if key[1] in done or failures == _FAILURES_MAX:
                continue
            try:
                if (image := self._read(snapshots[key])) is None:
                    continue
            except RemoteStorageError as error:
                failures += 1
                self._not_loaded(_place_of(snapshots[key]), error)
            else:
                is_any_read = True
                yield NewestSnapshot(image, self._doubt)
            done.add(key[1])
        if self._unread and not is_any_read:
            yield NewestSnapshot(None, self._doubt)

    @property
    def _doubt(self) -> str:
        return f"snapshots that may tell more cannot be read ({', '.join(self._unread)})" if self._unread else ""

    def _not_loaded(self, place: str, error: Exception) -> None:
        self._counters["load_failures"] += 1
        self._unread.append(place)
        log.warning("metadata_snapshot_not_loaded", snapshot=place, error=str(error))

    @property
    def counters(self) -> dict[str, int]:
        """Counts of snapshots: `saved`, `loaded`, `refused` (damaged or foreign ones), `load_failures`, `removed`."""
        return dict(self._counters)

    def _read(self, parts: list[StoredBlob]) -> StoreImage | None:
        place = _place_of(parts)
        try:
            if not _is_whole(parts):
                raise SnapshotError("read metadata snapshot", place, f"only {len(parts)} of its parts are there")
            content = SpooledSnapshot((ask(self._storage.get_blob(part)) for part in parts), self._spool_directory)
            image = read_image(content, self._cluster_id)
        except SnapshotError as error:
            self._counters["refused"] += 1
            if not _is_unfinished(parts):
                self._unread.append(place)
            log.warning("metadata_snapshot_refused", snapshot=place, reason=error.reason, hint=error.hint)
            return None
        except OSError as error:
            self._not_loaded(place, error)
            return None
        self._counters["loaded"] += 1
        return image

    def _list(self, directory: str) -> _Listed:
        found = defaultdict(list)
        try:
            for blob in ask_each(self._storage.list_blobs(directory)):
                if (match := _PART.fullmatch(blob.name)) is not None:
                    found[match[2], match[1]].append(blob)
        except IncompleteListingError as error:
            self._not_loaded("those in buckets that do not answer", error)
        return {key: sorted(parts, key=lambda part: part.name) for key, parts in found.items()}

    def _remove_old(self) -> None:
        snapshots = self._list(self._directory)
        whole = [key for key in _newest_first(snapshots) if _is_whole(snapshots[key])]
        for key in snapshots.keys() - set(whole[:_KEPT]):
            for part in snapshots[key]:
                ask(self._storage.delete_blob(part))
            self._counters["removed"] += 1


def _place_of(parts: list[StoredBlob]) -> str:
    return parts[0].name.rpartition("/")[0]


def _newest_first(snapshots: _Listed) -> list[tuple[str, str]]:
    """Return the keys; names decide where the store does not say when a blob was written."""
    return sorted(
        snapshots, key=lambda key: (max(part.last_modified_ms or 0 for part in snapshots[key]), key), reverse=True
    )


def _numbers(parts: Iterable[StoredBlob]) -> list[tuple[int, int]]:
    return [(int(name[-14:-9]), int(name[-5:])) for name in (part.name for part in parts)]


def _is_whole(parts: Iterable[StoredBlob]) -> bool:
    numbers = _numbers(parts)
    return numbers == [(part, len(numbers)) for part in range(len(numbers))]


def _is_unfinished(parts: Iterable[StoredBlob]) -> bool:
    """Whether only the last parts lack, as of a writer that died half-way, or is not done yet."""
    numbers = _numbers(parts)
    of = numbers[0][1]
    return len(numbers) < of and numbers == [(part, of) for part in range(len(numbers))]
