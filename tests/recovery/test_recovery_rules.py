"""The rules of docs/recovery.md, "What decides": expiration, recover and verify are held to them on model logs."""

from dataclasses import dataclass, replace
from pathlib import Path

from hypothesis import event, given
from hypothesis import strategies as st

from cli.recovery.recovery_table import planned_row
from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.records.declared_gaps import DeclaredGap, GapReason
from metadata_topic.settings.settings_table import SettingsTable
from metadata_topic.settings.topic_settings import AgentRegistration, TopicSettings
from metadata_topic.settings.wal_retention import AS_LOCAL, NO_LIMIT, WalRetention, local_retention_ms
from metadata_topic.store.released_offsets import ReleasedUpTo
from plugin.segment_metadata import RemoteLogSegmentMetadataEntry
from recovery.broker_recovery import LostBroker, PlannedLog, Selection, plan_broker
from recovery.cluster_view import ClusterView, ReplicaSet, TopicView, with_wal_retention
from recovery.logs.log_plan import Extent
from recovery.metadata.inventory import Inventory
from recovery.verification import check_inventory
from rlm.lifecycle import cluster_observer
from rlm.lifecycle.cluster_observer import Observation, Replication
from rlm.lifecycle.release import ClusterView as WatchedCluster
from rlm.lifecycle.release import Release, Tiers, release_of
from tests.recovery.stored_logs import run

ORDERS = TopicIdPartition(TopicId(b"orders".ljust(16)), 0)
PER_RUN = 2
"""Records."""
AGENTS_MS = 4
RETENTION = WalRetention(AGENTS_MS, 0)
AGENT = AgentRegistration(1, 1, "", "", 0, wal_retention_ms=AGENTS_MS)


@dataclass(frozen=True)
class Upload:
    """Two records, written into the log at the time that is their number, and uploaded then, or not."""

    ahead_ms: int
    """How far their timestamps are in the future."""
    is_wanted: bool
    """Stored, if nothing but links wants it."""
    has_neighbour: bool
    """Its object is kept for another topic."""
    is_lost: bool


@dataclass(frozen=True)
class World:
    """A log as the broker keeps it, and what decides about its objects."""

    uploads: tuple[Upload, ...]
    policy: str
    retention_ms: int
    chosen_ms: int | None
    """`remote.wal.retention.ms` of the topic."""
    replicas: ReplicaSet
    runs_per_segment: int
    deleted_to: int
    idle_ms: int
    """Since the last record."""

    @property
    def end(self) -> int:
        return PER_RUN * len(self.uploads)

    @property
    def now_ms(self) -> int:
        return len(self.uploads) + self.idle_ms

    @property
    def young_ms(self) -> int:
        """Timestamps from there on have not expired."""
        return self.now_ms - self.retention_ms if self.retention_ms >= 0 else 0

    @property
    def config(self) -> dict[str, str | None]:
        return {"cleanup.policy": self.policy, "retention.ms": str(self.retention_ms)}

    @property
    def log_start(self) -> int:
        """By whole closed segments, by their largest timestamps, and by who deletes records."""
        begin, size = 0, self.runs_per_segment
        while "delete" in self.policy and self.retention_ms >= 0 and begin + size < len(self.uploads):
            newest_ms = max(at + self.uploads[at].ahead_ms for at in range(begin, begin + size))
            if newest_ms + self.retention_ms >= self.now_ms:
                break
            begin += size
        return max(PER_RUN * begin, min(self.deleted_to, self.end))

    @property
    def settings(self) -> TopicSettings:
        return TopicSettings(enable=True, wal_retention_ms=self.chosen_ms)

    @property
    def is_kept_as_log(self) -> bool:
        return RETENTION.chosen_ms(self.settings, len(self.replicas.replicas)) == AS_LOCAL

    def released(self, at: int) -> Release | None:
        local_ms = local_retention_ms(self.config)
        assert local_ms is not None
        view = WatchedCluster(
            frozenset({ORDERS.topic_id}), retention_ms={ORDERS.topic_id: local_ms}, log_start={ORDERS: self.log_start}
        )
        observation = Observation(
            view, frozenset({1}), {ORDERS.topic_id: "orders"},
            replication={ORDERS.topic_id: Replication(len(self.replicas.replicas), frozenset())},
        )  # fmt: skip
        view = cluster_observer.with_wal_retention(
            observation, SettingsTable({"orders": self.settings}), RETENTION
        ).view
        entry = RemoteLogSegmentMetadataEntry(ORDERS, 0, PER_RUN * at, PER_RUN * at + PER_RUN - 1, 0, 1, 0)
        return release_of(entry, self.now_ms - at, view, Tiers())

    def inventory(self) -> Inventory:
        found = Inventory(log_starts={ORDERS: [ReleasedUpTo(ORDERS, 0, self.log_start)]} if self.uploads else {})
        for at, upload in enumerate(self.uploads):
            first, end = PER_RUN * at, PER_RUN * at + PER_RUN
            if not (upload.is_wanted or RETENTION.is_kept(self.settings, len(self.replicas.replicas))):
                gap = DeclaredGap(ORDERS, first, end, 0, GapReason.NOT_WANTED)
                found.declared_gaps.setdefault(ORDERS, []).append(gap)
            elif self.released(at) is not None and not upload.has_neighbour:
                found.released[ORDERS] = [ReleasedUpTo(ORDERS, 0, end)]
            else:
                into = found.lost if upload.is_lost else found.runs
                into.setdefault(ORDERS, []).append(run(0, first, end - 1, at + 1, written_ms=at))
        return found

    def planned(self, inventory: Inventory) -> PlannedLog:
        topic = TopicView("orders", ORDERS.topic_id, self.config, {0: self.replicas})
        view = with_wal_retention(ClusterView({ORDERS.topic_id: topic}), {"orders": self.settings}, [AGENT])
        broker = LostBroker(1, "cluster-1", (Path("/none"),), (Path("/none"),))
        [log] = plan_broker(broker, view, inventory, Selection(), self.now_ms, self.newest_timestamp_ms)
        return log

    def newest_timestamp_ms(self, extent: Extent) -> int:
        written = range(extent.first_offset // PER_RUN, extent.last_offset // PER_RUN + 1)
        return max(at + self.uploads[at].ahead_ms for at in written)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    flag = st.booleans()
    uploads = st.lists(
        st.builds(Upload, st.sampled_from([0, 0, 3, 9]), flag, flag, st.sampled_from([False] * 9 + [True])), max_size=9
    )
    world = World(
        tuple(draw(uploads)),
        draw(st.sampled_from(["delete", "compact", "compact,delete", ""])),
        draw(st.sampled_from([NO_LIMIT, 2, 5])),
        draw(st.sampled_from([None, AS_LOCAL, NO_LIMIT, 3])),
        ReplicaSet((1,), (1,), 1),
        draw(st.integers(1, 3)),
        draw(st.sampled_from([0, 0, 0, 1, 4, 7, 99])),
        draw(st.integers(0, 8)),
    )
    leader = ReplicaSet((2, 1, 3), (2, 3), 2, log_start=world.log_start)
    nobody = ReplicaSet((2, 1, 3), (), -1)
    replicas = draw(st.sampled_from([world.replicas, leader, nobody]))
    return replace(world, replicas=replicas)


@given(worlds())
def test_what_is_kept_as_long_as_the_log_is_released_below_its_start_alone(world: World) -> None:
    for at in range(len(world.uploads)):
        is_below = PER_RUN * at + PER_RUN <= world.log_start
        assert (world.released(at) is Release.BELOW_LOG_START) == is_below
        assert is_below or not world.is_kept_as_log or world.released(at) is None


@given(worlds())
def test_a_recovered_log_is_the_one_that_the_broker_would_have_or_what_is_missing_is_told(world: World) -> None:
    inventory = world.inventory()
    log = world.planned(inventory)
    plan, row = log.plan, planned_row(log)
    findings = list(check_inventory(inventory, [log]))
    held = {at for extent in plan.extents for at in range(extent.first_offset, extent.last_offset + 1)}
    missing = set(range(world.log_start, world.end)) - held
    if not log.is_restored(plan, plan.gap):
        event("not restored")
        assert missing or not world.end
        assert not world.end or findings, "verify tells what a recovery would miss"
        if log.settings.is_compacted and world.end:
            assert not row.is_complete
        return

    assert min(held, default=world.log_start) >= world.log_start, "what was deleted stays so"
    if plan.gap is None:
        # Behind the last stored record is what nobody wanted stored alone.
        assert all(not upload.is_wanted for upload in world.uploads[plan.end_offset // PER_RUN :])
        missing = {at for at in missing if at < plan.end_offset}
    if log.settings.is_compacted:
        event("compacted, restored")
        assert not missing, "an older value of a key would come back"
    told = {at for gap in plan.declared_gaps for at in range(*gap)} | set(range(plan.start_offset))
    if plan.gap is not None:
        event("gap")
        told |= set(range(plan.gap.from_offset, world.end))
        assert not row.is_complete
        assert any(finding.kind.is_error for finding in findings)
    assert missing <= told
    if world.is_kept_as_log and not any(upload.is_lost for upload in world.uploads):
        event("kept as the log")
        assert not missing, "all that the broker keeps comes back"
        assert (row.is_complete, plan.start_offset) == (True, world.log_start)
    if world.is_kept_as_log and any(one.last_offset >= world.log_start for one in inventory.lost.get(ORDERS, ())):
        event("kept as the log, and lost")
        assert not row.is_complete, "wherever in the log it is"


@given(worlds().map(lambda world: replace(world, policy="delete", chosen_ms=AS_LOCAL)))
def test_where_objects_alone_tell_nothing_that_the_broker_keeps_is_passed_over_in_silence(world: World) -> None:
    """Brokers go by timestamps, which may be in the future, and by whole segments."""
    runs = world.inventory().runs
    log = world.planned(Inventory(runs=runs))
    held = {at for extent in log.plan.extents for at in range(extent.first_offset, extent.last_offset + 1)}
    stored = {at for run in runs.get(ORDERS, ()) for at in range(run.first_offset, run.last_offset + 1)}
    # A lost record may have kept what follows; of that no object tells.
    young = [at for at in stored if world.uploads[at // PER_RUN].ahead_ms + at // PER_RUN >= world.young_ms]
    left_out = {at for at in stored - held if at >= max(world.log_start, min(young, default=world.end))}
    event(f"left out: {bool(left_out)}, a gap: {log.plan.gap is not None}")
    if left_out and log.is_restored(log.plan, log.plan.gap):
        assert log.plan.gap is not None
        assert not planned_row(log).is_complete
