"""Which objects of the RouterChannels nobody wants, as far as the metadata topic tells. For threads.

An object that no segment names may be one of which a log's agent has not published yet that it wants it. So it is asked
only of objects that are long past that (`router_sweep.KEEP_S`), and answered after a read of the topic to its end,
while the topic is not doubted. While nothing is known of the topic, nothing is unwanted.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from plugin.blob_storage import StoredBlob
from plugin.router_object_id import RouterObjectId
from plugin.segment_metadata import CombinedSegmentId


@dataclass(frozen=True, slots=True)
class KnownNames:
    """What the metadata tells."""

    naming: Callable[[RouterObjectId], Collection[CombinedSegmentId]]
    read_to_end: Callable[[], bool]
    """Blocks; False when the topic could not be read to the end that it has now."""
    doubt: Callable[[], str]
    """What speaks against concluding from what the topic does not tell; empty when nothing does."""


class WantedObjects:
    """Stands for what is known as soon as it is."""

    def __init__(self) -> None:
        self._known: KnownNames | None = None

    def arrived(self, known: KnownNames) -> None:
        """Ask this one from now on."""
        self._known = known

    def unwanted(self, listed: Iterable[StoredBlob]) -> list[StoredBlob]:
        """Those that no segment names."""
        asked, known = list(listed), self._known
        if not asked or known is None or not known.read_to_end() or known.doubt():
            return []
        return [blob for blob in asked if (name := RouterObjectId.parse(blob.name)) and not known.naming(name)]
