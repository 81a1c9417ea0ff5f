"""Which segments name which objects of gateways (`plugin.adopted_records`), as long as they are not deleted."""

from plugin.format.adoption_note import split_note
from plugin.router_object_id import RouterObjectId
from plugin.segment_metadata import CombinedSegmentId


class AdoptedSources:
    """Kept beside the table of segments. Not thread-safe."""

    def __init__(self) -> None:
        self._segments: dict[RouterObjectId, set[CombinedSegmentId]] = {}

    def add(self, segment_id: CombinedSegmentId, custom_metadata: bytes) -> None:
        """The segment is known with this custom metadata."""
        for source in _named(custom_metadata):
            self._segments.setdefault(source, set()).add(segment_id)

    def remove(self, segment_id: CombinedSegmentId, custom_metadata: bytes) -> None:
        """Forget a segment's sources: it is deleted, or known with another note."""
        for source in _named(custom_metadata):
            segments = self._segments.get(source, set())
            segments.discard(segment_id)
            if not segments:
                self._segments.pop(source, None)

    def naming(self, source: RouterObjectId) -> frozenset[CombinedSegmentId]:
        """The segments that name it."""
        return frozenset(self._segments.get(source, ()))


def _named(custom_metadata: bytes) -> tuple[RouterObjectId, ...]:
    note = split_note(custom_metadata)[1] if custom_metadata else None
    return note.sources if note is not None else ()
