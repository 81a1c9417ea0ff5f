"""Reads many objects' own footers at a time: a request each, for objects without other metadata.

If such an object names a gateway's object that is gone (`gateway.router_uploads`), that part is left out, as if it had
never been stored: the object's agent had an upload without publication, and lived on to store the log's records again.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice

from plugin.errors import (
    IncompleteListingError,
    RemoteResourceNotFoundError,
    RemoteSegmentCorruptError,
    RemoteStorageError,
)
from plugin.format.adoption_note import split_note
from plugin.remote_wal_storage_manager import RemoteWalStorageManager, StoredSegment
from plugin.router_object_id import ROUTER_KIND
from plugin.segment_metadata import RemoteLogSegmentMetadataEntry, RemoteWalCombinedLogSegmentMetadata
from plugin.store_loop import ask, ask_each
from recovery.patience import IMPATIENT, Patience

_THREADS = 16
_AT_ONCE = 1024

Progress = Callable[[str, int], None]
"""Called with the current activity, and how many objects of it are done."""


@dataclass(frozen=True, slots=True)
class UnreadableObject:
    """A listed object whose content cannot be read."""

    key: str
    reason: str
    is_gone: bool = False
    """It was deleted after it was listed."""


def read_footers(
    storage: RemoteWalStorageManager,
    listed: Iterable[StoredSegment],
    progress: Progress,
    patience: Patience = IMPATIENT,
) -> Iterator[RemoteWalCombinedLogSegmentMetadata | UnreadableObject]:
    """Yield the metadata in the objects' footers, or why one cannot be read, in the order of `listed`. Raises
    RemoteStorageError when the store fails."""

    def read(stored: StoredSegment) -> RemoteWalCombinedLogSegmentMetadata | UnreadableObject:
        try:
            return patience.call(lambda: ask(storage.fetch_segment_metadata(stored)))
        except RemoteResourceNotFoundError as error:
            return UnreadableObject(stored.key, error.reason, is_gone=True)
        except RemoteSegmentCorruptError as error:
            return UnreadableObject(stored.key, error.reason)

    done = 0
    rest = iter(listed)
    readable = _Readable(storage, patience)
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="recovery-footer") as pool:
        while part := list(islice(rest, _AT_ONCE)):
            yield from (one if isinstance(one, UnreadableObject) else readable.of(one) for one in pool.map(read, part))
            done += len(part)
            progress("footers", done)


class _Readable:
    """Leaves out entries that name missing objects. For one thread."""

    def __init__(self, storage: RemoteWalStorageManager, patience: Patience) -> None:
        self._storage = storage
        self._patience = patience
        self._listed: frozenset[str] | None = None
        """Gateways' objects, once any is named."""

    def of(self, found: RemoteWalCombinedLogSegmentMetadata) -> RemoteWalCombinedLogSegmentMetadata:
        note = split_note(found.custom_metadata)[1]
        if note is None or all(source.blob_name in self._names() for source in note.sources):
            return found
        return replace(found, entries=tuple(entry for entry in found.entries if self._is_there(found, entry)))

    def _names(self) -> frozenset[str]:
        if self._listed is None:
            self._listed = frozenset(self._patience.call(self._list))
        return self._listed

    def _list(self) -> list[str]:
        names: list[str] = []
        if self._storage.blobs is not None:
            with suppress(IncompleteListingError):  # objects are also looked for at the named place
                for blob in ask_each(self._storage.blobs.list_blobs(ROUTER_KIND)):
                    names.append(blob.name)
        return names

    def _is_there(self, found: RemoteWalCombinedLogSegmentMetadata, entry: RemoteLogSegmentMetadataEntry) -> bool:
        try:
            ask(
                self._storage.fetch_log_segment(
                    found.combined_segment_id, entry.start_file_position, entry.end_file_position, found.custom_metadata
                )
            )
        except RemoteResourceNotFoundError:
            return False
        except RemoteStorageError:
            return True  # the reader will find out
        return True
