"""What an agent keeps of many brokers' objects is measured in a process of its own."""

from metadata_topic.records import serde
from metadata_topic.store.store import RemoteWalMetadataStore
from perf.metadata.brokers import Told, measure_brokers, told_records

TOLD = Told(brokers=3, objects=20, entries=50, memory_bytes=0)


def test_each_broker_tells_of_objects_and_partitions_of_its_own() -> None:
    store = RemoteWalMetadataStore()
    for key, value in told_records(TOLD):
        store.apply(serde.decode(key, value))
    segments = list(store.segments())
    assert {one.combined_segment_id.broker_id for one in segments} == {1, 2, 3}
    assert len(segments) == 3 * 20
    of_brokers = {
        broker: {entry.topic_id_partition for one in store.segments(broker_id=broker) for entry in one.entries}
        for broker in (1, 2, 3)
    }
    assert all(of_brokers.values())
    assert not of_brokers[1] & of_brokers[2]


def test_what_is_beyond_the_bound_is_on_disk() -> None:
    known = measure_brokers(TOLD)
    assert known.disk_bytes > 3 * 20 * 50 * 10
    assert known.cpu_us_per_object > 0
    assert known.topic_bytes_per_object > 50 * 4
    assert known.look_up_s > 0
    assert known.look_up_wall_s > 0
