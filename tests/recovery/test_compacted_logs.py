"""A compacted log is restored whole, or not at all: an older value of a key is worse than none."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest

from cli.recovery.recovery_table import planned_row
from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.records.declared_gaps import DeclaredGap, GapReason
from metadata_topic.store.released_offsets import ReleasedUpTo
from plugin.segment_metadata import CombinedSegmentId
from recovery.broker_recovery import LostBroker, PlannedLog, Selection, plan_broker, recover_broker
from recovery.cluster_view import ClusterView, ReplicaSet, TopicView
from recovery.logs.restore import RestoredLog, restore_logs
from recovery.logs.run_reader import RunReader
from recovery.metadata.inventory import Inventory
from recovery.verification import check_inventory
from tests.recovery.stored_objects import ObjectsInMemory, records, runs_of

ORDERS = TopicIdPartition(TopicId(b"orders".ljust(16)), 0)
ALONE = ReplicaSet((1,), (1,), 1)
FOLLOWER = ReplicaSet((2, 1), (2,), 2, log_start=0)
BEHIND_10 = ReplicaSet((2, 1), (2,), 2, log_start=10)
COMPACT = {"cleanup.policy": "compact"}
WITH_DELETE = {"cleanup.policy": "compact,delete"}
NOT_WANTED = DeclaredGap(ORDERS, 10, 20, 0, GapReason.NOT_WANTED)


class World:
    """A broker's log and what is stored of it, by the runs' first offsets, each of ten records."""

    def __init__(
        self, place: Path, replicas: ReplicaSet, config: Mapping[str, str], runs: tuple[int, ...],
        *gaps: DeclaredGap, released: int = 0, stored_ms: int | None = None,
    ) -> None:  # fmt: skip
        self.store = ObjectsInMemory()
        uploads = [self.store.upload(first, records(ORDERS, 0, first, first + 9)) for first in runs]
        self.inventory = Inventory(
            runs={ORDERS: runs_of(uploads, ORDERS)},
            declared_gaps={ORDERS: [gap for gap in gaps if gap.reason.is_hole]},
            before_upload={ORDERS: [gap for gap in gaps if not gap.reason.is_hole]},
            released={ORDERS: [ReleasedUpTo(ORDERS, 0, released)] if released else []},
        )
        topic = TopicView("orders", ORDERS.topic_id, dict(config), {0: replicas}, stored_ms)
        self.view = ClusterView({ORDERS.topic_id: topic})
        self.broker = LostBroker(1, "cluster-1", (place,), (place,))

    def planned(self, *, may_have_less: bool = False) -> PlannedLog:
        selection = Selection(may_have_less=may_have_less)
        [log] = plan_broker(self.broker, self.view, self.inventory, selection, now_ms=10**12)
        return log

    def restored(self, log: PlannedLog) -> list[RestoredLog]:
        restore = partial(restore_logs, reader=RunReader(self.store), threads=2, wall_ms=lambda: 10**12)
        return recover_broker(self.broker, self.view, [log], restore, lambda: "new")


@pytest.mark.parametrize("replicas", [ALONE, FOLLOWER])
@pytest.mark.parametrize(
    ("config", "runs", "gaps", "released", "missing"),
    [
        pytest.param(COMPACT, (0, 20), (NOT_WANTED,), 0, (10, 20), id="never stored, as it went inline"),
        pytest.param(COMPACT, (0, 20), (), 0, (10, 20), id="nobody knows why"),
        pytest.param(COMPACT, (0, 20), (), 20, (10, 20), id="released, behind what shares an object"),
        pytest.param(COMPACT, (10, 20), (), 10, (0, 10), id="released at its start"),
        pytest.param(COMPACT, (10, 20), (), 0, (0, 10), id="its start is not stored"),
        pytest.param(
            COMPACT, (10,), (DeclaredGap(ORDERS, 0, 10, 0, GapReason.BEFORE_UPLOAD),), 0, (0, 10), id="older than us"
        ),
        pytest.param(WITH_DELETE, (0, 20), (NOT_WANTED,), 0, (10, 20), id="deleted by age, too"),
    ],
)
def test_a_compacted_log_that_is_not_whole_is_not_restored_but_named(
    tmp_path: Path, replicas: ReplicaSet, config: Mapping[str, str], runs: tuple[int, ...],
    gaps: tuple[DeclaredGap, ...], released: int, missing: tuple[int, int],
) -> None:  # fmt: skip
    world = World(tmp_path, replicas, config, runs, *gaps, released=released)
    log = world.planned()
    assert world.restored(log) == []
    assert not (tmp_path / "orders-0").exists()

    row = planned_row(log)
    assert (row.missing, row.is_complete, row.size_bytes) == ((missing,), False, 0)
    assert f"{missing[0]} to {missing[1] - 1} not in object storage" in row.told
    [finding] = check_inventory(world.inventory, [log])
    assert (finding.subject, finding.kind.is_error) == ("orders-0", replicas is ALONE)
    assert f"offsets {missing[0]} to {missing[1] - 1}" in finding.detail


@pytest.mark.parametrize(
    ("replicas", "config", "runs", "released", "start"),
    [
        pytest.param(ALONE, COMPACT, (0, 10), 0, 0, id="from its beginning"),
        pytest.param(ALONE, COMPACT, (0, 20), 0, 0, id="but for what the leader's log itself lacked"),
        pytest.param(BEHIND_10, COMPACT, (10, 20), 10, 10, id="as its leader has it"),
        pytest.param(ALONE, WITH_DELETE, (10, 20), 0, 10, id="retention may have taken what is before"),
    ],
)
def test_a_compacted_log_that_is_whole_comes_back(
    tmp_path: Path, replicas: ReplicaSet, config: Mapping[str, str], runs: tuple[int, ...],
    released: int, start: int,
) -> None:  # fmt: skip
    taken = DeclaredGap(ORDERS, 10, 20, 0, GapReason.COMPACTED)
    world = World(tmp_path, replicas, config, runs, taken, released=released)
    [made] = world.restored(world.planned())
    assert (made.job.plan.start_offset, made.end_offset) == (start, runs[-1] + 10)
    assert (tmp_path / "orders-0").is_dir()


def test_a_log_whose_objects_expire_before_it_does_may_lack_its_start(tmp_path: Path) -> None:
    log = World(tmp_path, ALONE, WITH_DELETE, (10,), stored_ms=5).planned()
    assert log.find_missing(log.plan, log.plan.gap) == [(0, 10)]


def test_what_cannot_be_read_leaves_a_compacted_log_unrestored(tmp_path: Path) -> None:
    world = World(tmp_path, ALONE, COMPACT, (0, 10, 20))
    log = world.planned()
    world.store.objects.pop(CombinedSegmentId(1, 1, 10))
    [made] = world.restored(log)
    assert not (tmp_path / "orders-0").exists()
    assert log.find_missing(made.job.plan, made.gap) == [(10, 20)]


def test_a_compacted_log_is_restored_with_less_where_that_is_wanted(tmp_path: Path) -> None:
    world = World(tmp_path, FOLLOWER, COMPACT, (0, 20), NOT_WANTED)
    [made] = world.restored(world.planned(may_have_less=True))
    assert (made.end_offset, (tmp_path / "orders-0").is_dir()) == (30, True)
