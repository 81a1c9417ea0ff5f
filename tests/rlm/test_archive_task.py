"""Archiving: what is archived is the log, byte for byte, whatever overlaps, dies or fails."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_log.batch_digests import records_digest
from kafka_log.broker_files.leader_epoch_checkpoint import LeaderEpochs
from kafka_log.record_batch import scan_batches
from metadata_topic.records.archive_records import ArchiveRecord
from metadata_topic.records.records import RemoteWalNodeRegistration
from metadata_topic.records.states import DELETED, DELETING, FINISHED
from rlm.archive.archive_care import CareDuties
from rlm.lifecycle.orphans import Kind, MetadataBehindError
from rlm.lifecycle.release import ClusterView
from tests.kafka_log.batches import batch
from tests.kafka_log.forgery import forged
from tests.metric_values import metric_value
from tests.rlm.archive_rig import ORDERS, TTL_MS, Agent, Outside, plain_log

Batch = tuple[int, int, bytes]


@st.composite
def uploaded_logs(draw: st.DrawFn) -> Outside:
    """A log of some epochs, and uploads of it that overlap, repeat, leave holes, and have dead tails."""
    log: list[Batch] = []
    written: list[list[Batch]] = []
    epochs: list[tuple[int, int]] = []
    offset, epoch = draw(st.integers(0, 5)), 0
    for _ in range(draw(st.integers(1, 4))):
        epochs.append((epoch, offset))
        live: list[Batch] = []
        dead: list[Batch] = []
        at = offset
        for n in range(draw(st.integers(1, 8))):
            records = draw(st.integers(1, 3))
            is_dead = n > 0 and (bool(dead) or draw(st.integers(0, 5)) == 0)
            (dead if is_dead else live).append((at, epoch, batch(at, records, epoch, b"%d" % draw(st.integers(0, 9)))))
            at += records
            if not is_dead:
                offset = at + draw(st.sampled_from([0, 0, 0, 4]))  # a hole, as compaction leaves it
                at = offset
        log += live
        written.append(live + dead)
        epoch += draw(st.integers(1, 2))
    written[-1] = [found for found in written[-1] if found in log]
    outside = Outside(log, tuple(epochs))
    for _ in range(draw(st.integers(1, 6))):
        runs = []
        for batches in written:
            first = draw(st.integers(0, len(batches) - 1))
            last = draw(st.integers(first, len(batches) - 1))
            if draw(st.integers(0, 3)):
                runs.append(batches[first : last + 1])
        if runs:
            outside.upload(*runs, broker_id=draw(st.integers(1, 2)))
    return outside


@given(uploaded_logs(), st.integers(100, 1500), st.integers(1, 500), st.integers(1, 3))
async def test_what_is_archived_is_the_log_byte_for_byte(
    outside: Outside, max_bytes: int, run_bytes: int, threads: int
) -> None:
    # Only what was uploaded under the epoch that the log has there is to be found.
    expected = b""
    for base, epoch, raw in outside.log:
        chain = LeaderEpochs(outside.epochs)
        if any(found.entry.leader_epoch == epoch for found in outside.wal.entries_covering(ORDERS, base, chain)):
            expected += raw
    agent = Agent(outside, 5, max_bytes=max_bytes, run_bytes=run_bytes, threads=threads)
    await agent.archive_all()
    assert agent.archived_bytes() == expected
    objects = [named for named, _ in agent.archive.objects(FINISHED)]
    ranges = sorted((named.first_offset, named.last_offset) for named in objects)
    assert all(before[1] < after[0] for before, after in pairwise(ranges))
    assert set(outside.archive_storage.objects) == set(objects)
    agent.task.close()


async def test_a_corrupt_or_missing_source_gives_way_to_its_copy() -> None:
    outside = Outside(plain_log(4), ((0, 0),))
    broken, gone, whole = (outside.upload(outside.log) for _ in range(3))
    raw = bytearray(outside.wal_storage.objects[broken])
    raw[150] ^= 1
    outside.wal_storage.objects[broken] = bytes(raw)
    del outside.wal_storage.objects[gone]
    agent = Agent(outside, 5)
    assert await agent.archive_all() == 1
    assert agent.archived_bytes() == b"".join(raw for _, _, raw in outside.log)
    assert [found for found, _, _ in outside.wal_storage.fetches] == [broken, gone, whole]
    agent.task.close()


async def test_a_forged_source_is_never_archived() -> None:
    outside = Outside(plain_log(4), ((0, 0),))
    segment_id = outside.upload(outside.log)
    raw = outside.wal_storage.objects[segment_id]
    outside.wal_storage.objects[segment_id] = forged(raw, 140, bytes((raw[140] ^ 1,)))  # of the first batch
    agent = Agent(outside, 5)
    assert await agent.archive_all() == 0
    assert metric_value(agent.metrics.failures.labels("corrupt")) >= 2
    assert outside.topic == []
    agent.task.close()


@pytest.mark.parametrize("digests", [0, 1])
async def test_archived_runs_have_digests_where_they_are_taken(digests: int) -> None:
    outside = Outside(plain_log(4), ((0, 0),))
    outside.upload(outside.log)
    agent = Agent(outside, 5, digests=digests)
    assert await agent.archive_all() == 1
    [archived] = agent.archive.runs_covering(ORDERS, 0, LeaderEpochs(outside.epochs))
    run, raw = archived.run, outside.archive_storage.objects[archived.object_id]
    wanted = records_digest(raw[run.start_file_position : run.end_file_position])
    assert run.sha256 == (wanted if digests else b"")
    agent.task.close()


async def test_a_range_waits_until_it_is_large_or_old_enough() -> None:
    outside = Outside(plain_log(4), ((0, 0),))
    outside.upload(outside.log[:2])
    size = sum(len(raw) for _, _, raw in outside.log)
    agent = Agent(outside, 5, min_bytes=size, max_age_ms=200_000)
    assert await agent.task.run_due() == 0
    outside.now_s += 60
    outside.upload(outside.log[2:])
    assert await agent.task.run_due() == 1
    agent.task.close()

    young = Outside(plain_log(4), ((0, 0),))
    young.upload(young.log[:2])
    agent = Agent(young, 5, min_bytes=size, max_age_ms=200_000)
    for _ in range(3):
        young.now_s += 60
        assert await agent.task.run_due() == 0
    young.now_s += 60
    assert await agent.task.run_due() == 1
    agent.task.close()


async def test_reads_and_writes_stay_below_the_bandwidth() -> None:
    outside = Outside(plain_log(40), ((0, 0),))
    for at in range(0, 40, 4):
        outside.upload(outside.log[at : at + 4])
    size = sum(len(raw) for _, _, raw in outside.log)
    agent = Agent(outside, 5, bytes_per_s=1000, threads=3)
    began_s = outside.now_s
    assert await agent.task.run_due() == 1
    # All is read before anything is written, and the write waits for the last read's tokens; a burst is free.
    assert outside.now_s - began_s >= size / 1000 - 0.25
    assert metric_value(agent.metrics.read_bytes) == size
    agent.task.close()


async def test_a_full_publisher_delays_a_commit_and_loses_none() -> None:
    outside = Outside(plain_log(4), ((0, 0),))
    outside.upload(outside.log)
    agent = Agent(outside, 5)
    publish = agent.publish

    def publish_with_a_full_backlog(record: ArchiveRecord) -> None:
        if record.state is FINISHED and not agent.slept:
            agent.full = 3
        publish(record)

    agent.publish = publish_with_a_full_backlog  # type: ignore[method-assign]
    assert await agent.task.run_due() == 1
    assert agent.slept == [0.5, 0.5, 0.5]
    agent.read_topic()
    assert agent.archive.count_by_state()[FINISHED].segments == 1
    agent.task.close()


async def test_an_object_whose_commit_is_on_its_way_is_never_taken_for_one_given_up() -> None:
    outside = Outside(plain_log(4), ((0, 0),))
    outside.upload(outside.log)
    agent = Agent(outside, 5)
    await agent.task.run_due()
    (key, value), commit = outside.topic[0], outside.topic.pop()  # prepared was read, the commit is late
    assert key == commit[0]
    assert value != commit[1]
    agent.read_topic()
    outside.now_s += 10 * TTL_MS / 1000
    agent.take_care()
    assert len(outside.archive_storage.objects) == 1
    outside.topic.append(commit)
    agent.read_topic()
    agent.take_care()
    assert agent.archive.count_by_state()[FINISHED].segments == 1
    assert agent.task.unsettled == frozenset()
    agent.task.close()


async def test_an_object_is_taken_for_one_given_up_only_while_the_metadata_is_whole() -> None:
    outside = Outside(plain_log(4), ((0, 0),))
    outside.upload(outside.log)
    agent = Agent(outside, 5)
    await agent.task.run_due()
    outside.topic.pop()  # the commit is lost with the topic's end
    agent.read_topic()
    outside.now_s += 10 * TTL_MS / 1000
    for is_read, doubt in ((False, ""), (True, "it began anew"), (True, "")):
        agent.topic_is_read, agent.topic_doubt = is_read, doubt
        agent.care.run_once(outside.wall_ms(), CareDuties({1: agent.incarnation}, ClusterView()))
        agent.read_topic()
        assert len(agent.archive.objects(DELETING)) == (is_read and not doubt)
    agent.task.close()


async def test_orphans_of_both_kinds_are_found_and_healed() -> None:
    outside = Outside(plain_log(8), ((0, 0),))
    outside.upload(outside.log[:4])
    agent = Agent(outside, 5)
    await agent.archive_all()
    (lost,) = outside.archive_storage.objects
    unknown = lost._replace(writer_id=lost.writer_id._replace(sequence=77))
    outside.archive_storage.objects = {unknown: b"x"}
    outside.archive_storage.now_ms = outside.wall_ms()
    outside.wal.apply(RemoteWalNodeRegistration(1, 5, 1, 0))
    found = agent.care.find_orphans(outside.wall_ms(), {1: 5})
    assert [one.kind for one in found.disagreements] == [Kind.LOST]  # the other is too young
    outside.now_s += TTL_MS / 1000
    orphans = agent.care.find_orphans(outside.wall_ms(), {1: 5})
    assert [(one.object_id, one.kind) for one in orphans.heals_by_itself] == [
        (unknown, Kind.UNKNOWN),
        (lost, Kind.LOST),
    ]
    agent.topic_is_read = False
    with pytest.raises(MetadataBehindError):
        agent.care.find_orphans(outside.wall_ms(), {1: 5})
    agent.topic_is_read = True
    assert agent.care.find_orphans(outside.wall_ms(), {2: 5}).disagreements == ()
    agent.care.heal(orphans, outside.wall_ms(), {1: 5})
    agent.read_topic()
    agent.take_care()
    assert outside.archive_storage.objects == {}
    assert agent.archive.count_by_state()[DELETED].segments == 2
    agent.task.close()


async def test_commits_are_published_again_before_the_topic_forgets_them() -> None:
    outside = Outside(plain_log(4), ((0, 0),))
    outside.upload(outside.log)
    await Agent(outside, 5).archive_all()
    again = Agent(outside, 6)
    outside.topic.clear()
    outside.now_s += 3_600
    again.take_care(rounds=1)
    assert len(outside.topic) == 1
    assert Agent(outside, 7).archived_bytes() == b"".join(raw for _, _, raw in outside.log)


@pytest.mark.parametrize("end_offset", [0, 4, 7, 8])
async def test_nothing_at_or_above_the_end_offset_is_archived(end_offset: int) -> None:
    from rlm.archive.archive_plan import LogView

    outside = Outside(plain_log(4), ((0, 0),))
    for n in range(4):
        outside.upload(outside.log[n : n + 1])
    agent = Agent(outside, 5)
    agent.task.assign([(ORDERS, lambda: LogView(0, outside.epochs, end_offset))])
    await agent.archive_all()
    archived = agent.archived_bytes()
    spans = scan_batches(archived, 0, len(archived))
    assert [span.last_offset for span in spans] == [last for last in (1, 3, 5, 7) if last < end_offset]
    agent.task.close()
