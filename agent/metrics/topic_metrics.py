"""Metrics by topic, for the largest topics only, because each costs the monitoring several series."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kafka_log.topic_partition import TopicId, TopicIdPartition
from replication.wire.metrics import PartitionTraffic
from rlm.write_path.core.led_partition import PartitionStatus

Status = Mapping[TopicIdPartition, PartitionStatus]
Traffic = Mapping[TopicIdPartition, PartitionTraffic]


@dataclass(slots=True)
class TopicState:
    """The summed state of one topic's partitions that are led here."""

    partitions: int = 0
    lag_bytes: int = 0
    oldest_ms: int = 0
    """The age of the oldest byte that is not stored."""
    linked_bytes: int = 0
    inline_bytes: int = 0
    unsaved_bytes: int = 0
    """Inline bytes that links could have saved."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Inline bytes by `InlineReason`."""
    pack_ratio: float = 1.0
    """How many inline bytes cross zones as one."""

    @property
    def moved_bytes(self) -> int:
        return self.linked_bytes + self.inline_bytes


def by_topic(
    status: Status, traffic: Traffic, pack_ratio: Callable[[TopicId], float] = lambda _topic: 1.0
) -> dict[str, TopicState]:
    """Return the states by topic, sorted by moved bytes, then by waiting bytes."""
    states: defaultdict[str, TopicState] = defaultdict(TopicState)
    for partition, one in status.items():
        state, moved = states[one.topic], traffic.get(partition)
        state.partitions += 1
        state.pack_ratio = pack_ratio(partition.topic_id)
        state.lag_bytes += one.lag_bytes
        state.oldest_ms = max(state.oldest_ms, one.lag_age_ms)
        if moved is not None:
            state.linked_bytes += moved.linked_bytes
            state.inline_bytes += moved.inline_bytes
            state.unsaved_bytes += moved.unsaved_bytes
            state.reasons.update(moved.reasons.copy())
    return dict(sorted(states.items(), key=lambda item: (-item[1].moved_bytes, -item[1].lag_bytes, item[0])))


class TopicCollector(Collector):
    """Collects metrics of the largest topics. `status` and `traffic` are called on any thread."""

    def __init__(
        self,
        status: Callable[[], Status],
        traffic: Callable[[], Traffic],
        held_back_s: Callable[[], Mapping[str, float | None]],
        most: int = 20,
    ) -> None:
        """At most `most` topics are shown, because each costs the monitoring several series (guessed).

        `held_back_s` returns how long links hold a topic's records back, by topic; None before a look.
        """
        self._status = status
        self._traffic = traffic
        self._held_back_s = held_back_s
        self._most = most

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics. The registry calls it on the HTTP endpoint's threads."""
        lag = GaugeMetricFamily(
            "remote_wal_topic_lag_bytes", "Bytes of a topic led here that are not stored", labels=["topic"]
        )
        oldest = GaugeMetricFamily(
            "remote_wal_topic_oldest_unstored_seconds",
            "Age of a topic's oldest byte that is not stored",
            labels=["topic"],
        )
        moved = CounterMetricFamily(
            "remote_wal_topic_record_bytes",
            "Record bytes of a topic given to followers, linked or inline and why; the largest topics alone",
            labels=["topic", "path", "reason"],
        )
        unsaved = CounterMetricFamily(
            "remote_wal_topic_unsaved_bytes",
            "Record bytes of a topic that went inline where links would have saved money, whatever kept them from it",
            labels=["topic"],
        )
        held_back = GaugeMetricFamily(
            "remote_wal_topic_link_held_back_seconds",
            "How long links held records back at a topic's producers, as the last look found; NaN: there was none; "
            "the largest topics alone",
            labels=["topic"],
        )
        held_back_s = self._held_back_s()
        for topic, state in list(by_topic(self._status(), dict(self._traffic())).items())[: self._most]:
            lag.add_metric([topic], state.lag_bytes)
            oldest.add_metric([topic], state.oldest_ms / 1000)
            moved.add_metric([topic, "linked", ""], state.linked_bytes)
            for reason, size in state.reasons.items():
                moved.add_metric([topic, "inline", reason], size)
            unsaved.add_metric([topic], state.unsaved_bytes)
            if topic in held_back_s:
                seconds = held_back_s[topic]
                held_back.add_metric([topic], math.nan if seconds is None else seconds)
        yield from (lag, oldest, moved, unsaved, held_back)
