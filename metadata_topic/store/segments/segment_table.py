"""What is known of each combined segment, by writer and sequence.

Theory. A store knows of some million segments, and is asked about few of them. So each is a row of forty bytes
(`metadata_topic.store.segments.segment_rows`), its entries the block of bytes in which they came
(`metadata_topic.store.segments.entry_blocks`), and both are on disk where a bound asks for it. A writer numbers its
objects one after the other, so a page of rows stands for as many numbers that follow one another, and is freed with
the last of them.

`Segment` is a row as it was read. Who changes one writes it back with `put` before anything else is read or given back.

While a snapshot is made, segments that are deleted stay readable by their rows (`hold`).
"""

from collections import Counter

from metadata_topic.records.records import PublishedSegment
from metadata_topic.store.segments.entry_blocks import MemoryBound, Place
from metadata_topic.store.segments.row_blocks import RowBlocks, on_disk
from metadata_topic.store.segments.segment_rows import PAGE_BITS, PAGE_ROWS, Row, SegmentRows
from metadata_topic.store.segments.sequence_set import SequenceSet
from metadata_topic.store.segments.shared_values import SharedValues
from plugin.segment_metadata import CombinedSegmentId, RemoteLogSegmentState

NOT_INDEXED = 0xFFFFFFFF
_GONE = 0x80
"""Beside a state: the segment is deleted, and somebody still reads it."""
STATES = {int(state) + 1: state for state in RemoteLogSegmentState}
"""By the byte in a row, where 0 is no segment."""
_NONE = Row(0, 0, 0, 0, 0, 0, 0, 0)


class Writer:
    """One incarnation of one broker's agent, and its objects by sequence."""

    __slots__ = ("broker_id", "deleted", "fenced", "incarnation", "pages")

    def __init__(self, broker_id: int, incarnation: int) -> None:
        self.broker_id = broker_id
        self.incarnation = incarnation
        self.pages: dict[int, int] = {}
        """By what sequences have in common above `PAGE_BITS`."""
        self.deleted = SequenceSet()
        self.fenced = SequenceSet()
        """Objects of which a COPY record was refused when nothing was known of them."""

    def id_of(self, sequence: int) -> CombinedSegmentId:
        """The id of this writer's object of that number."""
        return CombinedSegmentId(self.broker_id, self.incarnation, sequence)


class Segment:
    """One combined segment that is not deleted, as its row has it."""

    __slots__ = (
        "custom_metadata",
        "custom_number",
        "event_timestamp_ms",
        "place",
        "row",
        "segment_id",
        "size_bytes",
        "slot",
        "state",
    )

    def __init__(
        self, segment_id: CombinedSegmentId, row: int, fields: Row, custom_metadata: bytes, place: Place
    ) -> None:
        self.segment_id = segment_id
        self.row = row
        self.state = STATES[fields.state & ~_GONE]
        self.event_timestamp_ms = fields.event_timestamp_ms
        self.size_bytes = fields.size_bytes
        self.custom_metadata = custom_metadata
        self.custom_number = fields.custom_metadata
        """Of nobody's concern but the table's, as the place is."""
        self.place = place
        """Of the entry block."""
        self.slot = fields.slot
        """Its number in the index of runs, while it is there."""


class SegmentTable:
    """All writers and their segments. Not thread-safe."""

    def __init__(self, bound: MemoryBound | None = None) -> None:
        self.rows = SegmentRows(bound)
        self._placed = RowBlocks(self.rows, bound)
        self.blocks = self._placed.blocks
        self.values = SharedValues()
        """Of custom metadata."""
        self._writers: dict[tuple[int, int], Writer] = {}
        self._owners: dict[int, tuple[Writer, int]] = {}
        """By page: whose it is, and the sequence of its first row."""
        self._living: Counter[int] = Counter()
        self._holders = 0
        self._gone: list[int] = []

    # Writers

    def writer(self, broker_id: int, incarnation: int) -> Writer:
        """Made when it is not there."""
        writer = self._writers.get((broker_id, incarnation))
        if writer is None:
            writer = self._writers[broker_id, incarnation] = Writer(broker_id, incarnation)
        return writer

    def find_writer(self, segment_id: CombinedSegmentId) -> Writer | None:
        """None when nothing is known of it."""
        return self._writers.get(segment_id[:2])

    def writers(self, broker_id: int | None = None) -> list[Writer]:
        """By broker and incarnation."""
        return [self._writers[key] for key in sorted(self._writers) if broker_id in (None, key[0])]

    # Segments

    def find(self, segment_id: CombinedSegmentId) -> Segment | None:
        """None when nothing is known of it, or it is deleted. Raises OSError of the disk, as all that reads does."""
        writer = self._writers.get(segment_id[:2])
        page = writer.pages.get(segment_id.sequence >> PAGE_BITS) if writer else None
        if page is None:
            return None
        row = page << PAGE_BITS | segment_id.sequence & PAGE_ROWS - 1
        fields = self.rows.read(row)
        return self._segment(segment_id, row, fields) if fields.state in STATES else None

    def at(self, row: int) -> Segment:
        """The segment that is there, or was when somebody began to hold it."""
        writer, first = self._owners[row >> PAGE_BITS]
        return self._segment(writer.id_of(first + (row & PAGE_ROWS - 1)), row, self.rows.read(row))

    def add(self, record: PublishedSegment) -> Segment:
        """One that is not there. It is in no index yet."""
        broker_id, incarnation, sequence = segment_id = record.combined_segment_id
        writer = self.writer(broker_id, incarnation)
        page = writer.pages.get(sequence >> PAGE_BITS)
        if page is None:
            page = writer.pages[sequence >> PAGE_BITS] = self.rows.make_page()
            self._owners[page] = writer, sequence >> PAGE_BITS << PAGE_BITS
        row = page << PAGE_BITS | sequence & PAGE_ROWS - 1
        self.rows.read(row)  # it fails here, or not at all
        number = self.values.take(record.custom_metadata)
        fields = Row(int(record.state) + 1, number, record.event_timestamp_ms, record.size_bytes, 0, 0, 0, NOT_INDEXED)
        segment = Segment(segment_id, row, fields, record.custom_metadata, self._placed.keep(record.entry_block, row))
        self._living[page] += 1
        self.put(segment)
        return segment

    def put(self, segment: Segment) -> None:
        """Write it back as it is now."""
        self.rows.write(
            segment.row,
            Row(
                int(segment.state) + 1,
                segment.custom_number,
                segment.event_timestamp_ms,
                segment.size_bytes,
                *on_disk(segment.place),
                segment.slot,
            ),
        )

    def describe(self, segment: Segment, custom_metadata: bytes) -> None:
        """It has that custom metadata from now on. To be put back."""
        before, segment.custom_number = segment.custom_number, self.values.take(custom_metadata)
        self.values.give_back(before)
        segment.custom_metadata = custom_metadata

    def replace_block(self, segment: Segment, entry_block: bytes) -> None:
        """By what is known now. Puts it back."""
        before, segment.place = segment.place, self._placed.keep(entry_block, segment.row)
        self.put(segment)
        self.blocks.give_back(before)

    def remove(self, segment: Segment) -> None:
        """It is deleted, and in no index any more. Nothing is asked of it after that."""
        if not self._holders:
            self._clear(segment.row)
            return
        self.rows.write(segment.row, self.rows.read(segment.row)._replace(state=int(segment.state) + 1 | _GONE))
        self._gone.append(segment.row)

    def entry_block(self, segment: Segment) -> bytes:
        """Empty for no entries. Raises OSError where the disk does not give it back."""
        return self.blocks.read(segment.place)

    def published(self, segment: Segment) -> PublishedSegment:
        """As a record, the entries left as bytes."""
        return PublishedSegment(
            segment.segment_id,
            segment.state,
            segment.event_timestamp_ms,
            segment.size_bytes,
            segment.custom_metadata,
            self.entry_block(segment),
        )

    # While a snapshot is made

    def hold(self) -> None:
        """What is in a row now can be read there until `let_go` was called as often."""
        self._holders += 1

    def let_go(self) -> None:
        """See `hold`."""
        self._holders -= 1
        if not self._holders:
            gone, self._gone = self._gone, []
            for row in gone:
                self._clear(row)

    def _segment(self, segment_id: CombinedSegmentId, row: int, fields: Row) -> Segment:
        return Segment(
            segment_id, row, fields, self.values.value(fields.custom_metadata), self._placed.place(row, fields)
        )

    def _clear(self, row: int) -> None:
        fields, page = self.rows.read(row), row >> PAGE_BITS
        place = self._placed.place(row, fields)
        self.rows.write(row, _NONE)
        self._placed.forget(row)
        self.values.give_back(fields.custom_metadata)
        self._living[page] -= 1
        if not self._living[page]:
            writer, first = self._owners.pop(page)
            del writer.pages[first >> PAGE_BITS], self._living[page]
            self.rows.free_page(page)
        self.blocks.give_back(place)
