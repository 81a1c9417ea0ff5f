"""Finds objects of the RouterChannels that nobody wants, according to the metadata topic. For threads.

If no segment names an object, a log's agent may still publish one that does. A segment that names it is stored soon
after it, if ever (`adoptable_records.NAMED_WITHIN_MS`), and published some time later. So only objects far older than
that are checked (`router_sweep.KEEP_S`), and an object stays while an unpublished segment was stored at about the same
time. The check follows a read of the topic to its end, while the topic is not doubted. While nothing is known of the
topic, nothing is unwanted.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

from plugin.blob_storage import StoredBlob
from plugin.router_object_id import RouterObjectId
from plugin.segment_metadata import CombinedSegmentId
from rlm.write_path.uploads.adoptable_records import NAMED_WITHIN_MS

CLOCKS_MS: Final = 300_000
"""How far the clocks of gateways, agents and the store may differ."""


@dataclass(frozen=True, slots=True)
class KnownNames:
    """Which segments name which gateways' objects, by the metadata."""

    find_adopters: Callable[[RouterObjectId], Collection[CombinedSegmentId]]
    unpublished_ms: Callable[[int], Collection[int]]
    """Blocks. Returns when segments were stored, by the store's clock, that were begun before that moment and may still
    be published. Raises RemoteStorageError."""
    read_to_end: Callable[[], bool]
    """Blocks; False when the topic could not be read to its present end."""
    doubt: Callable[[], str]
    """The reason not to draw conclusions from what the topic lacks; empty if there is none."""
    is_stopped: Callable[[], bool] = lambda: False
    """Whether this agent may neither store nor delete: another cluster may use the same names."""


class WantedObjects:
    """Finds objects of gateways that no segment names. Before there is metadata, it finds none."""

    def __init__(self, near_ms: int = NAMED_WITHIN_MS + CLOCKS_MS) -> None:
        """`near_ms` bounds how far apart, by the store's clock, an object and a segment that names it can be stored."""
        self._near_ms = near_ms
        self._known: KnownNames | None = None

    def arrived(self, known: KnownNames) -> None:
        """Start to use this metadata."""
        self._known = known

    @property
    def is_stopped(self) -> bool:
        """Whether this agent may neither store nor delete objects now."""
        return self._known is not None and self._known.is_stopped()

    def find_unwanted(self, listed: Iterable[StoredBlob]) -> list[StoredBlob]:
        """Return the objects that no segment names or can still come to name. Raises RemoteStorageError."""
        known = self._known
        if known is None:
            return []
        asked = [(blob, name) for blob in listed if (name := RouterObjectId.parse(blob.name))]
        unnamed = [(blob, name) for blob, name in asked if not known.find_adopters(name)]
        if not unnamed:
            return []
        unpublished_ms = known.unpublished_ms(max(name.begun_until_ms for _, name in unnamed) + self._near_ms)
        if not known.read_to_end() or known.doubt():
            return []
        return [
            blob for blob, name in unnamed if not known.find_adopters(name) and not self._is_near(name, unpublished_ms)
        ]

    def _is_near(self, name: RouterObjectId, stored_ms: Iterable[int]) -> bool:
        begin_ms, end_ms = name.begun_ms - self._near_ms, name.begun_until_ms + self._near_ms
        return any(begin_ms <= at_ms <= end_ms for at_ms in stored_ms)
