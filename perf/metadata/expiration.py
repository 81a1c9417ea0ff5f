"""What the care for objects costs in CPU: judging them while they are wanted, and releasing as many as are uploaded."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Annotated

import typer

from cli.tables import show, table
from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.records import serde
from metadata_topic.records.states import DELETED
from metadata_topic.store.store import RemoteWalMetadataStore
from perf.metadata.volume import Load, records
from plugin.segment_metadata import RemoteLogSegmentMetadataEntry
from rlm.lifecycle.expiration import ExpirationLimits, ExpirationPlanner, Verdict
from rlm.lifecycle.expiration_task import deletion_record
from rlm.lifecycle.release import NEVER, ClusterView, HeldRange, Tiers

_RUN_S = 5.0
"""The default of remote.wal.expiration.task.interval.ms."""
_HOUR_MS = 3_600_000
_BROKER = 1


def expiration(
    objects_per_s: Annotated[int, typer.Option(min=1, help="Uploaded, and so released, in a second.")] = 100,
    entries: Annotated[int, typer.Option(min=1, help="Partitions in each object.")] = 1000,
    runs: Annotated[int, typer.Option(min=1, help="Rounds of expiration, of 5 s each.")] = 4,
) -> None:
    """Measure which share of a core expiration takes, by the reason for which objects go."""
    load = Load(objects_per_s=objects_per_s, partitions=entries)
    measured = {reason: measure_expiration(load, reason, runs) for reason in REASONS}
    rows = [
        (reason, f"{one.released:,}", f"{one.ms_per_object:.2f}", f"{one.share_of_a_core:.1%}")
        for reason, one in measured.items()
    ]
    title = f"Expiration at {objects_per_s} objects/s of {entries:,} entries"
    show(table("objects go as they are", ">objects", ">ms/object", ">share of a core", rows=rows, title=title))


@dataclass(frozen=True, slots=True)
class Released:
    """What was measured."""

    released: int
    cpu_s: float
    """Of planning alone: the store's and Kafka's requests are not in it."""
    seconds: float
    """How long the load would have taken."""

    @property
    def ms_per_object(self) -> float:
        """From the first look to the guard's verdict."""
        return self.cpu_s * 1000 / max(1, self.released)

    @property
    def share_of_a_core(self) -> float:
        """While the load goes on."""
        return self.cpu_s / self.seconds


class _Tier:
    """Holds all of these partitions' leader epochs: what a real tier's own answer costs comes on top."""

    def __init__(self, held_epochs: Mapping[TopicIdPartition, int]) -> None:
        self._held_epochs = held_epochs

    def holds(self, entry: RemoteLogSegmentMetadataEntry, /) -> bool:
        return self._held_epochs.get(entry.topic_id_partition) == entry.leader_epoch

    def held_range(self, partition: TopicIdPartition, /) -> HeldRange | None:
        epoch = self._held_epochs.get(partition)
        return None if epoch is None else HeldRange(epoch, 0, 2**60)

    def waits_for(self, _topic_id: TopicId, /) -> bool:
        return False


def _view(topics: frozenset[TopicId], partitions: frozenset[TopicIdPartition], reason: str) -> ClusterView:
    start = 2**60 if reason == "below_log_start" else 0
    return ClusterView(
        living=topics,
        retention_ms=dict.fromkeys(topics, 0 if reason == "expired" else NEVER),
        log_start=dict.fromkeys(partitions, start),
    )


REASONS = ("wanted", "expired", "below_log_start", "tiered")


def measure_expiration(load: Load, reason: str, runs: int, cpu_s: Callable[[], float] = time.thread_time) -> Released:
    """Judge a store of finished objects in rounds, as RLMWalExpirationTask does."""
    per_run = int(load.objects_per_s * _RUN_S)
    store = RemoteWalMetadataStore()
    for offset, (key, value) in enumerate(records(load, runs * per_run)):
        store.apply(serde.decode_or_keep_out(key, value), (0, offset))
    epochs = {e.topic_id_partition: e.leader_epoch for segment in store.segments() for e in segment.entries}
    partitions = frozenset(epochs)
    topics = frozenset(partition.topic_id for partition in partitions)
    limits = ExpirationLimits(delete_grace_ms=0, uncommitted_ttl_ms=_HOUR_MS)
    tiers = Tiers([_Tier(epochs if reason == "tiered" else {})])
    planner = ExpirationPlanner(store, tiers, limits, Random(1))  # noqa: S311 - jitter of retries
    planner.cluster_seen(_view(topics, partitions, reason))
    released, spent_s, now_ms = 0, 0.0, 2_000_000_000_000
    for _ in range(runs):
        began_s = cpu_s()
        planned = planner.scan([_BROKER], lambda _id: False, now_ms, per_run)
        for item in planned:
            planner.started(item.segment, now_ms)
        due = planner.due(now_ms, per_run)
        going = [segment_id for segment_id in due if planner.verdict(segment_id, now_ms) is Verdict.DELETE]
        for segment_id in going:
            planner.finished(segment_id)
        spent_s += cpu_s() - began_s
        released += len(going)
        for item in planned:
            store.apply(deletion_record(item.segment, DELETED, now_ms))
        planner.due(now_ms, 0)
    return Released(released, spent_s, runs * _RUN_S)
