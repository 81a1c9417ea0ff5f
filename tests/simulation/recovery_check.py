"""A recovery out of the store and the topic, held against the logs as they are.

Planning and restoring are the product's own, the files are real. Where all is settled, what is made must hold each
batch of the log that is wanted, byte by byte, and none that was cut off, as far as anything is left that tells of it;
in the midst of a run, what no log had at any time must not come up.
"""

from pathlib import Path
from typing import Protocol

from kafka_log.record_batch import scan_batches
from kafka_log.segment_files import list_segments, log_file_name
from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.records.records import PublishedSegment, RemoteWalLogSegmentMetadataUpdate
from metadata_topic.records.states import DELETED, DELETING, FINISHED, STARTED
from metadata_topic.store.archive.archive_store import ArchiveStore
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.archive_storage import ArchiveStorage
from plugin.segment_metadata import CombinedSegmentId, RemoteLogSegmentMetadataEntry, RemoteLogSegmentState
from plugin.wrappers.adopting_storage import AdoptingStorage
from recovery.logs.log_plan import LogPlan, LogRuns, PlanRules
from recovery.logs.log_settings import LogSettings
from recovery.logs.restore import RestoredLog, RestoreJob, restore_logs
from recovery.logs.run_reader import RunReader
from recovery.metadata.inventory import Inventory, from_metadata
from rlm.lifecycle.release import NEVER
from tests.kafka_log.log_writer import BatchKey
from tests.simulation.led_log import LedLog
from tests.simulation.life_of_objects import Cluster
from tests.simulation.metadata_topic_model import TopicModel, TopicRecord
from tests.simulation.seeded_storage import SeededStorage


class WorldParts(Protocol):
    storage: SeededStorage
    topic: TopicModel
    cluster: Cluster
    archive_storage: ArchiveStorage | None

    def living_logs(self) -> list[LedLog]: ...

    def wall_ms(self) -> int: ...

    def hit(self, fault: str) -> None: ...


def check_recovery(world: WorldParts, directory: Path, *, is_settled: bool) -> None:
    """Recover all logs of topics that are there, into `directory`."""
    inventory = TopicReader().inventory(world)
    for log in world.living_logs():
        restored = _restored(world, inventory, log, directory / f"recovered-{log.partition.partition}")
        if restored is not None:
            found = _batches(restored.job.directory)
            _check_origin(log, found)
            if is_settled:
                _check_whole(world, log, found, restored)


class TopicReader:
    """What the topic tells, read on from where it was read to."""

    def __init__(self) -> None:
        self._store, self._archived = RemoteWalMetadataStore(), ArchiveStore()
        self._read_to = 0

    def inventory(self, world: WorldParts) -> Inventory:
        """What the topic and the stores tell now."""
        begin, self._read_to = self._read_to, len(world.topic.records)
        world.topic.tell(self._store, self._archived, begin, self._read_to)
        storage = AdoptingStorage(world.storage)
        return from_metadata(self._store, self._archived, storage, world.archive_storage, is_recovery=True)


def planned(world: WorldParts, inventory: Inventory, log: LedLog) -> tuple[LogRuns, LogPlan, PlanRules]:
    partition = log.partition
    runs = inventory.log_runs(partition)
    retention_ms = world.cluster.retention_ms[partition.topic_id]
    rules = PlanRules(
        may_have_holes=log.is_compacted,
        retention_horizon_ms=None if retention_ms == NEVER else world.wall_ms() - retention_ms,
        declared_gaps=tuple(inventory.declared_gaps.get(partition, ())),
        before_upload=tuple(inventory.before_upload.get(partition, ())),
        released=tuple(inventory.released.get(partition, ())),
    )
    return runs, runs.plan(rules), rules


def _restored(world: WorldParts, inventory: Inventory, log: LedLog, directory: Path) -> RestoredLog | None:
    runs, plan, rules = planned(world, inventory, log)
    if not plan.extents:
        return None
    job = RestoreJob(log.partition, directory.name, directory, runs, plan, LogSettings(), rules)
    [restored] = restore_logs([job], RunReader(AdoptingStorage(world.storage), world.archive_storage), threads=1)
    world.hit("recovered")
    return restored


def _batches(directory: Path) -> dict[BatchKey, bytes]:
    found = {}
    for base in list_segments(directory):
        raw = (directory / log_file_name(base)).read_bytes()
        for batch in scan_batches(raw, 0, len(raw)):
            found[BatchKey(batch.leader_epoch, batch.base_offset)] = raw[batch.start : batch.end]
    return found


def _check_origin(log: LedLog, found: dict[BatchKey, bytes]) -> None:
    for key, raw in found.items():
        assert log.raw.get(key) == raw, f"{key} of {_name(log.partition)} is recovered, and no log had it so"
    offsets = [key.base_offset for key in found]
    assert offsets == sorted(set(offsets)), f"{_name(log.partition)} is recovered out of order"


def _check_whole(world: WorldParts, log: LedLog, found: dict[BatchKey, bytes], restored: RestoredLog) -> None:
    wanted_from = max(log.begin or 0, log.released_to())
    cut = [key for key in found if key in log.cut_off and key.base_offset >= wanted_from and _is_told(world, log, key)]
    assert not cut, f"{cut[:5]} of {_name(log.partition)} are recovered, and were cut off"
    missing = [
        key
        for key in log.log.present
        if key.base_offset >= wanted_from and key not in log.not_wanted and key not in found
    ]
    assert not missing, f"{missing[:5]} of {_name(log.partition)} are not recovered, {restored.gap}"


def _is_told(world: WorldParts, log: LedLog, cut: BatchKey) -> bool:
    """Whether anybody can know that this batch was cut off.

    It is told by what a leader declared, and by what is stored of that which took the batch's place. A leader declares
    it as soon as the topic tells of a segment that reaches so far, as its files say where the epoch ended, until the
    log begins behind that. Of objects that nobody told of it can name none, and such an object may be younger than what
    was declared. If all that could tell was removed while no agent's word came through, nothing in the world tells that
    the older epoch ended there.
    """
    states = _states(world)
    if any(_is_declared(record, log, cut) for record in world.topic.records):
        untold = (one for one in world.storage.objects if states.get(one) in (None, STARTED))
        return not any(_holds(entry, log, cut) for one in untold for entry in world.storage.entries[one])
    for segment_id in world.storage.objects:
        state = states.get(segment_id)
        if state in (DELETING, DELETED):
            continue
        for entry in world.storage.entries[segment_id]:
            if entry.topic_id_partition != log.partition:
                continue
            has_replaced = entry.leader_epoch > cut.leader_epoch and entry.first_offset <= cut.base_offset
            reaches_it = entry.leader_epoch == cut.leader_epoch and entry.last_offset >= cut.base_offset
            can_be_named = state is FINISHED and cut.base_offset >= log.log.log_start_offset
            if has_replaced or (reaches_it and can_be_named):
                return True
    return False


def _holds(entry: RemoteLogSegmentMetadataEntry, log: LedLog, cut: BatchKey) -> bool:
    is_of_epoch = entry.topic_id_partition == log.partition and entry.leader_epoch == cut.leader_epoch
    return is_of_epoch and entry.first_offset <= cut.base_offset <= entry.last_offset


def _is_declared(record: TopicRecord, log: LedLog, cut: BatchKey) -> bool:
    return isinstance(record, RemoteWalLogSegmentMetadataUpdate) and any(
        entry.topic_id_partition == log.partition
        and entry.leader_epoch == cut.leader_epoch
        and entry.first_offset <= cut.base_offset
        for entry in record.entries
    )


def _states(world: WorldParts) -> dict[CombinedSegmentId, RemoteLogSegmentState]:
    states: dict[CombinedSegmentId, RemoteLogSegmentState] = {}
    for record in world.topic.records:
        if isinstance(record, PublishedSegment):
            known = states.get(record.combined_segment_id, record.state)
            states[record.combined_segment_id] = max(known, record.state)
    return states


def _name(partition: TopicIdPartition) -> str:
    return f"partition {partition.partition}"
