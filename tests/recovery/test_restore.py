"""Logs out of objects: byte for byte, from other copies where one fails, to the first gap, on after an interruption."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kafka_log.batch_digests import records_digest
from kafka_log.broker_files.leader_epoch_checkpoint import read_leader_epochs
from kafka_log.broker_files.partition_metadata import read_partition_metadata
from kafka_log.segment_files import list_segments, log_file_name
from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.records.declared_gaps import DeclaredGap, GapReason
from metadata_topic.store.released_offsets import ReleasedUpTo
from plugin.errors import RemoteStorageRefusedError, RemoteStorageThrottledError, RemoteStorageTimeoutError
from plugin.segment_metadata import CombinedSegmentId
from recovery.logs.log_plan import Gap, LogRuns, PlanRules
from recovery.logs.log_settings import LogSettings
from recovery.logs.object_reads import order_reads
from recovery.logs.restore import RestoredLog, RestoreJob, restore_logs
from recovery.logs.run_reader import RunReader
from recovery.patience import Patience
from tests.kafka_log.batches import batch
from tests.recovery.stored_objects import MARK, ObjectsInMemory, Records, records, runs_of

ORDERS = TopicIdPartition(TopicId(b"orders".ljust(16)), 0)
PAYMENTS = TopicIdPartition(TopicId(b"payments".ljust(16)), 3)
BATCH_BYTES = len(records(ORDERS, 0, 0, 0)[3])


def _job(place: Path, runs: LogRuns, partition: TopicIdPartition = ORDERS, segment_bytes: int = 10**9) -> RestoreJob:
    name = "orders-0" if partition is ORDERS else "payments-3"
    plan = runs.plan(PlanRules())
    return RestoreJob(partition, name, place / name, runs, plan, LogSettings(segment_bytes=segment_bytes))


def _restore(job: RestoreJob, store: ObjectsInMemory, to_timestamp_ms: int | None = None) -> RestoredLog:
    [restored] = restore_logs([job], RunReader(store), to_timestamp_ms=to_timestamp_ms, threads=2)
    return restored


def _bytes(directory: Path) -> bytes:
    return b"".join((directory / log_file_name(base)).read_bytes() for base in list_segments(directory))


def _whole(*parts: Records) -> bytes:
    return b"".join(data for _, _, _, data in parts)


def test_logs_that_share_objects_are_restored_byte_for_byte(tmp_path: Path) -> None:
    store = ObjectsInMemory()
    orders = [records(ORDERS, 0, 0, 9), records(ORDERS, 0, 10, 14), records(ORDERS, 2, 15, 20)]
    payments = [records(PAYMENTS, 1, 0, 3), records(PAYMENTS, 1, 4, 4), records(PAYMENTS, 1, 5, 8)]
    uploads = [store.upload(number, *pair) for number, pair in enumerate(zip(orders, payments, strict=True))]
    jobs = [_job(tmp_path, LogRuns(runs_of(uploads, one)), one) for one in (ORDERS, PAYMENTS)]

    restored = restore_logs(jobs, RunReader(store), threads=2)

    assert _bytes(tmp_path / "orders-0") == _whole(*orders)
    assert _bytes(tmp_path / "payments-3") == _whole(*payments)
    assert read_leader_epochs(tmp_path / "orders-0").entries == ((0, 0), (2, 15))
    assert read_partition_metadata(tmp_path / "payments-3") == PAYMENTS.topic_id
    assert [(log.end_offset, log.gap) for log in restored] == [(21, None), (9, None)]
    assert len(store.fetches) == 3, "one request for each object, not for each log"


def test_segments_roll_before_they_exceed_segment_bytes(tmp_path: Path) -> None:
    store = ObjectsInMemory()
    runs = LogRuns(
        runs_of([store.upload(1, records(ORDERS, 0, 0, 6)), store.upload(2, records(ORDERS, 0, 7, 9))], ORDERS)
    )

    _restore(_job(tmp_path, runs, segment_bytes=3 * BATCH_BYTES + 1), store)

    assert list_segments(tmp_path / "orders-0") == [0, 3, 6, 9]
    sizes = [(tmp_path / "orders-0" / log_file_name(base)).stat().st_size for base in (0, 3, 6, 9)]
    assert sizes == [3 * BATCH_BYTES, 3 * BATCH_BYTES, 3 * BATCH_BYTES, BATCH_BYTES]


def test_segments_roll_by_the_records_time(tmp_path: Path) -> None:
    store = ObjectsInMemory()
    uploads = [store.upload(day, records(ORDERS, 0, 2 * day, 2 * day + 1, timestamp_ms=day * 1000)) for day in range(3)]
    runs = LogRuns(runs_of(uploads, ORDERS))
    job = RestoreJob(
        ORDERS, "orders-0", tmp_path / "orders-0", runs, runs.plan(PlanRules()), LogSettings(segment_ms=1500)
    )

    _restore(job, store)

    assert list_segments(tmp_path / "orders-0") == [0, 4]


def test_another_copy_is_taken_where_one_is_damaged_or_gone(tmp_path: Path) -> None:
    store = ObjectsInMemory()
    uploads = [
        store.upload(1, records(ORDERS, 0, 0, 9)),
        store.upload(2, records(ORDERS, 0, 0, 4)),
        store.upload(3, records(ORDERS, 0, 5, 7)),
        store.upload(4, records(ORDERS, 0, 3, 12)),
    ]
    job = _job(tmp_path, LogRuns(runs_of(uploads, ORDERS)))
    store.damage(1)

    restored = _restore(job, store)

    assert _bytes(job.directory) == _whole(records(ORDERS, 0, 0, 12))
    assert restored.gap is None
    assert len(restored.failed_copies) == 1


def test_another_copy_is_taken_where_one_is_forged(tmp_path: Path) -> None:
    store = ObjectsInMemory()
    part = records(ORDERS, 0, 0, 9)
    uploads = [store.upload(1, part), store.upload(2, part)]
    job = _job(tmp_path, LogRuns(runs_of(uploads, ORDERS, records_digest(part[3]))))
    store.forge(1)

    restored = _restore(job, store)

    assert _bytes(job.directory) == part[3]
    assert restored.gap is None
    assert len(restored.failed_copies) == 1


@pytest.mark.parametrize("is_released", [True, False])
def test_a_log_begins_behind_what_cannot_be_read_if_that_was_released(tmp_path: Path, *, is_released: bool) -> None:
    """Of epoch 0 offset 0 alone was the log's. What of epoch 1 stood behind it went with its object, and the leader,
    whose log begins at 4, could say no more than that epoch 0 ends before."""
    store = ObjectsInMemory()
    overwritten = batch(0, 1, 0, MARK) + batch(1, 4, 0, MARK)
    uploads = [store.upload(1, (ORDERS, 0, 0, overwritten)), store.upload(2, records(ORDERS, 1, 4, 9))]
    [old, new] = runs_of(uploads, ORDERS)
    runs = LogRuns([old._replace(living_last_offset=3), new])
    rules = PlanRules(released=(ReleasedUpTo(ORDERS, 1, 4),) if is_released else ())
    job = RestoreJob(ORDERS, "orders-0", tmp_path / "orders-0", runs, runs.plan(rules), LogSettings(), rules)

    restored = _restore(job, store)

    found = (restored.end_offset, restored.gap, restored.gone_head, _bytes(job.directory))
    if is_released:
        assert found == (10, None, None, _whole(records(ORDERS, 1, 4, 9)))
        assert list_segments(job.directory) == [4]
    else:
        assert found == (1, Gap(1, 4), None, batch(0, 1, 0, MARK))


@pytest.mark.parametrize("is_compacted", [True, False])
def test_a_batch_is_cut_off_whole_where_a_newer_epoch_has_some_of_its_offsets(
    tmp_path: Path, *, is_compacted: bool
) -> None:
    """Epoch 1 began at 2. Its record there was compacted away, or is in no object; what stands in its place is not."""
    store = ObjectsInMemory()
    overtaken = batch(0, 2, 0, MARK) + batch(2, 3, 0, MARK)
    uploads = [store.upload(1, (ORDERS, 0, 0, overtaken)), store.upload(2, records(ORDERS, 1, 3, 9))]
    [old, new] = runs_of(uploads, ORDERS)
    runs, rules = LogRuns([old, new]), PlanRules(may_have_holes=is_compacted)
    job = RestoreJob(ORDERS, "orders-0", tmp_path / "orders-0", runs, runs.plan(rules), LogSettings(), rules)

    restored = _restore(job, store)

    kept = batch(0, 2, 0, MARK)
    if is_compacted:
        assert (restored.end_offset, restored.gap) == (10, None)
        assert _bytes(job.directory) == kept + _whole(records(ORDERS, 1, 3, 9))
    else:
        assert (restored.end_offset, restored.gap) == (2, Gap(2, 3))
        assert _bytes(job.directory) == kept


RELEASED = PlanRules(may_have_holes=True, released=(ReleasedUpTo(ORDERS, 0, 20),))
DECLARED = PlanRules(may_have_holes=True, declared_gaps=(DeclaredGap(ORDERS, 5, 21, 0, GapReason.RETENTION),))


@pytest.mark.parametrize("rules", [RELEASED, DECLARED, PlanRules(may_have_holes=True)])
@pytest.mark.parametrize("compacted_to", [20, 24])
def test_a_compacted_log_goes_on_behind_a_damaged_leftover_of_what_was_released_or_declared(
    tmp_path: Path, rules: PlanRules, compacted_to: int
) -> None:
    store = ObjectsInMemory()
    uploads = [store.upload(number, records(ORDERS, 0, 10 * number, 10 * number + 9)) for number in range(2)]
    uploads.append(store.upload(2, records(ORDERS, 0, compacted_to, 29)))
    store.damage(1)
    runs = LogRuns(runs_of(uploads, ORDERS))
    job = RestoreJob(ORDERS, "orders-0", tmp_path / "orders-0", runs, runs.plan(rules), LogSettings(), rules)

    restored = _restore(job, store)

    is_published = bool(rules.released or rules.declared_gaps)
    assert (restored.end_offset, restored.gap) == ((30, None) if is_published else (10, Gap(10, 20)))


@pytest.mark.parametrize("begins_before", [True, False])
def test_a_log_goes_on_behind_what_cannot_be_read_if_that_was_declared(tmp_path: Path, *, begins_before: bool) -> None:
    """Offsets 5 and 6 went from the log before they were stored; what is stored in their place was overwritten."""
    store = ObjectsInMemory()
    uploads = [
        *([store.upload(1, records(ORDERS, 0, 0, 4))] if begins_before else []),
        store.upload(2, (ORDERS, 0, 5, batch(5, 4, 0, MARK))),
        store.upload(3, records(ORDERS, 1, 7, 9)),
    ]
    *before, overwritten, new = runs_of(uploads, ORDERS)
    runs = LogRuns([*before, overwritten._replace(living_last_offset=6), new])
    rules = PlanRules(declared_gaps=(DeclaredGap(ORDERS, 5, 7, 1, GapReason.RETENTION),))
    job = RestoreJob(ORDERS, "orders-0", tmp_path / "orders-0", runs, runs.plan(rules), LogSettings(), rules)

    restored = _restore(job, store)

    wanted = ([records(ORDERS, 0, 0, 4)] if begins_before else []) + [records(ORDERS, 1, 7, 9)]
    assert _bytes(job.directory) == _whole(*wanted)
    assert (restored.end_offset, restored.gap, restored.gone_head) == (10, None, None)
    assert restored.declared_gaps == ((Gap(5, 7),) if begins_before else ())


def test_a_point_in_time_ends_the_log_before_the_first_younger_record(tmp_path: Path) -> None:
    store = ObjectsInMemory()
    uploads = [
        store.upload(number, records(ORDERS, number, 5 * number, 5 * number + 4, timestamp_ms=1000 * number))
        for number in range(4)
    ]
    job = _job(tmp_path, LogRuns(runs_of(uploads, ORDERS)))

    restored = _restore(job, store, to_timestamp_ms=1999)

    assert (restored.end_offset, restored.reached_timestamp, restored.gap) == (10, True, None)
    assert read_leader_epochs(job.directory).entries == ((0, 0), (1, 5))
    assert restored.written_ms == 1


def test_an_interrupted_restore_goes_on_behind_the_last_whole_segment(tmp_path: Path) -> None:
    store = ObjectsInMemory()
    parts = [records(ORDERS, 0, 5 * number, 5 * number + 4) for number in range(6)]
    runs = LogRuns(runs_of([store.upload(number, part) for number, part in enumerate(parts)], ORDERS))
    job = _job(tmp_path, runs, segment_bytes=4 * BATCH_BYTES)
    _interrupt(job, store, after_reads=3)
    begun = list_segments(job.directory)
    assert 1 < len(begun) < 8
    store.fetches.clear()

    restored = _restore(job, store)

    assert _bytes(job.directory) == _whole(*parts)
    assert restored.resumed_bytes > 0
    assert 0 < len(store.fetches) < 6, "what stood on the disk was not read again"
    assert sorted(path.name for path in job.directory.iterdir() if path.suffix != ".log") == [
        "leader-epoch-checkpoint",
        "partition.metadata",
    ]


def test_what_an_older_plan_made_is_made_anew(tmp_path: Path) -> None:
    store = ObjectsInMemory()
    parts = [records(ORDERS, 0, 5 * number, 5 * number + 4) for number in range(6)]
    uploads = [store.upload(number, part) for number, part in enumerate(parts)]
    _interrupt(_job(tmp_path, LogRuns(runs_of(uploads, ORDERS)), segment_bytes=4 * BATCH_BYTES), store, after_reads=3)
    uploads.append(store.upload(9, records(ORDERS, 1, 3, 6)))
    job = _job(tmp_path, LogRuns(runs_of(uploads, ORDERS)), segment_bytes=4 * BATCH_BYTES)

    restored = _restore(job, store)

    assert restored.resumed_bytes == 0
    assert _bytes(job.directory) == _whole(records(ORDERS, 0, 0, 2), records(ORDERS, 1, 3, 6))


def test_a_hole_of_an_older_plan_is_filled_where_the_records_can_be_read_again(tmp_path: Path) -> None:
    store = ObjectsInMemory()
    parts = [records(ORDERS, 0, 5 * number, 5 * number + 4) for number in range(6)]
    runs = runs_of([store.upload(number, part) for number, part in enumerate(parts)], ORDERS)
    rules = PlanRules(declared_gaps=(DeclaredGap(ORDERS, 5, 10, 0, GapReason.RETENTION),))

    def job(known: LogRuns) -> RestoreJob:
        settings = LogSettings(segment_bytes=4 * BATCH_BYTES)
        return RestoreJob(ORDERS, "orders-0", tmp_path / "orders-0", known, known.plan(rules), settings, rules)

    without = job(LogRuns([runs[0], *runs[2:]]))
    _interrupt(without, store, after_reads=3)
    assert len(list_segments(without.directory)) > 2, "the hole is behind it"

    restored = _restore(job(LogRuns(runs)), store)

    assert _bytes(tmp_path / "orders-0") == _whole(*parts)
    assert (restored.resumed_bytes, restored.end_offset) == (0, 30)


def test_a_log_of_which_nothing_is_left_becomes_an_empty_segment(tmp_path: Path) -> None:
    store = ObjectsInMemory()
    runs = LogRuns([], lost=runs_of([store.upload(1, records(ORDERS, 0, 0, 9))], ORDERS))
    job = RestoreJob(
        ORDERS, "orders-0", tmp_path / "orders-0", runs, runs.plan(PlanRules(start_offset=0)), LogSettings()
    )

    restored = _restore(job, store)

    assert restored.gap == Gap(0, 10)
    assert list_segments(job.directory) == [0]
    assert read_leader_epochs(job.directory).entries == ()


def test_reads_of_one_log_keep_its_order_whatever_the_clocks_say() -> None:
    store = ObjectsInMemory()
    # The second leader's clock is behind: its object seems older.
    uploads = [store.upload(50, records(ORDERS, 0, 0, 9)), store.upload(20, records(ORDERS, 1, 10, 19), broker_id=2)]
    plan = LogRuns(runs_of(uploads, ORDERS)).plan(PlanRules())
    other = LogRuns(runs_of([store.upload(30, records(PAYMENTS, 0, 0, 9))], PAYMENTS)).plan(PlanRules())

    reads = list(order_reads([plan, other]))

    offsets = [extent.first_offset for read in reads for log, extent in read.extents if log == 0]
    assert offsets == [0, 10]
    assert sum(len(read.extents) for read in reads) == 3


def _interrupt(job: RestoreJob, store: ObjectsInMemory, after_reads: int) -> None:
    """The store fails after some requests, as it would when the network goes."""

    class Failing(RunReader):
        left = after_reads

        def fetch(self, *arguments: Any) -> bytes:
            self.left -= 1
            if self.left < 0:
                raise RemoteStorageTimeoutError("get", "any", "planted")
            return super().fetch(*arguments)

    with pytest.raises(RemoteStorageTimeoutError):
        restore_logs([job], Failing(store), threads=1)


class ThrottlingStore(ObjectsInMemory):
    """Says slow down so many times to each request."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self._times = times
        self._refused: Counter[object] = Counter()

    async def fetch_log_segment(
        self,
        combined_segment_id: CombinedSegmentId,
        start_position: int,
        end_position: int,
        custom_metadata: bytes = b"",
    ) -> bytes:
        self._refused[combined_segment_id] += 1
        if self._refused[combined_segment_id] <= self._times:
            raise RemoteStorageThrottledError("get", str(combined_segment_id), "503 SlowDown")
        return await super().fetch_log_segment(combined_segment_id, start_position, end_position, custom_metadata)


def test_a_store_that_throttles_for_minutes_delays_a_recovery_and_does_not_end_it(tmp_path: Path) -> None:
    store = ThrottlingStore(times=12)
    parts = [records(ORDERS, 0, 0, 9), records(ORDERS, 0, 10, 14)]
    uploads = [store.upload(number, part) for number, part in enumerate(parts)]
    slept: list[float] = []
    told: list[str] = []
    patience = Patience(slept.append, lambda _low, high: high, told.append)
    job = _job(tmp_path, LogRuns(runs_of(uploads, ORDERS)))
    [restored] = restore_logs([job], RunReader(store, None, patience), threads=1)
    assert (restored.end_offset, restored.gap) == (15, None)
    assert _bytes(tmp_path / "orders-0") == _whole(*parts)
    assert slept[:7] == [1, 2, 4, 8, 16, 30, 30]
    assert "503 SlowDown" in told[0]


def test_a_store_that_throttles_for_ever_or_refuses_ends_the_recovery_all_the_same() -> None:
    waits: list[float] = []
    patience = Patience(waits.append, lambda _low, high: high, total_s=100)

    def throttled() -> None:
        raise RemoteStorageThrottledError("get", "key", "503 SlowDown")

    def refused() -> None:
        raise RemoteStorageRefusedError("get", "key", "400")

    with pytest.raises(RemoteStorageThrottledError):
        patience.call(throttled)
    assert 100 <= sum(waits) <= 130
    waits.clear()
    with pytest.raises(RemoteStorageRefusedError):
        patience.call(refused)
    assert waits == []


def test_the_time_that_a_silent_store_takes_for_each_attempt_counts_as_waited() -> None:
    now = [0.0]
    patience = Patience(lambda wait_s: now.append(now[-1] + wait_s), lambda _low, high: high, clock=lambda: now[-1])

    def silent() -> None:
        now.append(now[-1] + 60.0)
        raise RemoteStorageThrottledError("get", "key", "503 SlowDown")

    with pytest.raises(RemoteStorageThrottledError):
        patience.call(silent)
    assert 1800 <= now[-1] <= 1890
