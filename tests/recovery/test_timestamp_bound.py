"""Where a dry run says that a log would end at a point in time, against where a restored one does."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import example, given
from hypothesis import strategies as st

from kafka_log.topic_partition import TopicId, TopicIdPartition
from plugin.format.combined_segment import HEADER_BYTES
from recovery.logs.log_plan import LogRuns, PlanRules
from recovery.logs.log_settings import LogSettings
from recovery.logs.restore import RestoredLog, RestoreJob, restore_logs
from recovery.logs.run_reader import RunReader
from recovery.logs.timestamp_bound import TimestampBound, timestamp_bound, timestamp_bounds
from tests.recovery.stored_objects import ObjectsInMemory, Records, records, runs_of

ORDERS = TopicIdPartition(TopicId(b"orders".ljust(16)), 0)
Times = Sequence[Sequence[int]]
"""Of an object's batches, one for each object."""
times = st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=4), min_size=1, max_size=9)


def _stored(times: Times, overlap: int = 0) -> tuple[ObjectsInMemory, LogRuns]:
    """Objects, each with the last `overlap` batches of the one before it, too; every third in a leader epoch anew."""
    store, uploads = ObjectsInMemory(), []
    offset = 0
    before: list[tuple[int, int]] = []
    for number, stamps in enumerate(times):
        epoch = number // 3
        if number % 3 == 0:
            before = []
        batches = [*before, *((offset + index, stamp) for index, stamp in enumerate(stamps))]
        offset += len(stamps)
        uploads.append(store.upload(number, _run(epoch, batches)))
        before = batches[len(batches) - overlap :] if overlap else []
    return store, LogRuns(runs_of(uploads, ORDERS))


def _run(epoch: int, batches: Sequence[tuple[int, int]]) -> Records:
    parts = [records(ORDERS, epoch, at, at, timestamp_ms=stamp) for at, stamp in batches]
    return ORDERS, epoch, batches[0][0], b"".join(data for _, _, _, data in parts)


def _bound(store: ObjectsInMemory, runs: LogRuns, to_ms: int) -> TimestampBound | None:
    return timestamp_bound(runs.plan(PlanRules()), RunReader(store), to_ms)


def _restored(store: ObjectsInMemory, runs: LogRuns, to_ms: int) -> RestoredLog:
    with TemporaryDirectory() as place:
        job = RestoreJob(ORDERS, "orders-0", Path(place) / "log", runs, runs.plan(PlanRules()), LogSettings())
        [restored] = restore_logs([job], RunReader(store), to_timestamp_ms=to_ms, threads=1)
        return restored


@example(times=[[0], [0], [0], [0, 0, 1], [1]], overlap=2, to_ms=0)
@given(times=times, overlap=st.integers(0, 2), to_ms=st.integers(-1, 41))
def test_where_time_does_not_go_back_it_is_where_the_restored_log_ends(times: Times, overlap: int, to_ms: int) -> None:
    stamps = iter(sorted(stamp for one in times for stamp in one))
    store, runs = _stored([[next(stamps) for _ in one] for one in times], overlap)

    bound, restored = _bound(store, runs, to_ms), _restored(store, runs, to_ms)

    assert (bound is not None) == restored.reached_timestamp
    if bound is not None:
        assert bound.end_offset == restored.end_offset
        assert bound.leader_epochs == restored.leader_epochs
        assert bound.size_bytes >= restored.written_bytes
        assert overlap or bound.size_bytes == restored.written_bytes
        assert overlap or bound.written_ms == restored.written_ms


@given(times=times, to_ms=st.integers(-1, 41))
def test_whatever_the_times_the_restored_log_does_not_end_behind_it(times: Times, to_ms: int) -> None:
    store, runs = _stored(times)

    bound, restored = _bound(store, runs, to_ms), _restored(store, runs, to_ms)

    if bound is not None:
        assert bound.end_offset >= restored.end_offset
        assert restored.reached_timestamp


def test_a_long_log_is_bounded_by_few_reads_of_little() -> None:
    store, runs = _stored([[number] * 3 for number in range(1000)])

    bound = _bound(store, runs, 700)

    assert bound is not None
    assert bound.end_offset == 3 * 701
    assert len(store.fetches) <= 11


def test_an_object_that_is_gone_or_damaged_bounds_nothing_and_the_others_do() -> None:
    store, runs = _stored([[10], [20], [30], [40]])
    store.remove(2)
    store.damage(3, position=HEADER_BYTES + 16)

    assert _bound(store, runs, 25) is None, "nobody can read a younger record"
    bound = _bound(store, runs, 15)
    assert bound is not None
    assert (bound.end_offset, bound.written_ms) == (1, 0)


def test_each_log_has_its_own_bound() -> None:
    store, runs = _stored([[10], [20]])
    plans = [runs.plan(PlanRules()), LogRuns([]).plan(PlanRules())]
    bounds = timestamp_bounds(plans, RunReader(store), 10, threads=2)
    assert [bound.end_offset if bound else None for bound in bounds] == [1, None]
