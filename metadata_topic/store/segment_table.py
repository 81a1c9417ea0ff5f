"""What is known of each combined segment, by writer and sequence.

A store holds half a million of these: a segment is one slotted object whose entries stay the block of bytes in which
they came, in memory or on disk (`metadata_topic.store.entry_blocks`).
"""

from collections.abc import Iterator

from metadata_topic.records.records import PublishedSegment
from metadata_topic.store.entry_blocks import EntryBlocks, MemoryBound, Place
from metadata_topic.store.sequence_set import SequenceSet
from plugin.segment_metadata import CombinedSegmentId, RemoteLogSegmentState

NOT_INDEXED = -1
_INTERNED_MAX = 1000


class Writer:
    """One incarnation of one broker's agent, and its objects by sequence."""

    __slots__ = ("blocks", "broker_id", "deleted", "fenced", "incarnation", "segments")

    def __init__(self, broker_id: int, incarnation: int, blocks: EntryBlocks) -> None:
        """`blocks` has the entries of its segments."""
        self.blocks = blocks
        self.broker_id = broker_id
        self.incarnation = incarnation
        self.segments: dict[int, Segment] = {}
        self.deleted = SequenceSet()
        self.fenced = SequenceSet()
        """Objects of which a COPY record was refused when nothing was known of them."""

    def id_of(self, sequence: int) -> CombinedSegmentId:
        """The id of this writer's object of that number."""
        return CombinedSegmentId(self.broker_id, self.incarnation, sequence)


class Segment:
    """One combined segment that is not deleted."""

    __slots__ = (
        "custom_metadata",
        "event_timestamp_ms",
        "place",
        "sequence",
        "size_bytes",
        "slot",
        "state",
        "writer",
    )

    def __init__(
        self,
        writer: Writer,
        sequence: int,
        state: RemoteLogSegmentState,
        event_timestamp_ms: int,
        size_bytes: int,
        content: tuple[bytes, bytes],
    ) -> None:
        """`content` is the custom metadata and the entry block."""
        self.writer = writer
        self.sequence = sequence
        self.state = state
        self.event_timestamp_ms = event_timestamp_ms
        self.size_bytes = size_bytes
        self.custom_metadata, entry_block = content
        self.place: Place = b""
        """Of the entry block; of nobody's concern but `EntryBlocks`."""
        writer.blocks.keep(entry_block, self)
        self.slot = NOT_INDEXED
        """Its number in the index of runs, while it is there."""

    @property
    def segment_id(self) -> CombinedSegmentId:
        """Made anew at each call."""
        return self.writer.id_of(self.sequence)

    @property
    def entry_block(self) -> bytes:
        """Raises OSError where the disk does not give it back."""
        return self.writer.blocks.read(self.place)

    def replace_block(self, entry_block: bytes) -> None:
        """By what is known now."""
        self.forget_block()
        self.writer.blocks.keep(entry_block, self)

    def forget_block(self) -> None:
        """The segment is deleted."""
        self.writer.blocks.give_back(self)

    def published(self) -> PublishedSegment:
        """As a record, the entries left as bytes."""
        return PublishedSegment(
            self.segment_id,
            self.state,
            self.event_timestamp_ms,
            self.size_bytes,
            self.custom_metadata,
            self.entry_block,
        )


class SegmentTable:
    """All writers and their segments. Not thread-safe."""

    def __init__(self, bound: MemoryBound | None = None) -> None:
        self.blocks = EntryBlocks(bound)
        self._writers: dict[tuple[int, int], Writer] = {}
        self._custom_metadata: dict[bytes, bytes] = {}

    def writer(self, broker_id: int, incarnation: int) -> Writer:
        """Made when it is not there."""
        writer = self._writers.get((broker_id, incarnation))
        if writer is None:
            writer = self._writers[broker_id, incarnation] = Writer(broker_id, incarnation, self.blocks)
        return writer

    def find_writer(self, segment_id: CombinedSegmentId) -> Writer | None:
        """None when nothing is known of it."""
        return self._writers.get(segment_id[:2])

    def find(self, segment_id: CombinedSegmentId) -> Segment | None:
        """None when nothing is known of it, or it is deleted."""
        writer = self._writers.get(segment_id[:2])
        return writer.segments.get(segment_id.sequence) if writer else None

    def writers(self, broker_id: int | None = None) -> list[Writer]:
        """By broker and incarnation."""
        return [self._writers[key] for key in sorted(self._writers) if broker_id in (None, key[0])]

    def segments(self) -> Iterator[Segment]:
        """All that are not deleted, by writer and sequence."""
        for writer in self.writers():
            for sequence in sorted(writer.segments):
                yield writer.segments[sequence]

    def interned(self, custom_metadata: bytes) -> bytes:
        """The one object for these bytes: a backend gives nearly all segments the same few."""
        if len(self._custom_metadata) > _INTERNED_MAX:
            self._custom_metadata.clear()
        return self._custom_metadata.setdefault(custom_metadata, custom_metadata)
