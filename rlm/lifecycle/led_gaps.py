"""Reports the offsets of led logs that object storage lacks, and those that only it has, for describe and alarms."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.records.declared_gaps import DeclaredGap
from metadata_topic.records.leader_epochs import LeaderEpochChain
from metadata_topic.records.offset_ranges import joined_ranges
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.segment_metadata import RemoteWalLogSegmentMetadata
from rlm.write_path.core.led_partition import PartitionStatus

_SHOWN = 100


class LedGaps:
    """Declared gaps that still matter: a gap ends once records behind it were released. Any thread may ask."""

    def __init__(
        self,
        store: RemoteWalMetadataStore,
        led: Callable[[], Mapping[TopicIdPartition, PartitionStatus]],
        chain_of: Callable[[TopicIdPartition], LeaderEpochChain | None],
    ) -> None:
        self._store = store
        self._led = led
        self._chain_of = chain_of

    def describe(self) -> list[dict[str, Any]]:
        """Return the first hundred gaps as JSON."""
        found: list[dict[str, Any]] = []
        for status, gap in self._gaps():
            if len(found) == _SHOWN:
                break
            found.append(
                {
                    "topic": status.topic,
                    "partition": status.partition,
                    "from_offset": gap.from_offset,
                    "to_offset": gap.to_offset,
                    "reason": gap.reason.name.lower(),
                }
            )
        return found

    @property
    def offsets(self) -> int:
        """How many offsets are missing."""
        return sum(gap.to_offset - gap.from_offset for _, gap in self._gaps())

    def describe_held(self) -> list[dict[str, Any]]:
        """Return what logs lost and object storage holds until somebody decides: the first hundred partitions, as
        JSON.
        """
        found: list[dict[str, Any]] = []
        for status, runs in self._held():
            if len(found) == _SHOWN:
                break
            found.append(
                {
                    "topic": status.topic,
                    "partition": status.partition,
                    "from_offset": runs[0].entry.first_offset,
                    "to_offset": max(run.entry.last_offset for run in runs) + 1,
                    "restore": f"remote-wal held restore {status.topic} {status.partition}",
                    "give_up": f"remote-wal held give-up {status.topic} {status.partition}",
                }
            )
        return found

    @property
    def held_offsets(self) -> int:
        """How many offsets are held."""
        return sum(
            end - begin
            for _, runs in self._held()
            for begin, end in joined_ranges((run.entry.first_offset, run.entry.last_offset + 1) for run in runs)
        )

    def _held(self) -> Iterator[tuple[PartitionStatus, list[RemoteWalLogSegmentMetadata]]]:
        led = self._led()
        for partition in self._store.local_losses():
            if partition in led and (runs := self._store.held_runs(partition)):
                yield led[partition], runs

    def _gaps(self) -> Iterator[tuple[PartitionStatus, DeclaredGap]]:
        for partition, status in self._led().items():
            lost = [gap for gap in self._store.declared_gaps(partition) if gap.reason.is_loss]
            chain = self._chain_of(partition) if lost else None
            if chain is None:
                continue
            released = self._store.released_up_to(partition, chain)
            for gap in lost:
                begin, end = max(gap.from_offset, released), gap.end_in(chain)
                if begin < end:
                    yield status, replace(gap, from_offset=begin, to_offset=end)
