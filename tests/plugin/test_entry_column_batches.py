import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugin.format import entry_columns
from plugin.format.entry_column_batches import decode_runs
from plugin.segment_metadata import RemoteLogSegmentMetadataEntry
from tests.plugin.test_entry_columns import entry_lists


@pytest.mark.parametrize("times", [1, 100])
@settings(max_examples=30)
@given(blocks=st.lists(entry_lists(), max_size=3))
def test_few_runs_and_many_are_those_of_the_entries(
    blocks: list[list[RemoteLogSegmentMetadataEntry]], times: int
) -> None:
    runs = decode_runs([entry_columns.encode(entries) for entries in blocks] * times)
    topics = [runs.topic_ids[topic] for topic in runs.topic.tolist()]
    columns = (runs.block, runs.partition, runs.leader_epoch, runs.first_offset, runs.last_offset)
    found = list(zip(topics, *(column.tolist() for column in columns), strict=True))
    assert found == [
        (one.topic_id_partition.topic_id, number, one.topic_id_partition.partition, one.leader_epoch, one.first_offset,
         one.last_offset)
        for number, entries in enumerate(blocks * times)
        for one in entries
    ]  # fmt: skip
