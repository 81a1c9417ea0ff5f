"""Which logs a broker gets back, and into which of its directories."""

import errno
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from kafka_cluster.client_config import KafkaClientConfig
from kafka_log.broker_files.meta_properties import read_meta_properties
from kafka_log.record_batch import scan_batches
from kafka_log.topic_partition import TopicId, TopicIdPartition, topic_id_to_text
from metadata_topic.kip405.tiered_offsets import TierFollower
from metadata_topic.records.declared_gaps import DeclaredGap, GapReason
from metadata_topic.settings.topic_settings import AgentRegistration, TopicSettings
from plugin.archive_storage import ArchiveStorage, load_archive_storage
from plugin.durable_files import write_durably
from plugin.format.archive_object import OpenArchiveObject
from plugin.format.archive_object_id import ArchiveObjectId
from plugin.loading import StorageSpec
from plugin.remote_wal_storage_manager import StorageContext
from plugin.segment_metadata import CombinedSegmentId
from plugin.store_loop import ask
from recovery.broker_recovery import (
    LostBroker,
    PlannedLog,
    Selection,
    directory_identities,
    plan_broker,
    recover_broker,
)
from recovery.cluster_view import (
    ClusterView,
    ReplicaSet,
    TopicView,
    ask_cluster,
    read_tier,
    with_directories,
    with_wal_retention,
)
from recovery.errors import TargetRefusedError, UnknownClusterError
from recovery.logs import log_directory_target
from recovery.logs.log_settings import LogSettings, log_settings
from recovery.logs.restore import RestoredLog, RestoreJob, restore_logs
from recovery.logs.run_reader import RunReader
from recovery.metadata.inventory import Inventory, from_objects
from recovery.verification import FindingKind, check_inventory
from tests.metadata_topic.fake_topic import FakeTopic
from tests.metadata_topic.kip405_writer import write
from tests.metadata_topic.test_tiered_offsets import ORDERS as TIERED
from tests.metadata_topic.test_tiered_offsets import copied
from tests.recovery.stored_objects import ObjectsInMemory, records, runs_of

ORDERS = TopicId(b"orders".ljust(16))
IDS = ("first-directory", "second-directory")
NEW_ID = "made-anew"
AGENT = AgentRegistration(1, 1, "", "", 0, wal_retention_ms=5)


def _view(replicas: Mapping[int, ReplicaSet], directories: tuple[str, ...] = ()) -> ClusterView:
    topics = {ORDERS: TopicView("orders", ORDERS, {}, replicas)}
    return ClusterView(topics, {1: directories} if directories else {})


def _broker(*log_dirs: Path, lost: tuple[Path, ...] = ()) -> LostBroker:
    return LostBroker(1, "cluster-1", log_dirs, lost or log_dirs)


def _stored(store: ObjectsInMemory, *sizes: int) -> Inventory:
    """Partition n of orders with so many records."""
    parts = [records(TopicIdPartition(ORDERS, number), 0, 0, size - 1) for number, size in enumerate(sizes)]
    upload = store.upload(1, *parts)
    partitions = [TopicIdPartition(ORDERS, number) for number in range(len(sizes))]
    return Inventory(runs={one: runs_of([upload], one) for one in partitions}, objects=1)


def _recover(broker: LostBroker, view: ClusterView, inventory: Inventory, store: ObjectsInMemory) -> list[PlannedLog]:
    planned = plan_broker(broker, view, inventory, Selection(), now_ms=10**12)
    recover_broker(broker, view, planned, _restoring(RunReader(store)), lambda: NEW_ID)
    return planned


def _restoring(reader: RunReader) -> Callable[[Sequence[RestoreJob]], list[RestoredLog]]:
    return partial(restore_logs, reader=reader, threads=8, wall_ms=lambda: 10**12)


def test_logs_go_where_the_cluster_has_them(tmp_path: Path) -> None:
    store = ObjectsInMemory()
    first, second = tmp_path / "a", tmp_path / "b"
    replicas = {number: ReplicaSet((1,), (1,), 1, 0, (IDS[number % 2],)) for number in range(4)}
    view = _view(replicas)
    broker = LostBroker(
        1, "cluster-1", (first, second), (first, second), {}, dict(zip((first, second), IDS, strict=True))
    )

    _recover(broker, view, _stored(store, 5, 5, 5, 5), store)

    assert {path.name for path in first.glob("orders-*")} == {"orders-0", "orders-2"}
    assert {path.name for path in second.glob("orders-*")} == {"orders-1", "orders-3"}
    assert [read_meta_properties(path).directory_id for path in (first, second)] == list(IDS)


def test_logs_are_spread_by_size_where_nobody_knows_their_places(tmp_path: Path) -> None:
    store = ObjectsInMemory()
    first, second = tmp_path / "a", tmp_path / "b"
    replicas = {number: ReplicaSet((1,), (1,), 1) for number in range(3)}
    broker = LostBroker(
        1, "cluster-1", (first, second), (first, second), {}, dict(zip((first, second), IDS, strict=True))
    )

    _recover(broker, _view(replicas), _stored(store, 100, 40, 50), store)

    assert {frozenset(path.name for path in place.glob("orders-*")) for place in (first, second)} == {
        frozenset({"orders-0"}),
        frozenset({"orders-1", "orders-2"}),
    }


def test_a_disk_that_is_left_keeps_its_logs_and_the_lost_ones_id_is_what_remains(tmp_path: Path) -> None:
    store = ObjectsInMemory()
    left, lost = tmp_path / "left", tmp_path / "lost"
    (left / "orders-0").mkdir(parents=True)
    (left / "orders-0" / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id_to_text(ORDERS)}\n")
    (left / "meta.properties").write_text(f"version=1\ncluster.id=cluster-1\nnode.id=1\ndirectory.id={IDS[1]}\n")
    replicas = {number: ReplicaSet((1,), (1,), 1) for number in range(2)}
    broker = LostBroker(1, "cluster-1", (left, lost), (lost,))

    planned = _recover(broker, _view(replicas, IDS), _stored(store, 5, 5), store)

    assert [log.name for log in planned] == ["orders-1"]
    assert read_meta_properties(lost).directory_id == IDS[0]
    assert sorted(path.name for path in left.iterdir()) == ["meta.properties", "orders-0"]


def test_a_directory_whose_id_nobody_knows_gets_a_new_one(tmp_path: Path) -> None:
    identities = directory_identities(_broker(tmp_path / "a"), _view({}), lambda: NEW_ID)

    assert identities[tmp_path / "a"].directory_id == NEW_ID


def test_when_one_directory_is_refused_none_is_touched(tmp_path: Path) -> None:
    store = ObjectsInMemory()
    first, second = tmp_path / "a", tmp_path / "b"
    (second / "payments-0").mkdir(parents=True)

    with pytest.raises(TargetRefusedError, match="payments-0"):
        _recover(_broker(first, second), _view({0: ReplicaSet((1,), (1,), 1)}), _stored(store, 5), store)
    assert not first.exists()


def test_a_recovery_that_ends_at_any_step_of_publishing_is_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full, or the machine goes down, at one change of the directories after the other."""
    store = ObjectsInMemory()
    replicas = {number: ReplicaSet((1,), (1,), 1) for number in range(4)}
    inventory = _stored(store, 5, 5, 5, 5)
    left = 0

    def failing(change: Callable[..., object]) -> Callable[..., object]:
        def changed(*arguments: object, **options: object) -> object:
            nonlocal left
            left -= 1
            if left < 0:
                raise OSError(errno.ENOSPC, "no space left")
            return change(*arguments, **options)

        return changed

    for steps in count():
        first, second = tmp_path / f"a{steps}", tmp_path / f"b{steps}"
        broker, left = _broker(first, second), steps
        with monkeypatch.context() as patched, suppress(OSError):
            for method in ("rename", "unlink", "rmdir"):
                patched.setattr(Path, method, failing(getattr(Path, method)))
            patched.setattr(log_directory_target, "write_durably", failing(write_durably))
            patched.setattr(shutil, "rmtree", failing(shutil.rmtree))
            _recover(broker, _view(replicas), inventory, store)
            assert steps > 10
            break

        _recover(broker, _view(replicas), inventory, store)

        made = [path.name for place in (first, second) for path in place.glob("orders-*")]
        assert sorted(made) == [f"orders-{number}" for number in range(4)]
        names = {path.name for place in (first, second) for path in place.iterdir() if path.name not in made}
        assert names == {".lock", "meta.properties", "log-start-offset-checkpoint"}


def test_what_the_broker_does_not_have_is_not_restored() -> None:
    view = _view({0: ReplicaSet((1, 2), (2,), 2), 1: ReplicaSet((2, 3), (2,), 2)})
    inventory = _stored(ObjectsInMemory(), 5, 5)

    assert [log.name for log in plan_broker(_broker(), view, inventory, Selection(), 0)] == ["orders-0"]
    with pytest.raises(UnknownClusterError, match="no such partition"):
        plan_broker(_broker(), view, inventory, Selection(frozenset({"payments"})), 0)


def test_a_log_whose_first_records_only_the_others_hold_is_left_to_them(tmp_path: Path) -> None:
    """A replica that began later, and led, would have Kafka delete what the others hold before."""
    store = ObjectsInMemory()
    replicas = {
        0: ReplicaSet((2, 1), (2,), 2, log_start=0),
        1: ReplicaSet((2, 1), (2,), 2, log_start=10),
        2: ReplicaSet((2, 1), (), -1),
        3: ReplicaSet((1,), (1,), 1, log_start=0),
    }
    partitions = [TopicIdPartition(ORDERS, number) for number in replicas]
    uploads = [store.upload(1, *(records(one, 0, 10, 14) for one in partitions))]
    inventory = Inventory(runs={one: runs_of(uploads, one) for one in partitions}, objects=1)

    planned = _recover(_broker(tmp_path / "log"), _view(replicas), inventory, store)

    left = [log.name for log in planned if log.is_left_to_others(log.plan)]
    assert left == ["orders-0"]
    assert [finding.subject for finding in check_inventory(inventory, planned)] == left
    made = {path.name for path in (tmp_path / "log").glob("orders-*")}
    assert made == {"orders-1", "orders-2", "orders-3"}, "where nobody holds more, all is restored that there is"


@pytest.mark.parametrize(
    ("reason", "leader", "newest_epoch", "is_left"),
    [
        (GapReason.NOT_WANTED, 2, 0, True),
        (GapReason.NOT_WANTED, None, 0, False),
        pytest.param(GapReason.UNREADABLE, 2, 0, False, id="the leader itself cannot read it"),
        pytest.param(GapReason.UNREADABLE, 2, 1, True, id="another leader may have it"),
        pytest.param(GapReason.UNREADABLE, 2, 2, False, id="nor can the next leader read it"),
        (GapReason.UNREADABLE, None, 1, False),
        (GapReason.RETENTION, 2, 0, False),
    ],
)
def test_a_log_without_what_nobody_wanted_stored_is_left_to_those_who_have_it(
    tmp_path: Path, reason: GapReason, leader: int | None, newest_epoch: int, is_left: bool
) -> None:
    store = ObjectsInMemory()
    partition = TopicIdPartition(ORDERS, 0)
    parts = [(0, 0), (newest_epoch, 10)]
    uploads = [store.upload(first, records(partition, epoch, first, first + 4)) for epoch, first in parts]
    gaps = [DeclaredGap(partition, 5, 10, epoch, reason) for epoch in {0, 2 * (newest_epoch // 2)}]
    inventory = Inventory(runs={partition: runs_of(uploads, partition)}, declared_gaps={partition: gaps})
    replicas = ReplicaSet((2, 1), (2,), leader or -1, log_start=None if leader is None else 0)

    view = ClusterView({ORDERS: TopicView("orders", ORDERS, {"retention.ms": "-1"}, {0: replicas})})

    [planned] = _recover(_broker(tmp_path / "log"), view, inventory, store)

    assert (planned.plan.start_offset, planned.plan.end_offset) == (0, 15)
    assert planned.is_left_to_others(planned.plan) == is_left
    kinds = {finding.kind for finding in check_inventory(inventory, [planned])}
    assert (FindingKind.ON_BROKERS_ALONE in kinds) == is_left
    assert (tmp_path / "log" / "orders-0").exists() != is_left


def test_a_log_is_restored_without_its_first_records_where_that_is_wanted(tmp_path: Path) -> None:
    store = ObjectsInMemory()
    partition = TopicIdPartition(ORDERS, 0)
    inventory = Inventory(runs={partition: runs_of([store.upload(1, records(partition, 0, 10, 14))], partition)})
    view = _view({0: ReplicaSet((2, 1), (2,), 2, log_start=0)})

    [planned] = plan_broker(_broker(tmp_path), view, inventory, Selection(may_have_less=True), now_ms=0)

    assert (planned.plan.start_offset, planned.is_left_to_others(planned.plan)) == (10, False)


@pytest.mark.parametrize(
    ("log_start", "expected"), [(0, [FindingKind.ON_BROKERS_ALONE]), (None, [FindingKind.GAP])], ids=["leader", "none"]
)
def test_a_log_with_a_lost_head_is_left_to_a_leader_that_has_it(
    tmp_path: Path, log_start: int | None, expected: list[FindingKind]
) -> None:
    store = ObjectsInMemory()
    partition = TopicIdPartition(ORDERS, 0)
    uploads = [store.upload(number, records(partition, 0, 5 * number, 5 * number + 4)) for number in range(2)]
    lost, found = runs_of(uploads, partition)
    inventory = Inventory(runs={partition: [found]}, lost={partition: [lost]})
    view = ClusterView(
        {
            ORDERS: TopicView(
                "orders", ORDERS, {"retention.ms": "-1"}, {0: ReplicaSet((2, 1), (2,), 2, log_start=log_start)}
            )
        }
    )

    planned = _recover(_broker(tmp_path / "log"), view, inventory, store)

    assert (tmp_path / "log" / "orders-0").exists() == (log_start is None)
    assert [finding.kind for finding in check_inventory(inventory, planned)] == expected


def test_a_head_that_expired_while_it_was_read_leaves_the_log_to_those_who_hold_it(tmp_path: Path) -> None:
    store = ObjectsInMemory()
    partition = TopicIdPartition(ORDERS, 0)
    uploads = [store.upload(number, records(partition, 0, 5 * number, 5 * number + 4)) for number in range(2)]
    inventory = Inventory(runs={partition: runs_of(uploads, partition)})
    view = _view({0: ReplicaSet((2, 1), (2,), 2, log_start=0)})
    view = with_wal_retention(view, {"orders": TopicSettings(enable=True)}, [])
    broker = _broker(tmp_path / "log")
    [planned] = plan_broker(broker, view, inventory, Selection(), now_ms=0)
    assert not planned.is_left_to_others(planned.plan)

    store.objects.pop(CombinedSegmentId(1, 1, 0))
    [restored] = recover_broker(broker, view, [planned], _restoring(RunReader(store)), lambda: NEW_ID)

    assert planned.is_left_to_others(restored.job.plan)
    assert not list((tmp_path / "log").glob("orders-*"))
    assert read_meta_properties(tmp_path / "log").directory_id == NEW_ID, "the broker may be started on what there is"


@pytest.mark.parametrize(
    ("config", "agents", "stored_ms"),
    [
        ({"retention.ms": "604800000"}, [AGENT], 5),
        ({"retention.ms": "604800000"}, [AGENT, replace(AGENT, wal_retention_ms=7)], 7),
        ({"retention.ms": "604800000"}, [AGENT, replace(AGENT, wal_retention_ms=None)], None),
        ({"retention.ms": "604800000", "cleanup.policy": "compact"}, [AGENT], 5),
        ({"retention.ms": "-1"}, [replace(AGENT, wal_retention_ms=-2)], None),
        ({}, [AGENT], None),
    ],
)
def test_how_long_records_are_stored_is_what_the_agents_go_by(
    config: dict[str, str | None], agents: list[AgentRegistration], stored_ms: int | None
) -> None:
    view = ClusterView({ORDERS: TopicView("orders", ORDERS, config, {0: ReplicaSet((1, 2, 3), (1,), 1)})})
    view = with_wal_retention(view, {"orders": TopicSettings(enable=True)}, agents)
    assert view.topics[ORDERS].stored_ms == stored_ms


@pytest.mark.parametrize(
    ("retention_ms", "stored_ms", "expected"), [(None, None, None), (100, None, 900), (None, 5, 995), (100, 5, 995)]
)
def test_what_is_older_than_either_retention_is_wanted_no_more(
    retention_ms: int | None, stored_ms: int | None, expected: int | None
) -> None:
    assert LogSettings(retention_ms=retention_ms, stored_ms=stored_ms).horizon_ms(1000) == expected


def test_a_living_clusters_replicas_are_joined_with_the_ids_of_an_older_log() -> None:
    now = _view({0: ReplicaSet((1, 2), (2,), 2), 1: ReplicaSet((1, 3), (3,), 3)})
    older = _view({0: ReplicaSet((1, 2), (1, 2), 1, 4, IDS), 1: ReplicaSet((1, 2), (1, 2), 1, 7, IDS)}, IDS[:1])

    joined = with_directories(now, older)

    assert joined.directory_of(TopicIdPartition(ORDERS, 0), 1) == IDS[0]
    assert joined.directory_of(TopicIdPartition(ORDERS, 1), 1) is None, "its replicas have changed since"
    assert joined.topics[ORDERS].partitions[0].leader == 2
    assert joined.directories == {1: IDS[:1]}


def test_a_log_is_put_together_from_the_archive_and_from_combined_segments(tmp_path: Path) -> None:
    store, archive = ObjectsInMemory(), _archive(tmp_path / "archive")
    partition = TopicIdPartition(ORDERS, 0)
    old, young = records(partition, 0, 0, 9)[3], records(partition, 0, 10, 14)[3]
    object_id = ArchiveObjectId(partition, 0, 9, CombinedSegmentId(2, 1, 1))
    opened = OpenArchiveObject("cluster-1", object_id, 1, 300)
    opened.append(0, 9, memoryview(old), scan_batches(old, 0, len(old)))
    ask(archive.write(object_id, opened.seal()))
    stored = from_objects(store, archive)
    stored.runs[partition] += runs_of([store.upload(7, (partition, 0, 10, young))], partition)
    broker, view = _broker(tmp_path / "log"), _view({0: ReplicaSet((1,), (1,), 1)})

    planned = plan_broker(broker, view, stored, Selection(), now_ms=0)
    recover_broker(broker, view, planned, _restoring(RunReader(store, archive)), lambda: NEW_ID)

    assert (tmp_path / "log" / "orders-0" / f"{0:020}.log").read_bytes() == old + young
    archive.close()


def _archive(directory: Path) -> ArchiveStorage:
    context = StorageContext("cluster-1", 1)
    return load_archive_storage(
        StorageSpec("plugin.local_directory.LocalWalStorageManager", None, {"directory": str(directory)}), context
    )


@pytest.mark.parametrize(
    ("topic", "broker", "expected"),
    [
        ({}, {}, LogSettings()),
        ({"segment.bytes": "9"}, {"log.segment.bytes": "5"}, LogSettings(segment_bytes=9)),
        ({}, {"log.segment.bytes": "5", "log.roll.hours": "2"}, LogSettings(segment_bytes=5, segment_ms=7_200_000)),
        ({"retention.ms": "-1"}, {}, LogSettings(retention_ms=None)),
        ({}, {"log.retention.minutes": "2"}, LogSettings(retention_ms=120_000)),
        ({"cleanup.policy": "compact"}, {}, LogSettings(is_compacted=True, retention_ms=None)),
        ({"cleanup.policy": "compact,delete"}, {}, LogSettings(is_compacted=True)),
        ({"cleanup.policy": ""}, {"log.cleanup.policy": "delete"}, LogSettings(retention_ms=None)),
        ({}, {"log.cleanup.policy": ""}, LogSettings(retention_ms=None)),
    ],
)
def test_a_topics_settings_come_before_the_brokers_and_those_before_kafkas(
    topic: dict[str, str | None], broker: dict[str, str], expected: LogSettings
) -> None:
    assert log_settings(topic, broker) == expected


def test_what_the_tier_holds_is_known_only_by_all_of_its_metadata() -> None:
    client, topic = KafkaClientConfig("nowhere:1"), FakeTopic(partitions=2)
    for record in copied(1, 0, 9, (3, 0)):
        topic.append(None, write(record), partition=1)
    tier = read_tier(client, 10.0, topic.consumer)
    assert tier is not None
    assert tier.epoch_starts(TIERED) == {3: 0}

    assert read_tier(client, 10.0, FakeTopic(partitions=0).consumer) is None, "it is not there"
    topic.append(None, b"of a newer version")
    assert read_tier(client, 10.0, topic.consumer) is None
    topic.ends_are_told = False
    assert read_tier(client, 0.01, topic.consumer) is None, "its end is not reached"


def test_reading_the_tier_goes_on_beyond_its_time_out_while_it_advances(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = FakeTopic()
    for record in copied(1, 0, 9, (3, 0)):
        topic.append(None, write(record))
    time_outs, read, wait = iter((True, True, False)), count(1), TierFollower.wait_until_ready
    monkeypatch.setattr(
        TierFollower, "wait_until_ready", lambda self, _timeout_s: not next(time_outs) and wait(self, 9)
    )
    monkeypatch.setattr(TierFollower, "positions", property(lambda _self: {0: next(read)}))

    tier = read_tier(KafkaClientConfig("nowhere:1"), 0.0, topic.consumer)
    assert tier is not None
    assert tier.epoch_starts(TIERED) == {3: 0}


def test_a_cluster_that_does_not_answer_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recovery.cluster_view._REQUEST_TIMEOUT_S", 0.2)

    with pytest.raises(UnknownClusterError, match="--cluster-metadata"):
        ask_cluster(KafkaClientConfig("127.0.0.1:1", {"log_level": 0}))
