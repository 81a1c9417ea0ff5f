"""What is read ahead of a follower that is far behind: decided by plain values, whatever the reads bring."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from kafka_log.record_batch import scan_batches
from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.settings.topic_settings import LinkPolicy
from plugin.format.archive_object_id import StoredObjectId
from plugin.segment_metadata import CombinedSegmentId, RemoteLogSegmentMetadataEntry
from replication.leader.link_index import FoundBatches, LinkIndex
from replication.leader.read_ahead import CatchUpLimits, ReadAhead, WantedRead
from replication.wire.link import Cut, LinkedResponse, SegmentLink
from replication.wire.metrics import ReplicationMetrics
from rlm.write_path.core.led_views import FoundRuns, ProvedRun, StoredLog
from tests.kafka_log.batches import batches
from tests.replication.fetch_frames import partition

UPLOADED_OFFSET = 1000
AHEAD_BYTES, READ_BYTES = 10_000, 1000


class Logs:
    """All below one offset is uploaded, in living objects."""

    def stored_log(self, partition: TopicIdPartition) -> StoredLog | None:
        return StoredLog(partition, Path("not-read"), UPLOADED_OFFSET, LinkPolicy.ALWAYS)

    def runs(self, log: StoredLog, offset: int, max_bytes: int, archive: bool) -> FoundRuns:
        raise AssertionError("nothing is read here")

    def is_living(self, object_id: StoredObjectId) -> bool:
        return True


def read_ahead() -> ReadAhead:
    found = FoundBatches(LinkIndex(), Logs(), 1000, lambda: 0.0)
    limits = CatchUpLimits(AHEAD_BYTES, READ_BYTES)
    return ReadAhead(found, limits, ReplicationMetrics(CollectorRegistry()), links_archive=True)


def run(number: int, first_offset: int, count: int = 4, payload_bytes: int = 200) -> ProvedRun:
    """So many batches of two records in an object of their own."""
    raw = batches(count, first_offset, 2, payload=b"r" * payload_bytes)
    spans = tuple(scan_batches(raw, 0, len(raw)))
    entry = RemoteLogSegmentMetadataEntry(
        partition(number), 0, first_offset, spans[-1].last_offset, 112, 112 + len(raw), 0
    )
    return ProvedRun(CombinedSegmentId(7, 3, 1000 * number + first_offset), entry, memoryview(raw), spans)


def begun(plan: ReadAhead, number: int, offset: int = 0) -> WantedRead:
    """A follower asks for this offset, which nobody has found yet."""
    assert plan.expected(partition(number), offset)
    (read,) = plan.take_wanted()
    assert (read.log.topic_id_partition, read.offset) == (partition(number), offset)
    return read


def linked(number: int, of: ProvedRun) -> tuple[LinkedResponse, list[tuple[TopicIdPartition, int, int]]]:
    """A response whose only link stands for all of a run."""
    size = len(of.records)
    response = LinkedResponse(size, (Cut(0, (SegmentLink(of.object_id, 112, size, 0),)),), (b"",))
    return response, [(partition(number), of.entry.last_offset + 1, size)]


def test_one_read_at_a_time_each_from_where_the_one_before_has_ended_until_enough_is_ahead() -> None:
    plan, offset, ahead_bytes = read_ahead(), 0, 0
    read = begun(plan, 0)
    while ahead_bytes < AHEAD_BYTES:
        assert plan.take_wanted() == []
        found = run(0, offset)
        assert plan.was_read(read, FoundRuns([found])) == {found.object_id: [(112, 112 + len(found.records))]}
        offset, ahead_bytes = found.entry.last_offset + 1, ahead_bytes + len(found.records)
        assert plan.ahead_bytes == {partition(0): ahead_bytes}
        if ahead_bytes < AHEAD_BYTES:
            (read,) = plan.take_wanted()
            assert read.offset == offset
    assert plan.take_wanted() == []


def test_what_is_linked_makes_room_and_reading_goes_on() -> None:
    plan = read_ahead()
    large = [run(0, 0, payload_bytes=700), run(0, 8, payload_bytes=700)]
    plan.was_read(begun(plan, 0), FoundRuns(large))
    assert plan.take_wanted() == []
    assert plan.sent(*linked(0, large[0]))
    (read,) = plan.take_wanted()
    assert read.offset == 16
    assert plan.ahead_bytes == {partition(0): len(large[1].records)}


def test_partitions_share_what_may_be_read_ahead() -> None:
    plan = read_ahead()
    begun(plan, 1)
    read = begun(plan, 0)
    plan.was_read(read, FoundRuns([run(0, 0, payload_bytes=700)]))
    assert AHEAD_BYTES / 2 < plan.ahead_bytes[partition(0)] < AHEAD_BYTES
    assert plan.take_wanted() == []


def test_what_another_partition_has_announced_is_not_announced_once_more_but_counts_as_read_ahead() -> None:
    plan = read_ahead()
    assert plan.was_read(begun(plan, 1), FoundRuns([run(1, 0, payload_bytes=3000)]))
    read = begun(plan, 0)
    assert plan.was_read(read, FoundRuns([run(0, 0)])) == {}
    assert plan.ahead_bytes[partition(0)] == len(run(0, 0).records)


def test_where_nothing_is_found_nobody_waits_until_the_follower_is_past_it() -> None:
    plan = read_ahead()
    plan.was_read(begun(plan, 0), FoundRuns([], refused_to=40))
    assert not plan.expected(partition(0), 0)
    assert not plan.expected(partition(0), 39)
    assert plan.take_wanted() == []
    begun(plan, 0, 40)


def test_what_a_read_finds_for_a_log_that_was_cut_meanwhile_is_not_announced() -> None:
    plan = read_ahead()
    read = begun(plan, 0)
    plan.forget(partition(0))
    assert read.is_dropped
    again = begun(plan, 0)
    assert plan.was_read(read, FoundRuns([run(0, 0)])) == {}
    assert plan.take_wanted() == []
    assert plan.was_read(again, FoundRuns([run(0, 0)])) != {}


def test_a_follower_that_has_all_that_was_uploaded_is_not_behind() -> None:
    plan = read_ahead()
    assert not plan.expected(partition(0), UPLOADED_OFFSET)
    assert plan.sent(*linked(0, run(0, UPLOADED_OFFSET - 8)))
    assert plan.ahead_bytes == {}
    assert plan.take_wanted() == []


steps = st.lists(
    st.tuples(st.sampled_from(["ask", "read", "nothing", "link", "forget"]), st.integers(0, 2), st.integers(1, 6)),
    max_size=60,
)


@given(steps)
def test_no_partition_has_two_reads_and_no_more_is_announced_than_may_be_but_for_one_run(
    script: list[tuple[str, int, int]],
) -> None:
    plan = read_ahead()
    reads: dict[int, WantedRead] = {}
    ahead: dict[int, list[ProvedRun]] = {number: [] for number in range(3)}
    announced: dict[StoredObjectId, int] = {}
    for what, number, count in script:
        if what == "ask" and not ahead[number]:
            plan.expected(partition(number), 0)
        elif what in ("read", "nothing") and number in reads:
            read = reads.pop(number)
            found = [run(number, read.offset, count, 500)] if what == "read" and read.offset < 900 else []
            for object_id, ranges in plan.was_read(read, FoundRuns(found)).items():
                announced[object_id] = sum(end - start for start, end in ranges)
            ahead[number] += found
        elif what == "link" and ahead[number]:
            first = ahead[number].pop(0)
            announced.pop(first.object_id, None)
            plan.sent(*linked(number, first))
        elif what == "forget":
            plan.forget(partition(number))
            reads.pop(number, None)
            for each in ahead.pop(number):
                announced.pop(each.object_id, None)
            ahead[number] = []
        for read in plan.take_wanted():
            if not read.is_dropped:
                assert reads.setdefault(read.log.topic_id_partition.partition, read) is read
        assert sum(announced.values()) < AHEAD_BYTES + len(run(0, 0, 6, 500).records)
