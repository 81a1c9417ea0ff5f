"""Which objects of the RouterChannels nobody wants, as far as the metadata topic tells. For threads.

An object that no segment names may be one of which a log's agent has not published yet that it wants it. A segment that
names it is stored soon after it, if ever (`adoptable_records.NAMED_WITHIN_MS`), and told of some time. So it is asked
only of objects that are long past the former (`router_sweep.KEEP_S`), and those stay beside which a segment was stored
that the topic may be told of yet. It is answered after a read of the topic to its end, while the topic is not doubted.
While nothing is known of the topic, nothing is unwanted.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

from plugin.blob_storage import StoredBlob
from plugin.router_object_id import RouterObjectId
from plugin.segment_metadata import CombinedSegmentId
from rlm.write_path.uploads.adoptable_records import NAMED_WITHIN_MS

CLOCKS_MS: Final = 300_000
"""By which those of gateways, agents and the store may differ."""


@dataclass(frozen=True, slots=True)
class KnownNames:
    """What the metadata tells."""

    naming: Callable[[RouterObjectId], Collection[CombinedSegmentId]]
    untold_ms: Callable[[int], Collection[int]]
    """Blocks; when segments were stored, by the store's clock, that were begun before that moment, and that may be told
    of yet. Raises RemoteStorageError."""
    read_to_end: Callable[[], bool]
    """Blocks; False when the topic could not be read to the end that it has now."""
    doubt: Callable[[], str]
    """What speaks against concluding from what the topic does not tell; empty when nothing does."""


class WantedObjects:
    """Stands for what is known as soon as it is."""

    def __init__(self, near_ms: int = NAMED_WITHIN_MS + CLOCKS_MS) -> None:
        """`near_ms` is how far from it a segment may be stored, by the store's clock, that names an object."""
        self._near_ms = near_ms
        self._known: KnownNames | None = None

    def arrived(self, known: KnownNames) -> None:
        """Ask this one from now on."""
        self._known = known

    def unwanted(self, listed: Iterable[StoredBlob]) -> list[StoredBlob]:
        """Those that no segment names, or will. Raises RemoteStorageError."""
        known = self._known
        if known is None:
            return []
        asked = [(blob, name) for blob in listed if (name := RouterObjectId.parse(blob.name))]
        unnamed = [(blob, name) for blob, name in asked if not known.naming(name)]
        if not unnamed:
            return []
        untold_ms = known.untold_ms(max(name.begun_until_ms for _, name in unnamed) + self._near_ms)
        if not known.read_to_end() or known.doubt():
            return []
        return [blob for blob, name in unnamed if not known.naming(name) and not self._is_near(name, untold_ms)]

    def _is_near(self, name: RouterObjectId, stored_ms: Iterable[int]) -> bool:
        begin_ms, end_ms = name.begun_ms - self._near_ms, name.begun_until_ms + self._near_ms
        return any(begin_ms <= at_ms <= end_ms for at_ms in stored_ms)
