"""A broker's recovery: which logs are restored, into which log directories, and the results.

`inventory` says what is stored, `cluster_view` what the broker had, `log_plan` what of it makes up each log,
`log_directory_target` where it may be written, `restore` writes it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from kafka_log.broker_files.leader_epoch_checkpoint import LeaderEpochs
from kafka_log.log_directory import LogDirectory
from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.kip405.kip405 import REMOTE_LOG_METADATA_TOPIC
from metadata_topic.kip405.tiered_offsets import TieredOffsets
from metadata_topic.records.declared_gaps import GapReason
from metadata_topic.records.offset_ranges import OffsetRange, ranges_missing
from recovery.cluster_view import ClusterView, ReplicaSet
from recovery.errors import RecoveryError, TargetRefusedError, UnknownClusterError
from recovery.logs.log_directory_target import LogDirectoryIdentity, LogDirectoryTarget, identity_in, refusal_of
from recovery.logs.log_plan import EpochStart, Extent, Gap, LogPlan, LogRuns, PlanRules
from recovery.logs.log_settings import LogSettings, log_settings
from recovery.logs.restore import RestoredLog, RestoreJob, restore_logs
from recovery.logs.run_reader import RunReader
from recovery.metadata.inventory import Inventory

_NAMED = 5

NewestTimestamp = Callable[[Extent], int]
"""The largest timestamp of an extent's records, in ms; 0 where they cannot be read."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which of a broker's logs to restore, and up to when."""

    topics: frozenset[str] = frozenset()
    """Empty: all of the broker's."""
    partitions: frozenset[int] = frozenset()
    """Empty: all of the topics'."""
    begins_behind_last_gap: bool = False
    to_timestamp_ms: int | None = None
    may_have_less: bool = False
    """Whether to include logs of which others hold records that are not stored."""
    may_lack_tier_epochs: bool = False
    """Whether to include logs with a tier that may lack leader epochs of its records."""


@dataclass(frozen=True, slots=True)
class LostBroker:
    """The broker whose log directories are rebuilt: its id, settings and directories."""

    node_id: int
    cluster_id: str
    log_dirs: tuple[Path, ...]
    """All its log directories."""
    lost_log_dirs: tuple[Path, ...]
    """The directories to rebuild; the others are left unchanged."""
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Its server.properties."""
    directory_ids: Mapping[Path, str] = field(default_factory=dict)
    """Known ids of log directories."""


@dataclass(frozen=True, slots=True)
class PlannedLog:
    """One of the broker's logs, and what can be restored of it."""

    partition: TopicIdPartition
    topic: str
    replicas: ReplicaSet
    settings: LogSettings
    runs: LogRuns
    plan: LogPlan
    rules: PlanRules = field(default_factory=PlanRules)
    """The rules of the plan."""
    may_have_less: bool = False
    may_lack_tier_epochs: bool = False

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition.partition}"

    @property
    def is_stored(self) -> bool:
        """Whether object storage has, or had, any record of the log, even only its end."""
        return self.plan.end_offset > 0 or self.plan.gap is not None

    @property
    def has_other_replicas(self) -> bool:
        return len(self.replicas.replicas) > 1

    @property
    def lost_ranges(self) -> list[OffsetRange]:
        """The offsets that lost and unreachable objects alone hold, and that the log should have."""
        return self.runs.lost_ranges(self.rules)

    def restore_job(self, target: LogDirectoryTarget) -> RestoreJob:
        """Return the job that writes the log into this directory."""
        place = target.building_place(self.topic, self.partition.partition)
        return RestoreJob(self.partition, self.name, place, self.runs, self.plan, self.settings, self.rules)

    def held_by_others(self, plan: LogPlan) -> list[OffsetRange]:
        """Return the offsets that other replicas have and a log made by `plan` would lack, from the leader's log start
        to its end.

        Empty for a compacted log, of which any missing range counts (`find_missing`). If this broker led such a log,
        Kafka would delete on all replicas what is before its start, because followers adopt the leader's log start; and
        consumers would miss the missing records within.
        """
        log_start = self.replicas.log_start
        if log_start is None or not self.has_other_replicas or self.settings.is_compacted:
            return []
        start_offset = plan.start_offset if plan.extents or plan.gap is None else plan.gap.to_offset
        head = [(log_start, start_offset)] if log_start < start_offset else []
        within = [
            (gap.from_offset, gap.to_offset)
            for gap in self.plan.declared_gaps
            if gap.from_offset >= start_offset and self._may_be_on_brokers(gap)
        ]
        return head + within

    def _may_be_on_brokers(self, gap: Gap) -> bool:
        """Whether the leader may have the records of this declared gap.

        A leader that cannot read them can give them to nobody. The leader of a newer epoch may have a sound copy.
        """
        declared = [
            one
            for one in self.rules.declared_gaps
            if one.from_offset < gap.to_offset and gap.from_offset < one.to_offset
        ]
        if any(one.reason is GapReason.NOT_WANTED for one in declared):
            return True
        unreadable_in = [one.leader_epoch for one in declared if one.reason is GapReason.UNREADABLE]
        newest = max([self.replicas.leader_epoch, *(epoch for epoch, _ in self.runs.lineage)])
        return bool(unreadable_in) and newest > max(unreadable_in)

    def is_left_to_others(self, plan: LogPlan) -> bool:
        """Whether a log made by `plan` is not restored: the broker copies all of it from the leader."""
        return self.is_stored and not self.may_have_less and bool(self.held_by_others(plan))

    def find_missing(self, plan: LogPlan, gap: Gap | None) -> list[OffsetRange]:
        """Return what a compacted log made by `plan`, or ended before `gap`, would lack; empty for any other log.

        The newest record of a key may be in a missing range. Without it an older one, or none, would come back. So
        nothing of such a log is restored: in-sync replicas supply it.
        """
        if not self.settings.is_compacted or self.may_have_less:
            return []
        planned = [(extent.first_offset, extent.last_offset + 1) for extent in plan.extents]
        unread = [] if gap is None else [gap]
        held = [part for whole in planned for part in ranges_missing(unread, whole)]
        end = max(plan.end_offset, *(gap.to_offset for gap in unread), 0)
        return ranges_missing([*held, *self._taken_by_compaction()], (self._compacted_start(plan), end))

    def _taken_by_compaction(self) -> list[OffsetRange]:
        epochs = LeaderEpochs(self.runs.lineage)
        compacted = (gap for gap in self.rules.declared_gaps if gap.reason is GapReason.COMPACTED)
        return [(gap.from_offset, gap.end_in(epochs)) for gap in compacted]

    def _compacted_start(self, plan: LogPlan) -> int:
        """Return the log's start; 0 if unknown, unless retention may have removed what is not stored."""
        if (known := self.runs.log_start(self.rules)) is not None:
            return known
        is_kept_as_log = self.settings.retention_ms is not None and self.settings.stored_ms is None
        is_all_stored = not (self.rules.released or self.rules.before_upload)
        if not (is_kept_as_log and is_all_stored):
            return 0
        return min([plan.start_offset, *(begin for begin, _ in self.lost_ranges)])

    def start_of(self, plan: LogPlan) -> int:
        """Return the log start for the broker: that of the tier, if it has one, else that of the restored log.

        A leading broker deletes from the tier what lies below.
        """
        if not self.settings.is_tiered:
            return plan.start_offset
        known = self.runs.log_start(self.rules)
        if known is not None:
            return min(known, plan.start_offset)
        on_tier = dict(self.rules.tier_epochs or ())
        return min([plan.start_offset, *(start for epoch, start in plan.leader_epochs if epoch in on_tier)])

    def lacks_tier_epochs(self, plan: LogPlan) -> bool:
        """Whether a log made by `plan` may lack leader epochs of records on the tier, because they are unknown.

        A leading broker deletes from the tier what is of epochs older than its own first one.
        """
        is_known = not self.settings.is_tiered or self.rules.tier_epochs is not None
        return not is_known and plan.start_offset > (self.runs.log_start(self.rules) or 0)

    def with_tier(self, tier: TieredOffsets) -> "PlannedLog":
        """Return the log with the leader epochs of its records on the tier."""
        if not self.settings.is_tiered:
            return self
        starts = sorted(tier.epoch_starts(self.partition).items())
        rules = replace(self.rules, tier_epochs=tuple(EpochStart(*one) for one in starts))
        return replace(self, rules=rules, plan=self.runs.plan(rules))

    def is_restored(self, plan: LogPlan, gap: Gap | None) -> bool:
        """Whether to restore the log as made by `plan` and ended before `gap`; else other replicas supply it."""
        return self.is_stored and not self.is_left_to_others(plan) and not self.find_missing(plan, gap)


def plan_broker(
    broker: LostBroker,
    view: ClusterView,
    inventory: Inventory,
    selection: Selection,
    now_ms: int,
    newest_timestamp_ms: NewestTimestamp = lambda _extent: 0,
) -> list[PlannedLog]:
    """Return the selected lost logs of the broker, by name. Writes nothing.

    `newest_timestamp_ms` reads a run's newest timestamp. It is called for logs without a known start, for records that
    seem to have expired. Raises UnknownClusterError when nothing is selected, RecoveryError for settings that are no
    numbers.
    """
    kept, properties = _kept_logs(broker), view.properties_of(broker.node_id, broker.properties)
    planned = []
    for partition in view.replicas_of(broker.node_id):
        topic = view.topics[partition.topic_id]
        is_wanted = _is_selected(topic.name, partition.partition, selection) and topic.name not in view.left_out
        if not is_wanted or partition in kept:
            continue
        try:
            settings = replace(log_settings(topic.config, properties), stored_ms=topic.stored_ms)
        except ValueError as error:
            raise RecoveryError("plan recovery", topic.name, f"a setting is no number: {error}") from error
        runs, replicas = inventory.log_runs(partition), topic.partitions[partition.partition]
        rules = inventory.log_rules(partition, is_compacted=settings.is_compacted, log_start=replicas.log_start)
        rules = replace(rules, begins_behind_last_gap=selection.begins_behind_last_gap)
        rules = _timed(runs, rules, settings, now_ms, newest_timestamp_ms)
        plan = runs.plan(rules)
        may = (selection.may_have_less, selection.may_lack_tier_epochs)
        planned.append(PlannedLog(partition, topic.name, replicas, settings, runs, plan, rules, *may))
    if not planned:
        raise UnknownClusterError(
            "plan recovery",
            f"broker {broker.node_id}",
            "the cluster knows of no such partition on this broker",
            f"it tells nothing of {', '.join(view.left_out)}; may this client describe it?"
            if view.left_out
            else "check node.id, --topic and --partition",
        )
    return sorted(planned, key=lambda log: (log.topic, log.partition.partition))


def plan_with_tier(
    planned: Sequence[PlannedLog], read_tier: Callable[[], TieredOffsets | None] | None
) -> list[PlannedLog]:
    """Return the logs with the leader epochs of what KIP-405's tier holds, which is read if a log needs them.

    Unchanged where the tier's metadata cannot be read: `read_tier` is None, or returns it.
    """
    is_needed = any(log.is_restored(log.plan, log.plan.gap) and log.lacks_tier_epochs(log.plan) for log in planned)
    tier = read_tier() if is_needed and read_tier is not None else None
    return list(planned) if tier is None else [log.with_tier(tier) for log in planned]


def _timed(
    runs: LogRuns, rules: PlanRules, settings: LogSettings, now_ms: int, newest_timestamp_ms: NewestTimestamp
) -> PlanRules:
    """Return the rules, with what has expired.

    Where nobody says where the log begins, the topic's retention does. Brokers reckon it from the records' timestamps,
    which may be younger than the upload. A record that is young enough keeps its segment and all that follows.
    """
    is_start_known = runs.log_start(rules) is not None
    rules = replace(rules, retention_horizon_ms=settings.horizon_ms(now_ms, is_start_known=is_start_known))
    if is_start_known or settings.retention_ms is None:
        return rules
    young_ms, stored_ms = now_ms - settings.retention_ms, settings.horizon_ms(now_ms, is_start_known=True)
    unexpired = (
        extent.run
        for extent in runs.passed_over(rules)
        if (stored_ms is None or extent.run.stored_in.written_ms >= stored_ms)
        and newest_timestamp_ms(extent) >= young_ms
    )
    return replace(rules, unexpired=frozenset(unexpired))


def recover_broker(
    broker: LostBroker,
    view: ClusterView,
    planned: Sequence[PlannedLog],
    restore: Callable[[Sequence[RestoreJob]], list[RestoredLog]],
    new_directory_id: Callable[[], str],
) -> list[RestoredLog]:
    """Write the broker's lost log directories. When this returns, a broker may be started on them.

    `restore` is `restore_logs` with all its other arguments. Raises TargetRefusedError before anything is written,
    RecoveryError, RemoteStorageError and OSError meanwhile; a repeated run continues.
    """
    for path in broker.lost_log_dirs:
        refusal = refusal_of(path, broker.cluster_id, broker.node_id, broker.lost_log_dirs)
        if refusal is not None:
            raise refusal
    if (refusal := tier_refusal([(log, log.plan) for log in planned])) is not None:
        raise refusal
    identities = directory_identities(broker, view, new_directory_id)
    with ExitStack() as held:
        lost = broker.lost_log_dirs
        targets = [held.enter_context(LogDirectoryTarget(path, identities[path], lost)) for path in lost]
        stored = [log for log in planned if log.is_restored(log.plan, log.plan.gap)]
        placed = place_logs(stored, targets, view, broker.node_id)
        restored = restore([log.restore_job(placed[log.partition]) for log in stored])
        # Records expired meanwhile. The next run reads the tier's metadata, or refuses before it writes.
        refusal = tier_refusal([(log, one.job.plan) for log, one in zip(stored, restored, strict=True)])
        if refusal is not None:
            raise RecoveryError(refusal.operation, refusal.key, refusal.reason, "run it again")
        # What could not be read may be what others have, or make a compacted log a wrong one.
        made = [
            (log, log.start_of(one.job.plan))
            for log, one in zip(stored, restored, strict=True)
            if log.is_restored(one.job.plan, one.gap)
        ]
        for target in targets:
            target.publish(
                {(log.topic, log.partition.partition): start for log, start in made if placed[log.partition] is target}
            )
        for target in targets:
            target.release()
    return restored


def directory_identities(
    broker: LostBroker, view: ClusterView, new_directory_id: Callable[[], str]
) -> dict[Path, LogDirectoryIdentity]:
    """Return each lost log directory's identity: with its old id if known, else with a new one."""
    registered = list(view.directories_of(broker.node_id))
    for path in broker.log_dirs:
        known = identity_in(path)
        if known is not None and known.directory_id in registered:
            registered.remove(known.directory_id)
    # Nobody knows which of several lost directories had which id; any is fine, because all logs in them are new.
    identities = {}
    for path in broker.lost_log_dirs:
        known = identity_in(path)
        directory_id = (known.directory_id if known else None) or broker.directory_ids.get(path)
        if directory_id is None:
            directory_id = registered.pop(0) if registered else new_directory_id()
        elif directory_id in registered:
            registered.remove(directory_id)
        identities[path] = LogDirectoryIdentity(broker.cluster_id, broker.node_id, directory_id)
    return identities


def place_logs(
    planned: Sequence[PlannedLog], targets: Sequence[LogDirectoryTarget], view: ClusterView, node_id: int
) -> dict[TopicIdPartition, LogDirectoryTarget]:
    """Choose a directory for each log: the one in the cluster's metadata, else the one with the fewest bytes."""
    by_id = {target.identity.directory_id: target for target in targets}
    filled = dict.fromkeys(by_id, 0)
    placed = {}
    for log in sorted(planned, key=lambda log: -log.plan.size_bytes):
        assigned = view.directory_of(log.partition, node_id)
        chosen = assigned if assigned in by_id else min(filled, key=lambda directory_id: filled[directory_id])
        filled[chosen] += log.plan.size_bytes
        placed[log.partition] = by_id[chosen]
    return placed


def _kept_logs(broker: LostBroker) -> set[TopicIdPartition]:
    """Return the logs in the directories that were not lost."""
    found: set[TopicIdPartition] = set()
    for path in broker.log_dirs:
        if path in broker.lost_log_dirs:
            continue
        directory = LogDirectory(path)
        directory.scan()
        found |= set(directory.partitions)
    return found


def _is_selected(topic: str, partition: int, selection: Selection) -> bool:
    return (not selection.topics or topic in selection.topics) and (
        not selection.partitions or partition in selection.partitions
    )


def last_in_sync(broker: LostBroker, view: ClusterView) -> list[TopicIdPartition]:
    """Return the broker's lost logs that have other replicas, none of which may be elected; by name.

    All of them, whatever is selected: a broker that is started without a log has an empty one.

    The controllers would elect no other replica, as far as they say. (By KIP-966 nobody is in sync when the last one
    has died: it is then eligible, and after an unclean shutdown it is the last known leader, which is elected again.)
    So once started, the broker leads with what was restored, and Kafka's other replicas truncate to that. What was
    acknowledged and not uploaded before the disk was lost is then gone everywhere, even if a replica that fell out of
    sync has it. No tool can tell which of them reaches further while there is no leader; so a person must decide.
    """
    kept = _kept_logs(broker)
    found = []
    for partition in view.replicas_of(broker.node_id):
        replicas = view.topics[partition.topic_id].partitions[partition.partition]
        may_lead = {*replicas.in_sync, *replicas.eligible}
        if partition not in kept and len(replicas.replicas) > 1 and may_lead <= {broker.node_id}:
            found.append(partition)
    return sorted(found, key=lambda partition: (view.topics[partition.topic_id].name, partition.partition))


def lead_refusal(
    leads: Sequence[TopicIdPartition], planned: Iterable[PlannedLog], view: ClusterView
) -> TargetRefusedError | None:
    """Return an error if this broker would lead some of these logs at once; they are restored only on request. None
    if `leads` is empty."""
    if not leads:
        return None
    ends = {log.partition: log.plan.end_offset for log in planned if log.is_restored(log.plan, log.plan.gap)}
    names = ", ".join(f"{view.name_of(one)} to offset {ends.get(one, 0):,}" for one in leads[:_NAMED])
    more = f" and {len(leads) - _NAMED} more" if len(leads) > _NAMED else ""
    return TargetRefusedError(
        "recover broker",
        view.name_of(leads[0]),
        f"this broker is the last replica in sync, so it would lead with what is restored ({names}{more}), and the "
        "other replicas would be cut down to that: what was acknowledged and not uploaded would be gone",
        "where another replica reaches further (kafka-dump-log.sh on its disk), elect it while this broker is down "
        "(kafka-leader-election.sh --election-type unclean) and recover then; else add --lead-with-what-is-restored",
    )


def tier_refusal(plans: Iterable[tuple[PlannedLog, LogPlan]]) -> TargetRefusedError | None:
    """Return an error if a plan would restore a log without the leader epochs of its records on the tier."""
    cut = [
        log.name
        for log, plan in plans
        if not log.may_lack_tier_epochs and log.is_restored(plan, plan.gap) and log.lacks_tier_epochs(plan)
    ]
    if not cut:
        return None
    more = f" and {len(cut) - _NAMED} more" if len(cut) > _NAMED else ""
    return TargetRefusedError(
        "recover broker",
        cut[0],
        f"the older records of {', '.join(cut[:_NAMED])}{more} are on KIP-405's tier, and their leader epochs are not "
        f"known, because {REMOTE_LOG_METADATA_TOPIC} was not read: Kafka would delete these records from the tier",
        f"run it where {REMOTE_LOG_METADATA_TOPIC} can be read; or give those records up: --without-tier-epochs",
    )


def run_drill(directory: Path, planned: Sequence[PlannedLog], reader: RunReader, *, threads: int) -> list[RestoredLog]:
    """Restore the logs into a scratch directory, where no broker will start. It must be empty or absent.

    Raises TargetRefusedError when it is not, RemoteStorageError, OSError.
    """
    if directory.exists() and any(directory.iterdir()):
        raise TargetRefusedError("drill", str(directory), "it is not empty", "a drill needs a directory of its own")
    jobs = [
        RestoreJob(log.partition, log.name, directory / log.name, log.runs, log.plan, log.settings, log.rules)
        for log in planned
        if log.is_restored(log.plan, log.plan.gap)
    ]
    return restore_logs(jobs, reader, threads=threads)
