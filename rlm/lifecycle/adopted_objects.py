"""Deletes a gateway's object that segments have adopted, together with the last segment that names it.

See `plugin.adopted_records`. If adopted, a gateway's object holds records for one leader's agent only, so the agent
that cares for that broker's segments knows all segments that name it. An object younger than `AGE_MS` may still get
named and is left alone; a gateway's sweep finds it later, like anything that two agents' care has missed.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Final

from plugin.blob_storage import StoredBlob
from plugin.format.adoption_note import split_note
from plugin.remote_wal_storage_manager import RemoteWalStorageManager, blobs_of
from plugin.router_object_id import RouterObjectId
from plugin.segment_metadata import CombinedSegmentId
from rlm.write_path.uploads.adoptable_records import NAMED_WITHIN_MS

AGE_MS: Final = NAMED_WITHIN_MS
_REMEMBERED: Final = 10_000


class AdoptedObjects:
    """Deletes adopted objects. For one or several threads: deleting twice does no harm."""

    def __init__(
        self,
        storage: RemoteWalStorageManager,
        naming: Callable[[RouterObjectId], Collection[CombinedSegmentId]],
        wall_ms: Callable[[], int],
    ) -> None:
        """`naming` is the metadata store's."""
        self._storage = storage
        self._naming = naming
        self._wall_ms = wall_ms
        self._gone: OrderedDict[CombinedSegmentId, None] = OrderedDict()
        """Segments deleted a moment ago; the store may not have read that from the topic yet."""

    def segment_deleted(self, segment_id: CombinedSegmentId, custom_metadata: bytes) -> None:
        """Handle a segment that was deleted from the store. After RemoteStorageError it must be called again."""
        note = split_note(custom_metadata)[1]
        if note is None:
            return
        self._gone[segment_id] = None
        if len(self._gone) > _REMEMBERED:
            self._gone.popitem(last=False)
        for source in note.sources:
            is_old = self._wall_ms() >= source.begun_until_ms + AGE_MS
            if is_old and all(one in self._gone for one in self._naming(source)):
                name = source.blob_name
                blobs_of(self._storage, "delete", name).delete_blob(StoredBlob(name, 0))
