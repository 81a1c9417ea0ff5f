"""Where a restored log begins and ends: as its leaders published last, whatever objects still hold."""

from functools import partial
from pathlib import Path

import pytest

from cli.recovery.recovery_table import planned_row
from kafka_log.broker_files.leader_epoch_checkpoint import read_leader_epochs
from kafka_log.segment_files import list_segments, log_file_name
from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.kip405.tiered_offsets import TieredOffsets
from metadata_topic.records.declared_gaps import DeclaredGap, GapReason
from metadata_topic.store.released_offsets import ReleasedUpTo
from plugin.format.archive_object_id import ArchiveObjectId
from plugin.segment_metadata import CombinedSegmentId
from recovery.broker_recovery import LostBroker, PlannedLog, Selection, plan_broker, plan_with_tier, recover_broker
from recovery.cluster_view import ClusterView, ReplicaSet, TopicView
from recovery.errors import RecoveryError, TargetRefusedError
from recovery.logs.log_plan import EpochStart, Gap, LogRuns, PlanRules
from recovery.logs.restore import restore_logs
from recovery.logs.run_reader import RunReader
from recovery.logs.stored_run import StoredObject, StoredRun
from recovery.metadata.inventory import Inventory
from tests.metadata_topic.test_tiered_offsets import Tier, copied, started
from tests.recovery.stored_logs import run
from tests.recovery.stored_objects import ObjectsInMemory, records, runs_of

ORDERS = TopicIdPartition(TopicId(b"orders".ljust(16)), 0)
ALONE = ReplicaSet((1,), (1,), 1)
NOW_MS = 10**12
DAY_MS = 86_400_000


def told(offset: int, leader_epoch: int = 0) -> ReleasedUpTo:
    return ReleasedUpTo(ORDERS, leader_epoch, offset)


def view_of(replicas: ReplicaSet) -> ClusterView:
    return ClusterView({ORDERS.topic_id: TopicView("orders", ORDERS.topic_id, {}, {0: replicas})})


def planned(place: Path, inventory: Inventory, replicas: ReplicaSet = ALONE) -> PlannedLog:
    broker = LostBroker(1, "c", (place,), (place,))
    [log] = plan_broker(broker, view_of(replicas), inventory, Selection(), NOW_MS)
    return log


def restore(place: Path, log: PlannedLog, store: ObjectsInMemory) -> None:
    restoring = partial(restore_logs, reader=RunReader(store), threads=1, wall_ms=lambda: NOW_MS)
    recover_broker(LostBroker(1, "c", (place,), (place,)), view_of(log.replicas), [log], restoring, lambda: "new")


def test_deleted_records_do_not_come_back(tmp_path: Path) -> None:
    store = ObjectsInMemory()
    uploads = [store.upload(first, records(ORDERS, 0, first, first + 9)) for first in (0, 10, 20)]
    log = planned(tmp_path, Inventory(runs={ORDERS: runs_of(uploads, ORDERS)}, log_starts={ORDERS: [told(13)]}))

    restore(tmp_path, log, store)

    assert (log.plan.start_offset, log.plan.end_offset) == (13, 30)
    assert (tmp_path / "log-start-offset-checkpoint").read_text().splitlines()[-1] == "orders 0 13"
    assert list_segments(tmp_path / "orders-0") == [13]
    assert (tmp_path / "orders-0" / log_file_name(13)).read_bytes() == records(ORDERS, 0, 13, 29)[3]


@pytest.mark.parametrize(
    ("rules", "start"),
    [
        pytest.param(PlanRules(log_starts=(told(5), told(12))), 12, id="the furthest that was told"),
        pytest.param(PlanRules(log_starts=(told(12),), log_start=5), 5, id="but a leader that lives knows better"),
        pytest.param(PlanRules(log_starts=(told(12, 1),)), 12, id="of an epoch that wrote nothing"),
        pytest.param(PlanRules(log_starts=(told(18, 1), told(3))), 3, id="an election has cut that log off"),
        pytest.param(PlanRules(log_starts=(told(18, 2),)), 18, id="of the epoch that goes on"),
        pytest.param(PlanRules(), 0, id="nobody has said"),
    ],
)
def test_a_log_begins_where_its_leaders_said(rules: PlanRules, start: int) -> None:
    plan = LogRuns([run(0, 0, 9, 1), run(0, 10, 19, 2), run(2, 15, 29, 3)]).plan(rules)
    assert (plan.start_offset, plan.end_offset, plan.gap) == (start, 30, None)


def test_where_the_log_began_is_known_no_time_of_upload_says_what_its_retention_took(tmp_path: Path) -> None:
    """Timestamps may be in the future, so that brokers keep what was uploaded long ago."""
    store = ObjectsInMemory()
    uploads = [store.upload(first, records(ORDERS, 0, first, first + 9)) for first in (0, 20)]
    runs = {ORDERS: runs_of(uploads, ORDERS)}
    assert planned(tmp_path, Inventory(runs=runs)).plan.start_offset == 20, "what is before the gap has expired"
    log = planned(tmp_path, Inventory(runs=runs, log_starts={ORDERS: [told(3)]}))
    assert (log.plan.start_offset, log.plan.gap) == (3, Gap(10, 20))
    assert not planned_row(log).is_complete


@pytest.mark.parametrize("newest_ms", [NOW_MS - 8 * DAY_MS, NOW_MS + 1])
def test_where_nobody_says_where_a_log_began_timestamps_in_the_future_keep_it(tmp_path: Path, newest_ms: int) -> None:
    """As the broker keeps the segment of a record that is young, and all that follows."""
    store = ObjectsInMemory()
    spans = [(0, NOW_MS - 8 * DAY_MS), (10, newest_ms), (30, NOW_MS)]  # and 20 to 29 are lost
    uploads = [store.upload(first, records(ORDERS, 0, first, first + 9, timestamp_ms=ms)) for first, ms in spans]
    inventory, broker = Inventory(runs={ORDERS: runs_of(uploads, ORDERS)}), LostBroker(1, "c", (tmp_path,), (tmp_path,))
    newest = RunReader(store).newest_timestamp_ms
    [log] = plan_broker(broker, view_of(ALONE), inventory, Selection(), NOW_MS, newest)
    is_kept = newest_ms > NOW_MS
    assert (log.plan.start_offset, log.plan.gap) == ((0, Gap(20, 30)) if is_kept else (30, None))
    assert planned_row(log).is_complete is not is_kept
    restoring = partial(restore_logs, reader=RunReader(store), threads=1, wall_ms=lambda: NOW_MS)
    [made] = recover_broker(broker, view_of(ALONE), [log], restoring, lambda: "new")
    assert (made.end_offset, made.gap is not None) == ((20, True) if is_kept else (40, False))


@pytest.mark.parametrize(
    ("inventory", "end", "epochs"),
    [
        pytest.param(Inventory(released={ORDERS: [told(30, 1)]}), 30, ((1, 30),), id="all of it has expired"),
        pytest.param(Inventory(log_starts={ORDERS: [told(30, 1)]}), 30, ((1, 30),), id="all of it was deleted"),
        pytest.param(
            Inventory(
                released={ORDERS: [told(20, 0)]},
                declared_gaps={ORDERS: [DeclaredGap(ORDERS, 20, 30, 0, GapReason.NOT_WANTED)]},
            ), 30, ((0, 30),), id="the last of it went inline",
        ),
        pytest.param(
            Inventory(runs={ORDERS: [run(0, 0, 29, 1)]}, log_starts={ORDERS: [told(30)]}), 30, ((0, 30),),
            id="an object still holds it",
        ),
    ],
)  # fmt: skip
def test_a_log_of_which_nothing_is_left_comes_back_empty_at_its_end(
    tmp_path: Path, inventory: Inventory, end: int, epochs: tuple[tuple[int, int], ...]
) -> None:
    log = planned(tmp_path, inventory)
    restore(tmp_path, log, ObjectsInMemory())

    assert (planned_row(log).is_complete, log.plan.start_offset, log.plan.end_offset) == (True, end, end)
    directory = tmp_path / "orders-0"
    assert list_segments(directory) == [end]
    assert (directory / log_file_name(end)).stat().st_size == 0
    assert read_leader_epochs(directory).entries == epochs
    assert (tmp_path / "log-start-offset-checkpoint").read_text().splitlines()[-1] == f"orders 0 {end}"


@pytest.mark.parametrize("log_starts", [[told(0)], []], ids=["its start is known", "nobody says where it begins"])
def test_a_log_whose_first_objects_are_lost_ends_before_them(tmp_path: Path, log_starts: list[ReleasedUpTo]) -> None:
    """A log that began behind them would have the agents release them as deleted records."""
    store = ObjectsInMemory()
    uploads = [store.upload(NOW_MS - 9 + at, records(ORDERS, 0, 50 * at, 50 * at + 49)) for at in range(2)]
    first, second = runs_of(uploads, ORDERS)
    log = planned(tmp_path, Inventory(runs={ORDERS: [second]}, lost={ORDERS: [first]}, log_starts={ORDERS: log_starts}))
    restore(tmp_path, log, store)

    assert (log.plan.start_offset, log.plan.end_offset, log.plan.gap) == (0, 0, Gap(0, 50))
    assert not planned_row(log).is_complete
    assert list_segments(tmp_path / "orders-0") == [0]
    assert (tmp_path / "log-start-offset-checkpoint").read_text().splitlines()[-1] == "orders 0 0"


LOST, READ = run(0, 20, 29, 1, written_ms=100), run(0, 30, 39, 2, written_ms=900)


@pytest.mark.parametrize(
    ("rules", "others", "start"),
    [
        pytest.param(PlanRules(), (), 20, id="wanted"),
        pytest.param(PlanRules(log_start=25), (), 25, id="a part of it was deleted"),
        pytest.param(PlanRules(log_start=30), (), 30, id="it was deleted"),
        pytest.param(PlanRules(retention_horizon_ms=500), (), 30, id="it has expired"),
        pytest.param(PlanRules(released=(told(30),)), (), 30, id="it was released"),
        pytest.param(
            PlanRules(declared_gaps=(DeclaredGap(ORDERS, 20, 30, 0, GapReason.RETENTION),)), (), 30, id="declared"
        ),
        pytest.param(PlanRules(begins_behind_last_gap=True), (), 30, id="it is not asked for"),
        pytest.param(PlanRules(), (run(0, 20, 29, 3, written_ms=900),), 20, id="another copy has it"),
        pytest.param(PlanRules(), (run(1, 20, 39, 4, written_ms=900),), 20, id="a newer leader wrote it anew"),
        pytest.param(
            PlanRules(retention_horizon_ms=500), (run(0, 0, 9, 3, written_ms=90),), 30, id="with all before it expired"
        ),
        pytest.param(PlanRules(retention_horizon_ms=99), (run(0, 0, 9, 3, written_ms=90),), 20, id="behind leftovers"),
    ],
)
def test_a_log_begins_behind_lost_records_only_where_nobody_wants_them(
    rules: PlanRules, others: tuple[StoredRun, ...], start: int
) -> None:
    plan = LogRuns([READ, *others], [LOST]).plan(rules)
    is_lacking = start < 30 and not any(one.first_offset == 20 for one in others)
    assert (plan.start_offset, plan.gap) == (start, Gap(start, 30) if is_lacking else None)


def test_what_is_archived_is_wanted_though_its_combined_segments_were_released() -> None:
    """As where the broker's settings name no archive."""
    archived = LOST._replace(
        stored_in=StoredObject(ArchiveObjectId(ORDERS, 20, 29, CombinedSegmentId(1, 1, 1)), 1, written_ms=100)
    )
    plan = LogRuns([READ], [archived]).plan(PlanRules(retention_horizon_ms=500, released=(told(30),)))
    assert (plan.start_offset, plan.gap) == (20, Gap(20, 30))


def test_a_log_whose_last_objects_are_lost_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    lost = Inventory(lost={ORDERS: [run(0, 20, 29, 1)]}, released={ORDERS: [told(20)]})
    log = planned(tmp_path, lost)
    assert (log.plan.start_offset, log.plan.gap) == (20, Gap(20, 30))


def test_other_replicas_supply_what_has_expired_alone(tmp_path: Path) -> None:
    follower = ReplicaSet((2, 1), (2,), 2, log_start=0)
    log = planned(tmp_path, Inventory(released={ORDERS: [told(30)]}), follower)
    restore(tmp_path, log, ObjectsInMemory())
    assert not (tmp_path / "orders-0").exists()


def test_nothing_is_known_of_a_log_that_was_never_written(tmp_path: Path) -> None:
    log = planned(tmp_path, Inventory())
    assert (log.is_stored, log.plan.leader_epochs) == (False, ())
    assert EpochStart(0, 0) not in log.plan.leader_epochs


def test_leftovers_do_not_stand_for_a_log_of_which_the_rest_was_released() -> None:
    rules = PlanRules(retention_horizon_ms=5, released=(told(30),))
    assert LogRuns([run(0, 0, 9, 1)]).plan(rules).start_offset == 30
    assert LogRuns([run(0, 0, 9, 6)]).plan(rules).end_offset == 10, "it has not expired"


def tiered(place: Path, inventory: Inventory, tier: TieredOffsets | None, *, is_asked_for: bool = False) -> PlannedLog:
    topic = TopicView("orders", ORDERS.topic_id, {"remote.storage.enable": "true", "retention.ms": "-1"}, {0: ALONE})
    view, broker = ClusterView({ORDERS.topic_id: topic}), LostBroker(1, "c", (place,), (place,))
    selection = Selection(may_lack_tier_epochs=is_asked_for)
    [log] = plan_with_tier(plan_broker(broker, view, inventory, selection, NOW_MS), lambda: tier)
    return log


@pytest.mark.parametrize(
    ("log_starts", "start", "epochs"),
    [
        ([told(20, 4)], 20, ((0, 20), (2, 30), (4, 55))),
        ([told(40, 4)], 40, ((2, 40), (4, 55))),
        ([], 10, ((0, 10), (2, 30), (4, 55))),
    ],
)
@pytest.mark.parametrize("is_stored", [True, False])
def test_a_log_with_a_tier_begins_where_the_tier_does(
    tmp_path: Path, log_starts: list[ReleasedUpTo], start: int, epochs: tuple[tuple[int, int], ...], is_stored: bool
) -> None:
    """A leader deletes from the tier what lies below its log's start, or is of epochs older than its first one.

    Epoch 1 was abandoned in an unclean election.
    """
    store = ObjectsInMemory()
    tier = Tier(*copied(1, 10, 39, (0, 10), (2, 30)), *copied(2, 30, 34, (1, 30)), *copied(3, 40, 59, (2, 40), (4, 55)))
    tier.take(started(4, 0, 9, (0, 0)))  # the copy was not finished
    inventory = Inventory(log_starts={ORDERS: log_starts})
    if is_stored:
        inventory.runs[ORDERS] = runs_of([store.upload(60, records(ORDERS, 4, 60, 69))], ORDERS)
    else:
        inventory.released[ORDERS] = [told(60, 4)]
    restore(tmp_path, tiered(tmp_path, inventory, tier), store)
    assert (tmp_path / "log-start-offset-checkpoint").read_text().splitlines()[-1] == f"orders 0 {start}"
    assert list_segments(tmp_path / "orders-0") == [60]
    assert read_leader_epochs(tmp_path / "orders-0").entries == epochs


@pytest.mark.parametrize(
    ("log_starts", "is_refused"), [([told(20, 4)], True), ([], True), ([told(60, 4)], False), ([told(63, 4)], False)]
)
def test_a_log_whose_leader_epochs_on_the_tier_are_unknown_is_not_restored(
    tmp_path: Path, log_starts: list[ReleasedUpTo], is_refused: bool
) -> None:
    store = ObjectsInMemory()
    runs = {ORDERS: runs_of([store.upload(60, records(ORDERS, 4, 60, 69))], ORDERS)}
    log = tiered(tmp_path, Inventory(runs=runs, log_starts={ORDERS: log_starts}), None)
    if is_refused:
        with pytest.raises(TargetRefusedError, match="__remote_log_metadata was not read"):
            restore(tmp_path, log, store)
        assert not list(tmp_path.iterdir())
        log = tiered(tmp_path, Inventory(runs=runs, log_starts={ORDERS: log_starts}), None, is_asked_for=True)
    restore(tmp_path, log, store)
    assert (tmp_path / "orders-0").is_dir()
    row = planned_row(log)
    assert ("leader epochs before 60, on the tier, unknown" in row.told, row.is_complete) == (
        is_refused,
        not is_refused,
    )


def test_the_tiers_metadata_is_read_only_for_a_log_that_needs_its_leader_epochs(tmp_path: Path) -> None:
    store, reads = ObjectsInMemory(), 0
    runs = {ORDERS: runs_of([store.upload(60, records(ORDERS, 4, 60, 69))], ORDERS)}

    def read_tier() -> None:
        nonlocal reads
        reads += 1

    for log_start, expected in ((60, 0), (20, 1)):
        log = tiered(tmp_path, Inventory(runs=runs, log_starts={ORDERS: [told(log_start, 4)]}), None)
        assert plan_with_tier([log], read_tier) == plan_with_tier([log], None) == [log]
        assert reads == expected


def test_a_tiered_log_whose_head_expires_while_it_is_read_is_not_published(tmp_path: Path) -> None:
    """Something was written then, so it is a failure, and not the refusal that writes nothing."""
    store = ObjectsInMemory()
    uploads = [store.upload(first, records(ORDERS, 4, first, first + 9)) for first in (60, 70)]
    log = tiered(tmp_path, Inventory(runs={ORDERS: runs_of(uploads, ORDERS)}, log_starts={ORDERS: [told(60, 4)]}), None)
    store.objects.pop(CombinedSegmentId(1, 1, 60))

    with pytest.raises(RecoveryError, match="run it again") as failed:
        restore(tmp_path, log, store)
    assert not isinstance(failed.value, TargetRefusedError)
    assert not (tmp_path / "orders-0").exists()
