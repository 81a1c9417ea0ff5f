"""Objects' own footers, many read at a time: a request each, for what nobody else tells of."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

from plugin.errors import RemoteResourceNotFoundError, RemoteSegmentCorruptError
from plugin.remote_wal_storage_manager import RemoteWalStorageManager, StoredSegment
from plugin.segment_metadata import RemoteWalCombinedLogSegmentMetadata
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
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="recovery-footer") as pool:
        while part := list(islice(rest, _AT_ONCE)):
            yield from pool.map(read, part)
            done += len(part)
            progress("footers", done)
