"""Many segments at once: a few fields of a page of rows, as columns, without a look at their entries.

Not thread-safe: the store calls it under its lock. All raise OSError of the disk.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from metadata_topic.store.segments.segment_rows import FIELDS, PAGE_BITS
from metadata_topic.store.segments.segment_table import STATES, SegmentTable, Writer

_NAMES: Final = FIELDS.names or ()
FACTS: Final = np.dtype([*((name, FIELDS[name]) for name in _NAMES), ("sequence", "<i8"), ("row", "<u4")])
"""What a row tells of a segment: its state (as `RemoteLogSegmentState` numbers them), the number of its custom metadata
in `SegmentTable.values`, its time and size; its sequence, and the row's number.
"""


def page_facts(table: SegmentTable, writer: Writer, page: int) -> NDArray[np.void]:
    """`FACTS` of the segments of that page of the writer's that are not deleted, by sequence; none without the page."""
    if page not in writer.pages:
        return np.empty(0, dtype=FACTS)
    fields = table.rows.page(writer.pages[page])
    rows = np.flatnonzero(np.isin(fields["state"], list(STATES)))
    facts = np.empty(len(rows), dtype=FACTS)
    for name in _NAMES:
        facts[name] = fields[name][rows]
    facts["state"] -= 1
    facts["sequence"] = (page << PAGE_BITS) + rows
    facts["row"] = (writer.pages[page] << PAGE_BITS) + rows
    return facts


def writer_facts(table: SegmentTable, writer: Writer, *, newest_first: bool = False) -> Iterator[NDArray[np.void]]:
    """The same of each of its pages."""
    return (page_facts(table, writer, page) for page in sorted(writer.pages, reverse=newest_first))


def all_rows(table: SegmentTable) -> NDArray[np.uint32]:
    """The rows of all that are not deleted, by writer and sequence."""
    found = [facts["row"] for writer in table.writers() for facts in writer_facts(table, writer)]
    return np.concatenate(found) if found else np.empty(0, dtype=np.uint32)
