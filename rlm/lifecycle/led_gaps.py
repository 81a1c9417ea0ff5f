"""What of the logs led here object storage cannot give back, as was declared: for describe, doctor and an alarm."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.records.declared_gaps import DeclaredGap
from metadata_topic.records.leader_epochs import LeaderEpochChain
from metadata_topic.store.store import RemoteWalMetadataStore
from rlm.write_path.core.led_partition import PartitionStatus

_SHOWN = 100


class LedGaps:
    """Declared gaps that still matter: a gap is over once records behind it were released. Any thread may ask."""

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
        """The first hundred, as JSON."""
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
