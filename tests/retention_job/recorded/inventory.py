"""An S3 Inventory of what a world has stored."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from plugin.archive_storage import StoredArchiveObject
from plugin.format.object_keys import ObjectKeyFactory
from tests.retention_job.recorded.history import CLUSTER_ID, StoredObject


def write_inventory(
    directory: Path, objects: Sequence[StoredObject], archived: Sequence[StoredArchiveObject] = (), prefix: str = ""
) -> str:
    """One Parquet file with the columns that S3 writes."""
    keys = ObjectKeyFactory.of(prefix, CLUSTER_ID)
    directory.mkdir()
    stored_objects: list[StoredObject | StoredArchiveObject] = [*objects, *archived]
    table = pa.table(
        {
            "bucket": ["wal"] * len(stored_objects),
            "key": [keys.key_of(stored.segment_id) for stored in objects] + [stored.key for stored in archived],
            "size": pa.array([stored.size_bytes for stored in stored_objects], pa.int64()),
            "last_modified_date": pa.array(
                [stored.last_modified_ms for stored in stored_objects], pa.timestamp("ms", "UTC")
            ),
            "storage_class": ["EXPRESS_ONEZONE"] * len(stored_objects),
        }
    )
    pq.write_table(table, directory / "part-0.parquet")
    return str(directory)
