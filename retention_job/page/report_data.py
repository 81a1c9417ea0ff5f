"""The contents of a report as plain values: everything that Spark's cluster sends to the driver, and bounded."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from retention_job.findings.apply import Handover

MAX_FINDINGS: Final = 5_000
"""The maximum in the page; the table `findings` has all."""
MAX_TOPICS: Final = 500


@dataclass(frozen=True, slots=True)
class Finding:
    """A row of `schemas.FINDINGS`."""

    kind: str
    severity: str
    topic: str | None
    partition: int | None
    segment: str | None
    detail: str
    age_ms: int | None
    size_bytes: int | None
    heal: str


@dataclass(frozen=True, slots=True)
class FindingCount:
    """How many findings of one kind a report has."""

    kind: str
    severity: str
    count: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class DayCosts:
    """Dollars of one day, all topics and brokers together."""

    day: int
    """Days since 1970, UTC."""
    parts: Mapping[str, float]
    """Dollars by the names in `cost_tables.DOLLARS` and `CLIENT_PARTS`, as far as they are known."""
    stock_usd: float | None
    """The cost in stock Kafka of replication, and of clients that connect through gateways."""
    tiered_storage_usd: float
    has_usage: Mapping[int, bool] = field(default_factory=dict)
    """By broker: whether its usage records explain what it uploaded on that day. Brokers that did neither are left
    out."""

    @property
    def is_complete(self) -> bool:
        """Whether the usage of all brokers that uploaded is known."""
        return all(self.has_usage.values())

    @property
    def date(self) -> str:
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=self.day)).date().isoformat()

    @property
    def remote_wal_usd(self) -> float:
        return sum(self.parts.values())

    @property
    def saved_usd(self) -> float | None:
        """The saving; None if usage records do not cover the whole day."""
        return self.stock_usd - self.remote_wal_usd if self.stock_usd is not None and self.is_complete else None


@dataclass(frozen=True, slots=True)
class TopicCosts:
    """A topic's figures for the report's period. None is unknown."""

    topic: str
    upload_bytes: float
    linked_bytes: float | None
    inline_bytes: float | None
    remote_wal_usd: float | None
    stock_usd: float | None
    unknown_days: int
    """The number of brokers' days without a usage record."""

    @property
    def saved_usd(self) -> float | None:
        if self.remote_wal_usd is None or self.stock_usd is None:
            return None
        return self.stock_usd - self.remote_wal_usd


@dataclass(frozen=True, slots=True)
class BrokerCosts:
    """A broker's figures for the report's period."""

    broker_id: int
    amounts: Mapping[str, float | None]
    remote_wal_usd: float | None
    stock_usd: float | None


@dataclass(frozen=True, slots=True)
class ClientZone:
    """Figures of one zone's clients that connect through gateways, for the report's period."""

    zone: str
    amounts: Mapping[str, float]
    """Amounts by `cost_tables.CLIENT_AMOUNTS`."""
    dollars: Mapping[str, float]
    """Dollars by `cost_tables.CLIENT_DOLLARS`."""


@dataclass(frozen=True, slots=True)
class Bar:
    label: str
    count: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """The part of a partition's log that no object holds, at the time of the run."""

    topic: str
    partition: int
    log_end_offset: int
    stored_up_to: int | None
    """The offset after the last one that an object holds; None if no object holds any."""
    left_out: int
    """Offsets from `stored_up_to` on that were declared as no loss: mostly because nobody wants them stored."""
    records: int | None
    """The other offsets, which are still to be stored or of unknown state. None if nothing is known of any."""


@dataclass(frozen=True, slots=True)
class GroupReads:
    """One consumer group, spread evenly over the zones, that reads each replicated record once, from leaders.

    Agents see no consumers that connect to brokers, so this is the possible cost of any of them, which follower
    fetching saves.
    """

    zones: int
    crossed_bytes: float
    crossed_usd: float


@dataclass(frozen=True, slots=True)
class Costs:
    """The part of a report about money."""

    prices_source: str
    prices_confirmed: str
    read_fee_gb: float
    seconds: float
    """The length of the time that the amounts cover."""
    days: Sequence[DayCosts]
    topics: Sequence[TopicCosts]
    brokers: Sequence[BrokerCosts]
    topics_left_out: int = 0
    clients: Sequence[ClientZone] = ()
    """Empty if no agent reported any."""
    group: "GroupReads | None" = None
    """None if no follower is known to have been given anything."""

    @property
    def parts(self) -> dict[str, float]:
        total: dict[str, float] = {}
        for day in self.days:
            for name, usd in day.parts.items():
                total[name] = total.get(name, 0.0) + usd
        return total

    @property
    def compared(self) -> Sequence[DayCosts]:
        """The days with complete figures, over which the saving is computed."""
        return [day for day in self.days if day.saved_usd is not None]

    @property
    def left_out(self) -> Sequence[DayCosts]:
        """The days without complete figures, which no sum includes."""
        return [day for day in self.days if day.saved_usd is None]

    @property
    def remote_wal_usd(self) -> float:
        """The known cost of all days with remote WAL, in dollars."""
        return sum(day.remote_wal_usd for day in self.days)

    @property
    def stock_usd(self) -> float | None:
        """The known cost of all days in stock Kafka, in dollars; None without any usage record."""
        known = [day.stock_usd for day in self.days if day.stock_usd is not None]
        return sum(known) if known else None

    @property
    def compared_usd(self) -> tuple[float, float] | None:
        """The costs of the compared days, with remote WAL and with stock Kafka; None without such days."""
        if not self.compared:
            return None
        return sum(day.remote_wal_usd for day in self.compared), sum(day.stock_usd or 0.0 for day in self.compared)

    @property
    def saved_usd(self) -> float | None:
        """The saving over the compared days; None without such days."""
        return self.compared_usd[1] - self.compared_usd[0] if self.compared_usd is not None else None

    @property
    def left_out_text(self) -> str:
        """A text on which days the sums lack, and why; empty if they have all."""
        if not self.left_out:
            return ""
        days = ", ".join(day.date for day in self.left_out[:3]) + (", …" if len(self.left_out) > 3 else "")
        return (
            f"{len(self.left_out)} of {len(self.days)} days ({days}) are in no sum: usage records do not tell of every "
            "broker there, or not yet of what was uploaded last"
        )


@dataclass(frozen=True, slots=True)
class Objects:
    """The part of a report about stored objects."""

    sizes: Sequence[Bar] = ()
    lags: Sequence[PartitionLag] = ()
    """The partitions with the largest lags."""
    not_wanted_offsets: int = 0
    """The number of offsets in logs that were declared as not wanted in objects: no loss."""


@dataclass(frozen=True, slots=True)
class ReportData:
    run_id: str
    now_ms: int
    cluster_id: str | None
    is_incremental: bool
    records_read: int
    finding_counts: Sequence[FindingCount]
    findings: Sequence[Finding]
    """The findings, the gravest first, at most MAX_FINDINGS."""
    quarantine: Mapping[str, int]
    """The number of records that were not understood, by reason."""
    costs: Costs
    objects: Objects
    handover: Handover | None = None

    @property
    def findings_left_out(self) -> int:
        return sum(count.count for count in self.finding_counts) - len(self.findings)

    def severity_count(self, severity: str) -> int:
        return sum(count.count for count in self.finding_counts if count.severity == severity)


def report_json(data: ReportData) -> dict[str, object]:
    """Return the report's fields and sums for JSON. Dollars and bytes are not rounded."""
    told = dataclasses.asdict(data)
    costs = told["costs"]
    costs["parts"] = data.costs.parts
    for name in ("remote_wal_usd", "stock_usd", "saved_usd"):
        costs[name] = getattr(data.costs, name)
    for day, plain in zip(data.costs.days, costs["days"], strict=True):
        plain |= {name: getattr(day, name) for name in ("date", "remote_wal_usd", "saved_usd", "is_complete")}
    told["findings_left_out"] = data.findings_left_out
    return told
