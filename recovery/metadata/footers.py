"""Objects' own footers, many read at a time: a request each, for what nobody else tells of.

What such an object names of a gateway's that is gone (`gateway.wanted_objects`) is left out, as if it had never been
stored: the object's agent died before it told of it, and lived on to store the log's records anew.
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
from recovery.patience import IMPATIENT, Patience

_THREADS = 16
_AT_ONCE = 1024

Progress = Callable[[str, int], None]
"""Told what is being done, and how many objects of it are done."""


@dataclass(frozen=True, slots=True)
class UnreadableObject:
    """An object that was listed and does not say what is in it."""

    key: str
    reason: str
    is_gone: bool = False
    """It was deleted since it was listed."""


def read_footers(
    storage: RemoteWalStorageManager,
    listed: Iterable[StoredSegment],
    progress: Progress,
    patience: Patience = IMPATIENT,
) -> Iterator[RemoteWalCombinedLogSegmentMetadata | UnreadableObject]:
    """In the order of `listed`. Raises RemoteStorageError when the store fails."""

    def read(stored: StoredSegment) -> RemoteWalCombinedLogSegmentMetadata | UnreadableObject:
        try:
            return patience.call(lambda: storage.fetch_segment_metadata(stored))
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
    """Leaves out entries that name what is gone. For one thread."""

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
            with suppress(IncompleteListingError):  # where it is said to be, it is looked for as well
                for blob in self._storage.blobs.list_blobs(ROUTER_KIND):
                    names.append(blob.name)
        return names

    def _is_there(self, found: RemoteWalCombinedLogSegmentMetadata, entry: RemoteLogSegmentMetadataEntry) -> bool:
        try:
            self._storage.fetch_log_segment(
                found.combined_segment_id, entry.start_file_position, entry.end_file_position, found.custom_metadata
            )
        except RemoteResourceNotFoundError:
            return False
        except RemoteStorageError:
            return True  # who reads it will know
        return True
