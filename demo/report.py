"""What came of a run: figures from counts and prices, the promises, and the report as JSON."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from demo.measurement import LINKED, Moment
from local_cluster.kafka_tools import ProducerPerformance
from local_cluster.object_store.store_spec import OwnStore
from local_cluster.workload.ledger import LedgerReport
from plugin.prices import BYTES_PER_GB, Prices

MB_PER_MIB = 1.048576
"""Kafka's tools say MB and mean MiB."""

_FOLLOWERS = 2
STAGES = (
    "queued",
    "combined",
    "uploaded",
    "announced",
    "fetched",
    "hydrated",
    "spliced",
    "link_wait",
    "high_watermark",
)
"""In the order in which a batch passes them."""


@dataclass(frozen=True, slots=True)
class ZoneBytes:
    """Bytes between brokers of different zones, requests and responses, with links and without."""

    with_links: int
    """On the agents' connections, counted at the leaders' ends; the publishing of metadata added in full."""
    stock: int
    """Bytes that the same frames would have had without links. Replication of the agents' own topics is left out."""
    metadata: int
    """Written to the agents' own topics."""

    @property
    def ratio(self) -> float | None:
        """The bytes with links, relative to those of stock Kafka; None when nothing was replicated."""
        return self.with_links / self.stock if self.stock else None


@dataclass(frozen=True, slots=True)
class DollarsPerGb:
    """Dollars for a gigabyte (10^9 bytes) that producers wrote, as it is in the log."""

    remote_wal: float
    remote_wal_requests: float
    """Its part for requests to the store, upload and retrieval."""
    remote_wal_zone: float
    """Its part for what still crosses zones."""
    stock: float


@dataclass(frozen=True, slots=True)
class Traffic:
    """The figures of a phase of the demo, or of all of it; the names are those of the JSON."""

    traffic_seconds: float
    produced_bytes: int
    zone_bytes: ZoneBytes
    linked_bytes: int
    """Record bytes that followers were given as links, once per follower."""
    inline_bytes: int
    packed_bytes: Mapping[str, int]
    """Of records that crossed inline and packed, to followers and between agents for clients: "before" and "after"."""
    objects: int
    requests: Mapping[str, int]
    """By operation, "put" and "get"."""
    request_bytes: Mapping[str, int]
    cost_per_gb: DollarsPerGb | None
    """None when nothing was produced."""
    stages_ms: Mapping[str, Mapping[str, float]]

    @property
    def link_share(self) -> float | None:
        """The share of record bytes that followers got as links; None if they got none."""
        given = self.linked_bytes + self.inline_bytes
        return self.linked_bytes / given if given else None

    def to_json(self) -> dict[str, object]:
        """Return the figures for the report's JSON."""
        figures = dataclasses.asdict(self)
        figures["zone_bytes"]["ratio"] = self.zone_bytes.ratio
        return {**figures, "link_share": self.link_share}


def traffic_between(
    before: Moment, after: Moment, prices: Prices, store: OwnStore, produced_bytes: int | None = None
) -> Traffic:
    """Calculate the figures between two moments. `produced_bytes` None: as the agents read them from the logs."""
    grown = after.totals.subtract(before.totals)
    metadata = after.metadata_log_bytes - before.metadata_log_bytes
    with_links, stock = int(grown.zone_bytes) + metadata, max(0, int(grown.stock_bytes) - _FOLLOWERS * metadata)
    zone_bytes = ZoneBytes(with_links, stock, metadata)
    if produced_bytes is None:
        produced_bytes = int(grown.of("remote_wal_appended_bytes_total"))
    requests = {"put": int(grown.puts), "get": int(grown.gets)}
    moved = grown.sum_by("remote_wal_store_bytes_total", "operation")
    request_bytes = {operation: int(moved.get(operation, 0)) for operation in requests}
    spent = requests_usd(prices, store, requests, request_bytes)
    stages = grown.stages_ms()
    return Traffic(
        traffic_seconds=round(after.at_s - before.at_s, 1),
        produced_bytes=produced_bytes,
        zone_bytes=zone_bytes,
        linked_bytes=int(grown.linked_bytes),
        inline_bytes=int(grown.inline_bytes),
        packed_bytes={form: int(grown.of("remote_wal_packed_bytes_total", form=form)) for form in ("before", "after")},
        objects=int(grown.of("remote_wal_uploaded_segments_total")),
        requests=requests,
        request_bytes=request_bytes,
        cost_per_gb=cost_per_gb(zone_bytes, produced_bytes, spent, prices.zone_crossing_gb),
        stages_ms={
            stage: {figure: round(value, 2) for figure, value in stages[stage].items()}
            for stage in STAGES
            if stage in stages
        },
    )


def requests_usd(prices: Prices, store: OwnStore, requests: Mapping[str, int], moved: Mapping[str, int]) -> float:
    """Return what requests would cost at a cloud's store, if objects are read in other zones than written.

    The directory costs what S3 Express does, an S3 server what S3 Standard does.
    """
    paid = prices.s3_express if store is OwnStore.LOCAL else prices.s3_standard
    return paid.requests_across_usd(requests["put"], requests["get"], moved["put"], moved["get"])


def moved_between(before: Moment, after: Moment, topic: str) -> dict[str, int]:
    """Return the record bytes of a topic that followers got between two moments, by LINKED or inline reason, largest
    first."""
    grown = after.moved - before.moved
    return {way: size for (its, way), size in grown.most_common() if its == topic}


def cost_per_gb(
    zone_bytes: ZoneBytes, produced_bytes: int, requests_usd: float, crossing_usd_per_gb: float
) -> DollarsPerGb | None:
    """Return dollars per gigabyte produced; None when nothing was produced."""
    if produced_bytes <= 0:
        return None
    produced_gb = produced_bytes / BYTES_PER_GB
    requests = requests_usd / produced_gb
    zone = zone_bytes.with_links / BYTES_PER_GB * crossing_usd_per_gb / produced_gb
    stock = zone_bytes.stock / BYTES_PER_GB * crossing_usd_per_gb / produced_gb
    return DollarsPerGb(requests + zone, requests, zone, stock)


@dataclass(frozen=True, slots=True)
class FaultSeen:
    fault: str
    target: str
    at_s: float
    """Since records began to flow."""
    seconds: float
    seen: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Records:
    """Counts of records of all producers: the ledger's, and those of Kafka's producer performance tool."""

    sent: int
    acknowledged: int
    consumed: int
    aborted: int
    """Records of aborted transactions: sent, and rightly not consumed."""
    lost: int
    """Acknowledged with acks=all, or by a commit, and not consumed."""
    lost_acks_1: int
    """Acknowledged by a leader that was killed before it had replicated them: acks=1 allows it."""
    reordered: int
    duplicates: int
    """Records of producers with acks=all, which are idempotent."""
    altered: int
    """Other bytes, or another offset, than were sent and acknowledged."""
    aborted_but_read: int
    foreign: int
    """Read, and sent by nobody."""


def records_of(ledger: LedgerReport, acks_1: Sequence[str], sent: int, acknowledged: int, consumed: int) -> Records:
    """Return the ledger's counts, with those of producer performance added."""
    every = ledger.producers
    strict = [producer for producer in every if producer.name not in acks_1]
    return Records(
        sent=ledger.sent + sent,
        acknowledged=ledger.acknowledged + acknowledged,
        consumed=ledger.consumed + consumed,
        aborted=sum(producer.aborted for producer in every),
        lost=sum(producer.lost for producer in strict) + max(0, acknowledged - consumed),
        lost_acks_1=sum(producer.lost for producer in every if producer.name in acks_1),
        reordered=sum(producer.reordered for producer in every),
        duplicates=sum(producer.duplicates for producer in strict),
        # A producer with acks=1 sends again after a lost answer, and so may hold a later offset than the first copy's.
        altered=sum(producer.altered for producer in every) + sum(producer.at_wrong_offset for producer in strict),
        aborted_but_read=sum(producer.aborted_but_read for producer in every),
        foreign=ledger.foreign_records,
    )


@dataclass(frozen=True, slots=True)
class Replicas:
    """The result of comparing all replicas of all topics byte by byte."""

    partitions: int
    bytes: int
    """Bytes of one replica of each partition."""
    differences: tuple[str, ...] = ()

    @property
    def identical(self) -> bool:
        return self.partitions > 0 and not self.differences


@dataclass(frozen=True, slots=True)
class ProducerRun:
    """The figures of one run of Kafka's producer performance tool."""

    phase: str
    way: str
    result: ProducerPerformance
    moved: Mapping[str, int]
    """Record bytes that followers were given of its topic, LINKED or by why they went inline, largest first."""

    @property
    def link_share(self) -> float | None:
        """The share of record bytes that followers got as links; None when they got none."""
        given = sum(self.moved.values())
        return self.moved.get(LINKED, 0) / given if given else None


@dataclass(frozen=True, slots=True)
class Report:
    store: OwnStore
    kafka_version: str
    total_s: float
    load_s: float
    records: Records
    replicas: Replicas
    whole: Traffic
    phases: Mapping[str, Traffic]
    producers: tuple[ProducerRun, ...]
    faults: tuple[FaultSeen, ...]
    fault_counters: Mapping[str, int] = field(default_factory=dict)

    @property
    def broken_promises(self) -> tuple[str, ...]:
        """A line for each promise that was broken; empty when all held."""
        records = self.records
        found = [
            f"{count} {what}"
            for count, what in (
                (records.lost, "records were acknowledged with acks=all, and not consumed"),
                (records.reordered, "records were consumed out of order"),
                (records.duplicates, "records of idempotent producers were consumed twice"),
                (records.altered, "records were altered"),
                (records.aborted_but_read, "records of aborted transactions were consumed"),
                (records.foreign, "records were consumed that nobody sent"),
            )
            if count
        ]
        if not self.replicas.identical:
            found.append("replicas differ: " + ("; ".join(self.replicas.differences) or "none was compared"))
        return tuple(found)

    def to_document(self) -> dict[str, object]:
        """Return the report's published form, for programs."""
        producers = [
            {"phase": run.phase, "way": run.way, "moved_bytes": run.moved, **dataclasses.asdict(run.result)}
            for run in self.producers
        ]
        return {
            "store": str(self.store),
            "kafka_version": self.kafka_version,
            "seconds": {"total": round(self.total_s, 1), "load": round(self.load_s, 1)},
            "records": dataclasses.asdict(self.records),
            "replicas_identical": self.replicas.identical,
            "replicas": dataclasses.asdict(self.replicas),
            **self.whole.to_json(),
            "phases": {name: traffic.to_json() for name, traffic in self.phases.items()},
            "latency_ms": {"producers": producers, "stages": self.whole.stages_ms},
            "faults": [dataclasses.asdict(fault) for fault in self.faults],
            "fault_counters": dict(self.fault_counters),
            "broken_promises": list(self.broken_promises),
        }
