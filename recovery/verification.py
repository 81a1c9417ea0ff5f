"""Checks whether object storage could give a broker its logs back, before that is needed.

It checks the plans (gaps, lost and unreadable objects, leader epochs) and the bytes of all objects, or of a random
sample: each run's checksum, batch headers, Kafka's own checksum of each batch, and that two copies of the same records
hold the same batches. With a living replica's log directory, each batch is compared with the one at the same offset
there.

Each kind of finding says what it means. Only errors mean that records would be missing or wrong.
"""

import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from itertools import chain, pairwise
from pathlib import Path

from kafka_log.errors import LogDirectoryError
from kafka_log.record_batch import verify_batches
from kafka_log.segment_directory import SegmentDirectory
from kafka_log.segment_files import locate, walk_batches
from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.records.declared_gaps import GapReason
from metadata_topic.records.offset_ranges import OffsetRange, ranges_missing
from plugin.format.archive_object_id import StoredObjectId
from recovery.broker_recovery import PlannedLog
from recovery.errors import GoneRunError
from recovery.logs.log_plan import Extent, Gap, LogRuns
from recovery.logs.object_reads import LogExtent, group_reads
from recovery.logs.run_reader import FailedExtent, ReadExtent, RunReader
from recovery.logs.stored_run import StoredObject, StoredRun
from recovery.metadata.inventory import Inventory


class FindingKind(Enum):
    """The kinds of problems that a verification finds; the value is the name for programs."""

    GAP = "gap"
    """A log ends before records that are known to have been uploaded."""
    DECLARED_GAP = "declared_gap"
    """A log lacks records within, which its leader has declared as impossible to get."""
    LOST_OBJECT = "lost_object"
    """The metadata has an object that the store does not have."""
    """An object is not in one of the buckets that should have it; another has it."""
    UNREACHABLE_BUCKET = "unreachable_bucket"
    """A bucket did not answer, or is unknown here: nothing is said about its content."""
    UNREADABLE_OBJECT = "unreadable_object"
    """An object's header or footer is damaged, or it is another cluster's."""
    WRONG_BYTES = "wrong_bytes"
    """A run's bytes do not match its entry."""
    COPIES_DIFFER = "copies_differ"
    """Two runs of one leader epoch hold different batches at the same offset."""
    EPOCH_UNKNOWN_TO_CLUSTER = "epoch_unknown_to_cluster"
    """A run of a newer leader epoch than the partition ever had."""
    ON_BROKERS_ALONE = "on_brokers_alone"
    """Records are on the brokers and not in object storage: the WAL kept them shorter, or did not want them."""
    REPLICA_DIFFERS = "replica_differs"
    """A living replica has another batch, or none, at the place of this one."""
    NOTHING_COMPARED = "nothing_compared"
    """The log directories to compare with have none of the logs."""
    UNDECLARED_DEAD = "undeclared_dead"
    """Records that a newer leader overwrote, and that nobody has declared dead yet."""
    UNKNOWN_TOPIC = "unknown_topic"
    """The cluster tells too little of a topic to check its logs."""
    METADATA_IN_DOUBT = "metadata_in_doubt"
    """The metadata topic may lack records: what leaders declared and which objects are lost is not known."""
    FOREIGN_OBJECTS = "foreign_objects"
    """Keys under the cluster's prefix that are not ours."""

    @property
    def is_error(self) -> bool:
        return self not in _NO_ERRORS


_NO_ERRORS = frozenset(
    {
        FindingKind.DECLARED_GAP,
        FindingKind.UNDECLARED_DEAD,
        FindingKind.FOREIGN_OBJECTS,
        FindingKind.ON_BROKERS_ALONE,
    }
)


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem that a verification found, or something to look at."""

    kind: FindingKind
    subject: str
    """A log, or an object."""
    detail: str


@dataclass(frozen=True, slots=True)
class Verification:
    """What a verification checked, and found."""

    findings: tuple[Finding, ...]
    objects: int
    """Objects whose bytes were read."""
    runs: int
    bytes: int
    batches_compared: int
    """Batches compared with a living replica."""
    objects_deleted_meanwhile: int = 0
    """Objects missing at the read, and also in the metadata: expired since they were listed."""


def check_inventory(
    inventory: Inventory, planned: Sequence[PlannedLog], left_out: Iterable[tuple[str, str]] = ()
) -> Iterator[Finding]:
    """Yield the problems that show without reading any records. `left_out` are topics that are not planned, and why."""
    for topic, why in left_out:
        yield Finding(FindingKind.UNKNOWN_TOPIC, topic, f"{why}: may this client describe it, and its configuration?")
    for doubt in inventory.doubts:
        yield Finding(FindingKind.METADATA_IN_DOUBT, "metadata topic", f"{doubt}: remote-wal metadata rebuild first")
    for lost in inventory.lost_objects:
        finished = datetime.fromtimestamp(lost.written_ms / 1000, UTC).isoformat(timespec="milliseconds")
        detail = (
            f"the metadata tells of {lost.size_bytes} bytes, finished at {finished} by the writer's clock, and of no "
            "deletion; it is not in the store"
        )
        yield Finding(FindingKind.LOST_OBJECT, str(lost.object_id), detail)
    for bucket in sorted({*inventory.unanswered, *inventory.unreachable.values()}):
        objects = sum(there == bucket for there in inventory.unreachable.values())
        yield Finding(FindingKind.UNREACHABLE_BUCKET, bucket, f"out of reach, with {objects} objects that are known of")
    for item in inventory.unreadable:
        yield Finding(FindingKind.UNREADABLE_OBJECT, item.key, item.reason)
    if inventory.foreign_objects:
        yield Finding(FindingKind.FOREIGN_OBJECTS, "store", f"{inventory.foreign_objects} objects are passed over")
    for log in planned:
        yield from _check_plan(log, inventory)
        yield from _check_epochs(log, inventory.runs.get(log.partition, ()))


def _check_plan(log: PlannedLog, inventory: Inventory) -> Iterator[Finding]:
    """Yield what a recovery would lack."""
    held = log.held_by_others(log.plan) if log.is_stored else []
    if missing := log.find_missing(log.plan, log.plan.gap):
        yield _compacted(log, missing)
    elif log.plan.gap is not None and (log.plan.extents or not held):
        detail = f"offsets {log.plan.gap.from_offset} to {log.plan.gap.to_offset - 1} are in no readable object"
        if buckets := inventory.unreachable_in(log.partition, *log.plan.gap):
            detail = f"{detail} that can be reached; {', '.join(buckets)} has some of them"
        yield Finding(FindingKind.GAP, log.name, detail)
    for gap in _lost(log, inventory):
        detail = f"offsets {gap.from_offset} to {gap.to_offset - 1} were gone before they could be stored"
        yield Finding(FindingKind.DECLARED_GAP, log.name, detail)
    if held:
        (begin, end), *more = held
        count = sum(after - first for first, after in held)
        others = f" and {len(more):,} more ranges, {count:,} offsets in all," if more else ""
        detail = f"offsets {begin} to {end - 1}{others} are on the brokers alone: recover leaves the log to others"
        yield Finding(FindingKind.ON_BROKERS_ALONE, log.name, detail)


def _compacted(log: PlannedLog, missing: Sequence[OffsetRange]) -> Finding:
    """Report a compacted log that is not restored; an error if no leader has what is missing."""
    is_held = log.has_other_replicas and log.replicas.log_start is not None
    (begin, end), *more = missing
    others = f", nor are {len(more)} more ranges" if more else ""
    detail = (
        f"offsets {begin} to {end - 1} are in no readable object{others}: recover restores nothing of a compacted log "
        f"that is not whole{', and leaves it to other replicas' if is_held else ''}"
    )
    return Finding(FindingKind.ON_BROKERS_ALONE if is_held else FindingKind.GAP, log.name, detail)


def _lost(log: PlannedLog, inventory: Inventory) -> Iterator[Gap]:
    """Yield declared gaps of the plan, except those of unwanted records."""
    declared = inventory.declared_gaps.get(log.partition, ())
    unwanted = [(one.from_offset, one.to_offset) for one in declared if one.reason is GapReason.NOT_WANTED]
    for gap in log.plan.declared_gaps:
        if ranges_missing(unwanted, (gap.from_offset, gap.to_offset)):
            yield gap


def _check_epochs(log: PlannedLog, runs: Iterable[StoredRun]) -> Iterator[Finding]:
    ends = dict(zip((epoch for epoch, _ in log.runs.lineage), _ends(log.runs), strict=True))
    newest = log.replicas.leader_epoch
    for run in runs:
        if 0 <= newest < run.leader_epoch:
            yield Finding(
                FindingKind.EPOCH_UNKNOWN_TO_CLUSTER,
                log.name,
                f"{run.stored_in.object_id} holds leader epoch {run.leader_epoch}, the cluster is at {newest}",
            )
        end = ends.get(run.leader_epoch, 0)
        if run.living_last_offset >= max(end, run.first_offset) and end != _NO_END:
            yield Finding(
                FindingKind.UNDECLARED_DEAD,
                log.name,
                f"{run.stored_in.object_id} has offsets {max(end, run.first_offset)} to {run.living_last_offset} of "
                f"epoch {run.leader_epoch}, which a newer leader wrote anew",
            )


_NO_END = 2**63


def _ends(runs: LogRuns) -> list[int]:
    return [start for _, start in runs.lineage[1:]] + [_NO_END] * bool(runs.lineage)


class ObjectVerifier:
    """Reads the runs of some logs, and checks them against their entries and a replica. One caller at a time."""

    def __init__(self, planned: Sequence[PlannedLog], inventory: Inventory, replica_dirs: Iterable[Path] = ()) -> None:
        """`replica_dirs` are log directories of a living broker, to compare with."""
        self._planned = planned
        self._runs = [inventory.runs.get(log.partition, []) for log in planned]
        self._replica_dirs = tuple(replica_dirs)
        self._replicas = _replica_directories(planned, self._replica_dirs)
        self._overlapping = [set(_overlapping(runs)) for runs in self._runs]
        self._seen: dict[tuple[int, int, int], tuple[int, str]] = {}
        self._batches_compared = 0
        self._gone: set[StoredObject] = set()
        """The buckets that do not have it."""

    def verify(
        self,
        reader: RunReader,
        share: float,
        rng: random.Random,
        threads: int,
        look_again: Callable[[], Inventory],
        progress: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> Verification:
        """Check a random `share` (0 to 1) of the objects. Raises RemoteStorageError when the store fails.

        `look_again` returns a new inventory: agents delete expired objects while this reads.
        """
        chosen = [runs for runs in self._by_object().values() if share >= 1 or rng.random() < share]
        reads = [read for runs in chosen for read in group_reads(sorted(runs, key=_start_position))]
        findings: list[Finding] = []
        runs = size = 0
        for done, found_there in enumerate(reader.read_ahead(reads, threads), start=1):
            for found in found_there:
                runs += 1
                size += found.extent.run.size_bytes
                findings += self._check(found)
            progress(done, len(reads))
        there = _object_ids(look_again()) if self._gone else set()
        lost = [stored for stored in self._gone if stored.object_id in there]
        told = "it was listed, and is not there"
        findings += [Finding(FindingKind.LOST_OBJECT, str(stored.object_id), told) for stored in lost]
        deleted = len(self._gone) - len(lost)
        if self._replica_dirs and not self._replicas:
            told = "none of these logs is there: is it a log directory of another broker?"
            findings.append(Finding(FindingKind.NOTHING_COMPARED, ", ".join(map(str, self._replica_dirs)), told))
        return Verification(tuple(findings), len(chosen), runs, size, self._batches_compared, deleted)

    def _by_object(self) -> dict[StoredObject, list[LogExtent]]:
        """Return all runs of the checked logs."""
        by_object: dict[StoredObject, list[LogExtent]] = {}
        for number, runs in enumerate(self._runs):
            for run in runs:
                whole = Extent(run, run.first_offset, run.last_offset)
                by_object.setdefault(run.stored_in, []).append(LogExtent(number, whole))
        return by_object

    def _check(self, found: ReadExtent | FailedExtent) -> Iterator[Finding]:
        log = self._planned[found.log]
        run = found.extent.run
        if isinstance(found, FailedExtent):
            if isinstance(found.error, GoneRunError):
                self._gone.add(run.stored_in)
                return
            yield Finding(FindingKind.WRONG_BYTES, log.name, str(found.error))
            return
        sound = verify_batches(found.records, found.batches)
        if sound < len(found.batches):
            detail = f"{run.stored_in.object_id}: batch {found.batches[sound].base_offset} has a wrong checksum"
            yield Finding(FindingKind.WRONG_BYTES, log.name, detail)
            return
        if run in self._overlapping[found.log]:
            yield from self._compare_copies(found)
        replica = self._replicas.get(log.partition)
        if replica is not None and not log.settings.is_compacted:
            yield from self._compare_replica(found, replica)

    def _compare_copies(self, found: ReadExtent) -> Iterator[Finding]:
        run = found.extent.run
        for batch in found.batches:
            key = (found.log, run.leader_epoch, batch.base_offset)
            crc, other = self._seen.setdefault(key, (batch.crc, str(run.stored_in.object_id)))
            if crc != batch.crc:
                detail = f"batch {batch.base_offset} of epoch {run.leader_epoch}: {other}, {run.stored_in.object_id}"
                yield Finding(FindingKind.COPIES_DIFFER, self._planned[found.log].name, detail)

    def _compare_replica(self, found: ReadExtent, replica: SegmentDirectory) -> Iterator[Finding]:
        log = self._planned[found.log]
        run = found.extent.run
        end = dict(zip((epoch for epoch, _ in log.runs.lineage), _ends(log.runs), strict=True)).get(run.leader_epoch, 0)
        last = min(run.living_last_offset, end - 1)
        expected = [batch for batch in found.batches if batch.last_offset <= last]
        there = _batches_of_replica(replica, [batch.base_offset for batch in expected])
        if there is None:
            return
        first_there, last_there = min(there), max(there)
        for batch in expected:
            if not first_there <= batch.base_offset <= last_there:
                continue  # removed by retention, or not replicated yet
            if there.get(batch.base_offset) != (batch.last_offset, batch.leader_epoch, batch.crc):
                detail = (
                    f"batch {batch.base_offset} of {run.stored_in.object_id} is another one, or none, in {replica.path}"
                )
                yield Finding(FindingKind.REPLICA_DIFFERS, log.name, detail)
                return
            self._batches_compared += 1


def _object_ids(inventory: Inventory) -> set[StoredObjectId]:
    """Return the ids of all objects that should exist."""
    logs = chain(inventory.runs.values(), inventory.lost.values())
    return {run.stored_in.object_id for runs in logs for run in runs}


def _start_position(one: LogExtent) -> int:
    return one.extent.run.start_position


def _overlapping(runs: Iterable[StoredRun]) -> Iterator[StoredRun]:
    """Yield runs that share offsets with another one of their epoch."""
    ordered = sorted(runs, key=lambda run: (run.leader_epoch, run.first_offset, run.last_offset))
    reach: StoredRun | None = None
    for before, run in pairwise(ordered):
        if reach is None or reach.leader_epoch != before.leader_epoch or before.last_offset > reach.last_offset:
            reach = before
        if run.leader_epoch == reach.leader_epoch and run.first_offset <= reach.last_offset:
            yield reach
            yield run


def _replica_directories(
    planned: Sequence[PlannedLog], log_dirs: Iterable[Path]
) -> Mapping[TopicIdPartition, SegmentDirectory]:
    found = {}
    for path in log_dirs:
        for log in planned:
            directory = path / log.name
            if directory.is_dir():
                found[log.partition] = SegmentDirectory(directory)
    return found


def _batches_of_replica(
    replica: SegmentDirectory, base_offsets: Sequence[int]
) -> dict[int, tuple[int, int, int]] | None:
    """Return last offset, leader epoch and checksum by base offset, from the first to the last of those; None without
    any.
    """
    if not base_offsets:
        return None
    found: dict[int, tuple[int, int, int]] = {}
    try:
        replica.relook()
        first = replica.holding(base_offsets[0])
        base = first if first is not None or not replica.bases else replica.bases[0]
        while base is not None and base <= base_offsets[-1]:
            _add_batches(replica.file_path(base), base, base_offsets, found)
            base = replica.find_next(base)
    except FileNotFoundError:
        return None  # retention removed it meanwhile
    except OSError as error:
        raise LogDirectoryError(replica.path, str(error)) from error
    return found or None


def _add_batches(path: Path, base: int, base_offsets: Sequence[int], found: dict[int, tuple[int, int, int]]) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        start = locate(descriptor, path, base, max(base_offsets[0], base))
        for batch in walk_batches(descriptor, start.position, base):
            if batch.base_offset > base_offsets[-1]:
                return
            found[batch.base_offset] = (batch.last_offset, batch.leader_epoch, batch.crc)
    finally:
        os.close(descriptor)
