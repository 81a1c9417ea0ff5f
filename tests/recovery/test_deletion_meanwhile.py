"""Objects that expire, and are deleted, while a recovery reads: the log is right, and what is missing is told."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_log.segment_files import list_segments, log_file_name
from metadata_topic.records.records import PublishedSegment
from metadata_topic.records.states import DELETING
from metadata_topic.store.archive.archive_store import ArchiveStore
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.remote_wal_storage_manager import RemoteWalStorageManager
from plugin.segment_metadata import CombinedSegmentId, RemoteWalCombinedLogSegmentMetadata
from recovery.broker_recovery import LostBroker, PlannedLog, Selection, plan_broker, recover_broker
from recovery.cluster_view import ClusterView, ReplicaSet, TopicView
from recovery.logs.log_plan import LogRuns, PlanRules
from recovery.logs.log_settings import LogSettings
from recovery.logs.restore import GoneHead, RestoredLog, RestoreJob, restore_logs
from recovery.logs.run_reader import RunReader
from recovery.logs.stored_run import StoredObject
from recovery.metadata.footers import UnreadableObject
from recovery.metadata.inventory import Inventory, from_metadata, look_until_steady
from rlm.lifecycle.expiration import deletion_record
from rlm.lifecycle.release import NEVER
from rlm.lifecycle.release import ClusterView as ClusterOfAgent
from tests.kafka_log.batches import batches
from tests.recovery.stored_logs import ORDERS
from tests.recovery.stored_objects import ObjectsInMemory, records, runs_of
from tests.rlm.lifecycle_world import BROKER, GRACE_MS, RETENTION_MS, TOPIC, AgentOfWorld, World

UPLOADS = 4
APART_MS = 30_000
IN_AN_UPLOAD = 10
"""Records."""


class ReaderInTheMidst(RunReader):
    """Has something happen before the request of this number."""

    def __init__(self, storage: RemoteWalStorageManager, before: int, happens: Callable[[], object]) -> None:
        super().__init__(storage)
        self._left = before
        self._happens = happens

    def _fetch(self, *arguments: Any) -> bytes:
        self._left -= 1
        if self._left < 0:
            self._left = 2**63
            self._happens()
        return super()._fetch(*arguments)


class Recovery:
    """Of a broker with one log, whose objects a living agent cares for."""

    def __init__(self, log_dir: Path) -> None:
        self.world = World()
        self.agent = AgentOfWorld(self.world)
        self._log_dir = log_dir
        topic = TopicView(
            "orders", TOPIC, {"retention.ms": str(RETENTION_MS)}, {0: ReplicaSet((BROKER,), (BROKER,), BROKER, 0)}
        )
        self._view = ClusterView({TOPIC: topic})
        self._broker = LostBroker(BROKER, "cluster-1", (log_dir,), (log_dir,))

    async def upload(self) -> None:
        """Objects of different age, none of them expired."""
        for number in range(UPLOADS):
            await self.agent.upload(number * IN_AN_UPLOAD)
            self.world.now_ms += APART_MS if number < UPLOADS - 1 else 0

    def plan(self) -> list[PlannedLog]:
        store = RemoteWalMetadataStore()
        store.apply_all(
            (PublishedSegment.of(one) if isinstance(one, RemoteWalCombinedLogSegmentMetadata) else one, (0, number))
            for number, one in enumerate(self.world.topic)
        )
        inventory = from_metadata(store, ArchiveStore(), self.world.storage, None, is_recovery=True)
        return plan_broker(self._broker, self._view, inventory, Selection(), self.world.now_ms)

    async def restore(self, planned: list[PlannedLog], reader: RunReader) -> RestoredLog:
        def recover() -> RestoredLog:
            restore = partial(restore_logs, reader=reader, threads=1, wall_ms=lambda: self.world.now_ms)
            [restored] = recover_broker(self._broker, self._view, planned, restore, lambda: "made-anew")
            return restored

        return await asyncio.to_thread(recover)

    def assert_log_is(self, first_upload: int, end_upload: int = UPLOADS) -> None:
        """Byte for byte these uploads, and the log begins where the first of them does."""
        directory = self._log_dir / "orders-0"
        restored = b"".join((directory / log_file_name(base)).read_bytes() for base in list_segments(directory))
        uploaded = (batches(2, number * IN_AN_UPLOAD, 5, 0) for number in range(first_upload, end_upload))
        assert restored == b"".join(uploaded)
        assert list_segments(directory)[0] == first_upload * IN_AN_UPLOAD
        checkpoint = (self._log_dir / "log-start-offset-checkpoint").read_text("ascii").split()
        assert checkpoint[2:] == ["orders", "0", str(first_upload * IN_AN_UPLOAD)]


async def test_what_expires_after_the_plan_is_there_for_the_grace_time(tmp_path: Path) -> None:
    recovery = Recovery(tmp_path)
    await recovery.upload()
    planned = recovery.plan()
    await recovery.agent.live_for(RETENTION_MS - (UPLOADS - 1) * APART_MS + GRACE_MS - 20_000, step_ms=10_000)
    assert recovery.agent.unlinked, "deletions have begun"

    restored = await recovery.restore(planned, RunReader(recovery.world.storage))

    assert (restored.end_offset, restored.gap, restored.gone_head) == (40, None, None)
    recovery.assert_log_is(0)
    recovery.agent.close()


async def test_a_log_whose_first_objects_expired_after_the_plan_begins_behind_them(tmp_path: Path) -> None:
    recovery = Recovery(tmp_path)
    await recovery.upload()
    planned = recovery.plan()
    await recovery.agent.live_for(RETENTION_MS - 2 * APART_MS + GRACE_MS, step_ms=10_000)
    assert len(recovery.world.storage.objects) == UPLOADS - 2

    restored = await recovery.restore(planned, RunReader(recovery.world.storage))

    assert (restored.end_offset, restored.gap) == (40, None)
    assert restored.gone_head == GoneHead(0, 20, is_expired=True)
    recovery.assert_log_is(2)
    recovery.agent.close()


async def test_records_whose_deletion_is_held_back_are_restored(tmp_path: Path) -> None:
    """The daily report takes objects for expired, and their agent, which knows better, keeps them."""
    recovery = Recovery(tmp_path)
    await recovery.upload()
    for segment in list(recovery.agent.store.published_segments())[1:]:
        recovery.agent.publisher.publish(deletion_record(segment, DELETING, recovery.world.now_ms))
    recovery.agent.planner.cluster_seen(ClusterOfAgent(frozenset({TOPIC}), retention_ms={TOPIC: NEVER}))
    await recovery.agent.live_for(2 * GRACE_MS)
    assert len(recovery.world.storage.objects) == UPLOADS

    restored = await recovery.restore(recovery.plan(), RunReader(recovery.world.storage))

    assert (restored.end_offset, restored.gap, restored.gone_head) == (40, None, None)
    recovery.assert_log_is(0)
    recovery.agent.close()


async def test_what_was_being_deleted_at_the_plan_and_is_gone_is_not_missed(tmp_path: Path) -> None:
    recovery = Recovery(tmp_path)
    await recovery.upload()
    [first, *_] = recovery.agent.store.published_segments()
    recovery.agent.publisher.publish(deletion_record(first, DELETING, recovery.world.now_ms))
    planned = recovery.plan()
    recovery.world.storage.objects.pop(first.combined_segment_id)

    restored = await recovery.restore(planned, RunReader(recovery.world.storage))

    assert (restored.end_offset, restored.gap) == (40, None)
    assert restored.gone_head == GoneHead(0, 10, is_expired=True)
    recovery.assert_log_is(1)
    recovery.agent.close()


@given(
    gone=st.sets(st.integers(0, 7)),
    before=st.integers(0, 8),
    horizon=st.integers(0, 8),
    copies=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 70)), max_size=3),
)
def test_whatever_goes_meanwhile_no_log_has_a_hole_or_ends_without_saying_so(
    gone: set[int], before: int, horizon: int, copies: list[tuple[int, int]]
) -> None:
    store = ObjectsInMemory()
    uploads = [store.upload(number, records(ORDERS, 0, 10 * number, 10 * number + 9)) for number in range(8)]
    uploads += [
        store.upload(written, records(ORDERS, 0, at, at + 9), broker_id=number)
        for number, (written, at) in enumerate(copies, 2)
    ]
    runs = LogRuns(runs_of(uploads, ORDERS))

    def delete() -> None:
        for number in gone:
            store.objects.pop(CombinedSegmentId(1, 1, number))

    with TemporaryDirectory() as place:
        directory = Path(place) / "log"
        rules = PlanRules(retention_horizon_ms=0)
        job = RestoreJob(ORDERS, "orders-0", directory, runs, runs.plan(rules), LogSettings(retention_ms=1), rules)
        reader = ReaderInTheMidst(store, before, delete)
        [restored] = restore_logs([job], reader, threads=1, wall_ms=lambda: horizon + 1)

        found = b"".join((directory / log_file_name(base)).read_bytes() for base in list_segments(directory))
    start, end = restored.job.plan.start_offset, restored.end_offset
    assert found == records(ORDERS, 0, start, end - 1)[3]
    assert (restored.gone_head is None) == (start == 0)
    assert (restored.gap is None) == (end == 80)
    if restored.gone_head is not None:
        assert (restored.gone_head.from_offset, restored.gone_head.to_offset) == (0, start)
        if restored.gone_head.is_expired:
            assert all(number < horizon for number in range(start // 10) if number in gone)
    if restored.gap is not None:
        assert restored.gap.from_offset == end < restored.gap.to_offset


@pytest.mark.parametrize(
    ("looks", "told"),
    [
        ([[]], []),
        ([[1], []], []),  # deleted between the metadata and the listing
        ([[1, 2], [2, 3], [2, 4]], [2]),  # agents go on deleting, and one is lost
        ([[1], [1]], [1]),
    ],
)
def test_what_agents_delete_while_the_inventory_is_taken_is_not_lost(looks: list[list[int]], told: list[int]) -> None:
    found = iter(looks)

    def look() -> Inventory:
        lost = [StoredObject(CombinedSegmentId(1, 1, sequence), 10, 0) for sequence in next(found)]
        return Inventory(lost_objects=lost)

    inventory = look_until_steady(look)
    assert [one.object_id for one in inventory.lost_objects] == [CombinedSegmentId(1, 1, one) for one in told]
    assert not list(found)


@pytest.mark.parametrize(
    ("looks", "told"),
    [
        ([["gone"], []], []),  # an upload without an end, deleted between the listing and the read of its footer
        ([["a", "b"], ["b", "c"], ["b"]], ["b"]),
        ([["damaged"]], ["damaged"]),
        ([["damaged", "gone"], ["damaged"]], ["damaged"]),
    ],
)
def test_what_is_deleted_before_its_footer_is_read_is_not_unreadable(looks: list[list[str]], told: list[str]) -> None:
    found = iter(looks)

    def look() -> Inventory:
        return Inventory(unreadable=[UnreadableObject(key, "", is_gone=key != "damaged") for key in next(found)])

    assert [one.key for one in look_until_steady(look).unreadable] == told
    assert not list(found)
