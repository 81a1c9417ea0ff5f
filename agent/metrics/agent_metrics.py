"""Metrics that are read from the agent's state when Prometheus asks, instead of being kept up to date."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from agent.wiring.agent_resources import AgentResources
from agent.wiring.kafka_following import KafkaFollowing
from agent.wiring.write_path import WritePath
from metadata_topic.records.topic_doubt import TopicDoubt
from metadata_topic.settings.settings_records import Balancer
from metadata_topic.store.store import RemoteWalMetadataStore, StateTotals
from plugin.prices import NEVER_PAYS
from plugin.segment_metadata import RemoteLogSegmentState
from rlm.lifecycle.gap_declarations import LedGaps

_METADATA_COUNTERS = {
    "gaps": "Times that the metadata topic's retention had cut away what was not read yet",
    "gap_records": "Records of the metadata topic that retention cut away unread",
    "started_over": "Times that the metadata topic was not the one that was read before",
    "files_unreadable": "Files with what is known of objects that could not be used and were removed",
    "fenced": "Records of agents that a newer incarnation had taken the place of, refused",
}
_FRESH_MS = 3_600_000
_SNAPSHOT_OUTCOMES = ("saved", "loaded", "refused", "load_failures", "removed")


def _objects(name: str, meaning: str, totals: Mapping[RemoteLogSegmentState, StateTotals]) -> Iterator[Metric]:
    """Yield gauges of the number and, as far as known, the bytes."""
    objects = GaugeMetricFamily(name, meaning, labels=["state"])
    sizes = GaugeMetricFamily(f"{name}_bytes", f"{meaning}: their bytes", labels=["state"])
    for state, total in totals.items():
        objects.add_metric([state.name], total.segments)
        sizes.add_metric([state.name], total.bytes)
    yield from (objects, sizes)


class StateCollector(Collector):
    """Collects metrics of store requests, upload lag, waiting metadata, and objects by state."""

    def __init__(self, around: AgentResources, kafka: KafkaFollowing, write_path: WritePath, gaps: LedGaps) -> None:
        self._around, self._kafka, self._write_path, self._gaps = around, kafka, write_path, gaps

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics. The registry calls it on the HTTP endpoint's threads."""
        storage, metadata = self._around.relaying.storage, self._kafka.metadata
        counts = storage.request_counts
        operations = {name: getattr(counts, name) for name in ("put", "get", "head", "delete", "list")}
        moved = {"put": counts.put_bytes, "get": counts.get_bytes}
        refused = {
            kind: ceiling.refused if ceiling else 0 for kind, ceiling in (("put", storage.puts), ("get", storage.gets))
        }
        yield _by("remote_wal_store_requests", "Requests to object storage", "operation", operations)
        yield _by("remote_wal_store_bytes", "Bytes moved to and from the store", "operation", moved)
        failed = dict(counts.failures)
        yield _by("remote_wal_store_failures", "Failed attempts of requests to object storage", "reason", failed)
        what = "Calls that the ceiling of requests in a minute kept from the store"
        yield _by("remote_wal_store_requests_refused", what, "kind", refused)
        what = "Listed objects whose keys are not ours"
        yield CounterMetricFamily("remote_wal_store_foreign_objects", what, counts.foreign_objects)
        yield from self._lag()
        yield self._break_even()
        what = "Records that wait to be published"
        yield GaugeMetricFamily("remote_wal_metadata_pending", what, self._around.publisher.pending)
        yield from _objects(
            "remote_wal_segments", "Combined segments that metadata knows", metadata.store.count_by_state()
        )
        yield from _objects(
            "remote_wal_archived_objects", "Archive objects that metadata knows", metadata.archive.count_by_state()
        )
        what = "Size of the file with what is known of objects, in the state directory"
        yield GaugeMetricFamily("remote_wal_metadata_file_bytes", what, metadata.store.file_bytes)
        yield from self._metadata()

    def _metadata(self) -> Iterator[Metric]:
        counters = self._kafka.metadata.counters
        for name, meaning in _METADATA_COUNTERS.items():
            yield CounterMetricFamily(f"remote_wal_metadata_{name}", meaning, counters.get(name, 0))
        doubts = GaugeMetricFamily(
            "remote_wal_metadata_topic_in_doubt",
            "1 while the metadata topic was replaced, lost its end, was cut unread, or has unreadable records: then "
            "nothing that it does not tell is concluded",
            labels=["reason"],
        )
        for doubt in TopicDoubt:
            doubts.add_metric([doubt.value], counters.get(f"doubt_{doubt}", 0))
        yield doubts
        yield GaugeMetricFamily(
            "remote_wal_agent_fenced",
            "1 while a newer incarnation of this agent is registered: then nothing is uploaded, all bytes go inline",
            int(self._kafka.incarnation.fenced_because is not None),
        )
        outcomes = {outcome: counters.get(f"snapshots_{outcome}", 0) for outcome in _SNAPSHOT_OUTCOMES}
        what = "Snapshots of the metadata store, by what was done"
        yield _by("remote_wal_metadata_snapshots", what, "outcome", outcomes)

    def _break_even(self) -> GaugeMetricFamily:
        size = self._write_path.price.break_even_bytes
        what = "Size from which on an object is cheaper than its bytes inline; +Inf: nothing led here is linked by cost"
        value = math.inf if size == NEVER_PAYS else size
        return GaugeMetricFamily("remote_wal_link_break_even_bytes", what, math.nan if value is None else value)

    def _lag(self) -> Iterator[Metric]:
        status = self._write_path.manager.status().values()
        for name, meaning, value in (
            ("led_partitions", "Partitions that are uploaded from here", len(status)),
            (
                "upload_lag_bytes",
                "Bytes in the logs of led partitions that are not stored",
                sum(partition.lag_bytes for partition in status),
            ),
            (
                "oldest_unstored_seconds",
                "Age of the oldest byte that is not yet durable",
                max((partition.lag_age_ms for partition in status), default=0) / 1000,
            ),
            (
                "backlog_offsets",
                "Offsets that were passed over, as their log was far behind, and are uploaded beside what is new",
                sum(partition.backlog_offsets for partition in status),
            ),
            (
                "missing_offsets",
                "Offsets of led partitions that no object holds or will hold, as was declared: a recovered log lacks "
                "them",
                self._gaps.offsets,
            ),
            (
                "held_offsets",
                "Offsets that led logs lost without an election, and that object storage holds until somebody decides",
                self._gaps.held_offsets,
            ),
        ):
            yield GaugeMetricFamily(f"remote_wal_{name}", meaning, value)


class ImbalanceCollector(Collector):
    """Collects the brokers' imbalance that the balancer has written into the settings topic."""

    def __init__(self, balancer: Callable[[], Balancer | None], wall_ms: Callable[[], int]) -> None:
        self._balancer, self._wall_ms = balancer, wall_ms

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics. The registry calls it on the HTTP endpoint's threads."""
        found = GaugeMetricFamily(
            "remote_wal_imbalance_ratio",
            "How far the fullest and the emptiest broker are apart, of the mean, as `reassign balance` measured it in "
            "the last hour",
            labels=["load"],
        )
        balancer = self._balancer()
        if balancer is not None and self._wall_ms() - balancer.measured_ms < _FRESH_MS:
            for load, value in balancer.apart_in.items():
                found.add_metric([load], value)
        yield found


def _by(name: str, meaning: str, label: str, values: Mapping[str, float]) -> CounterMetricFamily:
    counter = CounterMetricFamily(name, meaning, labels=[label])
    for value, count in values.items():
        counter.add_metric([value], count)
    return counter


def object_summary(store: RemoteWalMetadataStore, now_ms: int) -> dict[str, Any]:
    """Return counts, bytes and ages: `objects` by owner and state, `totals` by state.

    An age is the time in ms since the last record of a segment, so since it has its state. It is never negative,
    although clocks of hosts differ. Deleted segments are only in the totals. Goes through all segments, and decodes no
    entries.
    """
    return {
        "objects": [
            {
                "broker_id": row.broker_id,
                "caretaker_broker_id": store.caretaker_of(row.broker_id),
                "state": row.state.name,
                "segments": row.segments,
                "bytes": row.bytes,
                "oldest_age_ms": max(0, now_ms - row.oldest_ms),
                "newest_age_ms": max(0, now_ms - row.newest_ms),
            }
            for row in store.tally()
        ],
        "totals": [
            {"state": state.name, "segments": total.segments, "bytes": total.bytes}
            for state, total in store.count_by_state().items()
        ],
    }
