"""What the job refuses is what agents' stores refuse."""

from random import Random

import pytest
from pyspark.sql import SparkSession

from metadata_topic.records import serde
from metadata_topic.records.records import RemoteWalNodeRegistration
from metadata_topic.store.fencing import Registrations
from plugin.segment_metadata import CombinedSegmentId
from retention_job.sources.decoding import PARTITION_SHIFT
from retention_job.tables.fences import REGISTRATIONS, known_writers, registrations_of, with_refusals
from retention_job.tables.objects import COMBINED_SEGMENT as OBJECT_KIND
from retention_job.tables.objects import facts_of_records

RECORDS = "broker_id INT, incarnation LONG, record_id LONG"


@pytest.mark.gate
def test_records_are_refused_where_agents_refuse_them(spark: SparkSession) -> None:
    rng = Random(5)
    places = [(partition, offset) for partition in (0, 1) for offset in range(60)]
    known, registered = Registrations(), []
    for partition, offset in sorted(rng.sample(places, 14)):
        # Broker 3's registrations are in one partition, as they are unless partitions were added.
        broker_id = rng.choice((1, 2, 3) if partition else (1, 2))
        registration = RemoteWalNodeRegistration(broker_id, rng.randrange(6), broker_id, 0)
        known.add(registration, (partition, offset))
        row = (bytearray(serde.key_of(registration)), bytearray(serde.encode(registration)))
        registered.append((*row, partition << PARTITION_SHIFT | offset))
    rng.shuffle(registered)
    records = [
        (broker_id, incarnation, partition << PARTITION_SHIFT | offset)
        for broker_id in (1, 2, 3, 4)
        for incarnation in range(6)
        for partition, offset in places
    ]
    read = registrations_of(spark.createDataFrame(registered, REGISTRATIONS).collect())
    judged = with_refusals(spark.createDataFrame(records, RECORDS), read, "incarnation").collect()
    expected = {
        (broker_id, incarnation, record_id): known.fences(
            broker_id, incarnation, (record_id >> PARTITION_SHIFT, record_id & 0xFFFF)
        )
        for broker_id, incarnation, record_id in records
    }
    assert {tuple(row)[:3]: row.is_fenced for row in judged} == expected
    assert len(judged) == len(records)
    assert {expected[3, 0, 1 << PARTITION_SHIFT | offset] for offset in (0, 59)} == {False, True}


def test_without_registrations_nothing_is_refused(spark: SparkSession) -> None:
    records = spark.createDataFrame([(1, 5, 7)], RECORDS)
    assert [row.is_fenced for row in with_refusals(records, Registrations(), "incarnation").collect()] == [False]


def test_what_a_rebuild_tells_of_a_fenced_writers_upload_counts(spark: SparkSession) -> None:
    columns = (
        "broker_id INT, incarnation LONG, sequence LONG, state INT, event_timestamp_ms LONG, size_bytes LONG, "
        "elsewhere_bytes LONG, entry_count INT, retention_ms LONG, "
        "record_id LONG, record_type INT, is_fenced BOOLEAN"
    )
    row = (1, 5, 0, 1, 7, 100, 0, 1, 9, 3)
    staged = spark.createDataFrame(
        [
            (*row, serde.COMBINED_SEGMENT, True),
            (*row, serde.REBUILT_SEGMENT, True),
            (*row, serde.COMBINED_SEGMENT, False),
        ],
        columns,
    )
    told = [(one.state, one.refused_state) for one in facts_of_records(OBJECT_KIND, staged).collect()]
    assert told == [(None, 1), (1, None), (1, None)]


def test_writers_are_named_as_their_segments_begin_and_older_ones_are_known_too() -> None:
    known = Registrations()
    for place, (broker_id, incarnation) in enumerate([(1, 5), (12, 7), (1, 400)]):
        known.add(RemoteWalNodeRegistration(broker_id, incarnation, broker_id, 0), (0, place))
    names = [str(CombinedSegmentId(*writer, 3)).rpartition("-")[0] for writer in ((1, 5), (1, 400), (12, 7))]
    assert known_writers(known) == names
