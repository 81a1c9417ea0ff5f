"""What verify finds, each fault planted."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from kafka_log.batch_digests import records_digest
from kafka_log.record_batch import scan_batches
from kafka_log.segment_files import log_file_name
from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.records.declared_gaps import DeclaredGap, GapReason
from metadata_topic.records.topic_doubt import TopicDoubt
from metadata_topic.store.archive.archive_store import ArchiveStore
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.format.combined_segment import HEADER_BYTES
from plugin.segment_metadata import CombinedSegmentId
from recovery.broker_recovery import PlannedLog
from recovery.cluster_view import ReplicaSet
from recovery.logs.log_plan import PlanRules
from recovery.logs.log_settings import LogSettings
from recovery.logs.run_reader import RunReader
from recovery.logs.stored_run import StoredObject
from recovery.metadata.footers import UnreadableObject
from recovery.metadata.inventory import Inventory, from_metadata
from recovery.verification import Finding, FindingKind, ObjectVerifier, Verification, check_inventory
from tests.recovery.stored_objects import MARK, ObjectsInMemory, Records, records, runs_of
from tests.rlm.memory_storage import MemoryStorage

ORDERS = TopicIdPartition(TopicId(b"orders".ljust(16)), 0)


def _stored(store: ObjectsInMemory, *parts: Records) -> tuple[PlannedLog, Inventory]:
    uploads = [store.upload(number, part) for number, part in enumerate(parts)]
    inventory = Inventory(runs={ORDERS: runs_of(uploads, ORDERS)}, objects=len(uploads))
    runs = inventory.log_runs(ORDERS)
    replicas = ReplicaSet((1, 2, 3), (1, 2, 3), 1, leader_epoch=3)
    return PlannedLog(ORDERS, "orders", replicas, LogSettings(), runs, runs.plan(PlanRules())), inventory


def _verify(
    log: PlannedLog,
    inventory: Inventory,
    store: ObjectsInMemory,
    *replica_dirs: Path,
    share: float = 1.0,
    later: Inventory | None = None,
) -> Verification:
    """`later` is the inventory as it is taken a second time."""
    verifier = ObjectVerifier([log], inventory, replica_dirs)
    return verifier.verify(RunReader(store), share, random.Random(1), 2, lambda: later or inventory)


def _kinds(findings: list[Finding] | tuple[Finding, ...]) -> list[FindingKind]:
    return [finding.kind for finding in findings]


def _replica(path: Path, data: bytes) -> Path:
    (path / "orders-0").mkdir()
    (path / "orders-0" / log_file_name(0)).write_bytes(data)
    return path


def test_a_sound_log_is_read_whole_and_nothing_is_found(tmp_path: Path) -> None:
    store = ObjectsInMemory()
    parts = [records(ORDERS, 0, 0, 9), records(ORDERS, 1, 10, 14), records(ORDERS, 1, 12, 19)]
    log, inventory = _stored(store, *parts)
    replica = _replica(tmp_path, records(ORDERS, 0, 0, 9)[3] + records(ORDERS, 1, 10, 19)[3])

    found = _verify(log, inventory, store, replica)

    assert not found.findings
    assert not list(check_inventory(inventory, [log]))
    assert (found.objects, found.runs, found.batches_compared) == (3, 3, 23)


def test_a_metadata_topic_that_may_lack_records_is_no_sound_ground() -> None:
    store = RemoteWalMetadataStore()
    store.topic.doubted(TopicDoubt.SHORTER, "it ends before what was read")
    inventory = from_metadata(store, ArchiveStore(), MemoryStorage(), None)
    [found] = check_inventory(inventory, [])
    assert (found.kind, found.kind.is_error) == (FindingKind.METADATA_IN_DOUBT, True)
    assert "it ends before" in found.detail


@pytest.mark.parametrize("position", [HEADER_BYTES + 5, HEADER_BYTES + 70, HEADER_BYTES + 300])
def test_damaged_bytes_are_found_wherever_they_are(position: int) -> None:
    store = ObjectsInMemory()
    log, inventory = _stored(store, records(ORDERS, 0, 0, 9))
    store.damage(0, position)

    found = _verify(log, inventory, store)

    assert _kinds(found.findings) == [FindingKind.WRONG_BYTES]
    assert any(one.kind.is_error for one in found.findings)


@pytest.mark.parametrize("has_digests", [False, True])
def test_forged_records_with_the_right_checksum_are_found_where_metadata_has_their_digest(has_digests: bool) -> None:
    store = ObjectsInMemory()
    part = records(ORDERS, 0, 0, 9)
    log, inventory = _stored(store, part)
    if has_digests:
        inventory.runs[ORDERS] = [one._replace(sha256=records_digest(part[3])) for one in inventory.runs[ORDERS]]
    assert not _verify(log, inventory, store).findings
    store.forge(0)
    found = _verify(log, inventory, store).findings
    assert _kinds(found) == ([FindingKind.WRONG_BYTES] if has_digests else [])
    assert all("forged" in one.detail for one in found)


@pytest.mark.parametrize("fault", ["damaged", "forged", "copies differ", "a replica differs", "cut off", "gone"])
def test_nothing_that_is_found_tells_anything_of_a_record(
    fault: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    store, part = ObjectsInMemory(), records(ORDERS, 0, 0, 9)
    other = records(ORDERS, 0, 5, 12, timestamp_ms=1_800_000_000_000)
    log, inventory = _stored(store, part, *([other] if fault == "copies differ" else []))
    replicas = [_replica(tmp_path, part[3][: len(part[3]) // 2] + other[3])] if fault == "a replica differs" else []
    segment_id = inventory.runs[ORDERS][0].stored_in.object_id
    assert isinstance(segment_id, CombinedSegmentId)
    if fault == "forged":
        inventory.runs[ORDERS][0] = inventory.runs[ORDERS][0]._replace(sha256=records_digest(part[3]))
        store.forge(0)
    elif fault == "damaged":
        store.damage(0, store.objects[segment_id].index(MARK))
    elif fault == "cut off":
        store.objects[segment_id] = store.objects[segment_id][:-300]
    elif fault == "gone":
        store.remove(0)
    found = _verify(log, inventory, store, *replicas)
    assert found.findings
    told = repr(found) + str(found.findings) + "".join(capfd.readouterr()) + caplog.text
    for words in (MARK, MARK[::-1][:-4], MARK.hex().encode()):
        assert words.decode() not in told


def test_two_copies_with_different_batches_are_found() -> None:
    store = ObjectsInMemory()
    log, inventory = _stored(store, records(ORDERS, 0, 0, 9), records(ORDERS, 0, 5, 12, timestamp_ms=1_800_000_000_000))

    assert FindingKind.COPIES_DIFFER in _kinds(_verify(log, inventory, store).findings)


def test_a_replica_with_another_batch_is_found(tmp_path: Path) -> None:
    store = ObjectsInMemory()
    log, inventory = _stored(store, records(ORDERS, 0, 0, 9))
    other = records(ORDERS, 0, 0, 4)[3] + records(ORDERS, 0, 5, 5, timestamp_ms=5)[3] + records(ORDERS, 0, 6, 9)[3]

    found = _verify(log, inventory, store, _replica(tmp_path, other))

    assert _kinds(found.findings) == [FindingKind.REPLICA_DIFFERS]


def test_a_replica_that_lacks_a_batch_is_found(tmp_path: Path) -> None:
    store = ObjectsInMemory()
    log, inventory = _stored(store, records(ORDERS, 0, 0, 9))
    data = records(ORDERS, 0, 0, 9)[3]
    spans = scan_batches(data, 0, len(data))

    found = _verify(log, inventory, store, _replica(tmp_path, data[: spans[4].start] + data[spans[4].end :]))

    assert _kinds(found.findings) == [FindingKind.REPLICA_DIFFERS]


def test_what_a_replica_does_not_hold_any_more_or_yet_is_no_difference(tmp_path: Path) -> None:
    store = ObjectsInMemory()
    log, inventory = _stored(store, records(ORDERS, 0, 0, 9))
    (tmp_path / "orders-0").mkdir()
    (tmp_path / "orders-0" / log_file_name(3)).write_bytes(records(ORDERS, 0, 3, 6)[3])

    found = _verify(log, inventory, store, tmp_path)

    assert not found.findings
    assert found.batches_compared == 4


def test_gaps_and_objects_that_are_lost_or_unreadable_are_errors() -> None:
    store = ObjectsInMemory()
    log, inventory = _stored(store, records(ORDERS, 0, 0, 4), records(ORDERS, 0, 8, 9))
    inventory.lost_objects.append(StoredObject(CombinedSegmentId(1, 1, 7), 440, 1_700_000_000_123))
    inventory.unreadable.append(UnreadableObject("key", "cut off"))

    found = list(check_inventory(inventory, [log]))

    assert _kinds(found) == [FindingKind.LOST_OBJECT, FindingKind.UNREADABLE_OBJECT, FindingKind.GAP]
    assert found[0].subject == "1-000000000001-000000000007"
    assert "440 bytes, finished at 2023-11-14T22:13:20.123+00:00" in found[0].detail
    assert "5 to 7" in found[-1].detail
    assert all(finding.kind.is_error for finding in found)


@pytest.mark.parametrize(
    ("reason", "told"), [(GapReason.RETENTION, [FindingKind.DECLARED_GAP]), (GapReason.NOT_WANTED, [])]
)
def test_what_was_declared_lost_is_told_of_and_what_nobody_wanted_is_no_loss(
    reason: GapReason, told: list[FindingKind]
) -> None:
    log, inventory = _stored(ObjectsInMemory(), records(ORDERS, 0, 0, 4), records(ORDERS, 0, 8, 9))
    gap = DeclaredGap(ORDERS, 5, 8, 0, reason)
    inventory.declared_gaps[ORDERS] = [gap]
    log = replace(log, plan=log.runs.plan(PlanRules(declared_gaps=(gap,))))

    assert _kinds(list(check_inventory(inventory, [log]))) == told


def test_what_the_brokers_alone_have_is_one_finding_for_each_log() -> None:
    log, inventory = _stored(ObjectsInMemory(), records(ORDERS, 0, 10, 14), records(ORDERS, 0, 20, 24))
    gap = DeclaredGap(ORDERS, 15, 20, 0, GapReason.NOT_WANTED)
    inventory.declared_gaps[ORDERS], rules = [gap], PlanRules(declared_gaps=(gap,))
    replicas = ReplicaSet((2, 1), (2,), 2, leader_epoch=3, log_start=0)
    log = replace(log, replicas=replicas, rules=rules, plan=log.runs.plan(rules))

    [found] = check_inventory(inventory, [log])

    assert found.kind is FindingKind.ON_BROKERS_ALONE
    assert found.detail.startswith("offsets 0 to 9 and 1 more ranges, 15 offsets in all, are on the brokers alone")


def test_an_epoch_that_the_cluster_never_had_is_an_error() -> None:
    log, inventory = _stored(ObjectsInMemory(), records(ORDERS, 0, 0, 4), records(ORDERS, 7, 5, 9))

    assert _kinds(list(check_inventory(inventory, [log]))) == [FindingKind.EPOCH_UNKNOWN_TO_CLUSTER]


def test_records_that_a_newer_leader_overwrote_are_told_of_and_no_error() -> None:
    log, inventory = _stored(ObjectsInMemory(), records(ORDERS, 0, 0, 9), records(ORDERS, 1, 5, 7))

    [finding] = check_inventory(inventory, [log])

    assert finding.kind is FindingKind.UNDECLARED_DEAD
    assert not finding.kind.is_error
    assert "5 to 9" in finding.detail


def test_a_sample_reads_a_share_of_the_objects() -> None:
    store = ObjectsInMemory()
    log, inventory = _stored(store, *(records(ORDERS, 0, number, number) for number in range(100)))

    found = _verify(log, inventory, store, share=0.3)

    assert 10 < found.objects < 60
    assert len(store.fetches) == found.objects


def test_an_object_that_expired_while_others_were_read_is_no_fault() -> None:
    store = ObjectsInMemory()
    log, inventory = _stored(store, records(ORDERS, 0, 0, 9), records(ORDERS, 0, 10, 19))
    store.remove(0)

    found = _verify(log, inventory, store, later=Inventory(runs={ORDERS: inventory.runs[ORDERS][1:]}, objects=1))

    assert not found.findings
    assert (found.objects, found.runs, found.objects_deleted_meanwhile) == (2, 2, 1)


def test_an_object_that_is_gone_and_is_still_told_of_is_lost() -> None:
    store = ObjectsInMemory()
    log, inventory = _stored(store, records(ORDERS, 0, 0, 9), records(ORDERS, 0, 10, 19))
    store.remove(0)

    found = _verify(log, inventory, store, later=Inventory(lost={ORDERS: inventory.runs[ORDERS]}))

    assert _kinds(found.findings) == [FindingKind.LOST_OBJECT]
    assert found.objects_deleted_meanwhile == 0
