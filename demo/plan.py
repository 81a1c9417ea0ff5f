"""What a demonstration does: topics, producers, amounts, faults. Chosen before anything is started."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from local_cluster.object_store.store_spec import OwnStore
from local_cluster.workload.ledger import ProducerPlan, TransactionPlan
from local_cluster.zones import ZoneGateways

GATEWAYS = ZoneGateways({1: "az1", 2: "az2", 3: "az3"}, durable=True, pipelined=True)


LEDGER_TOPIC = "numbered-records"
PROBE_TOPIC = "heartbeat"


@dataclass(frozen=True, slots=True)
class Way:
    """How a producer reaches the brokers. Each way has its own topic, so that figures can be told apart."""

    name: str
    acks: str
    topic: str
    by_agents: bool = False
    """Whether its clients come by agents, which hold the answers to acks=all."""


WAYS = (
    Way("acks=1", "1", "perf-acks-1"),
    Way("acks=all", "all", "perf-acks-all"),
    Way("acks=all by agents", "all", "perf-acks-all-by-agents", by_agents=True),
)
ALL_TOPICS: Mapping[str, int] = {LEDGER_TOPIC: 3, PROBE_TOPIC: 1, **{way.topic: 3 for way in WAYS}}
"""The partitions of each topic that is made. Their leaders are spread over the brokers."""


@dataclass(frozen=True, slots=True)
class PerformanceRun:
    """One run of Kafka's producer performance tool. Without a rate it writes as fast as it can."""

    way: Way
    records: int
    records_per_s: int = -1
    config: Mapping[str, str] = field(default_factory=dict)
    """The producer's; otherwise it has Kafka's defaults."""


BULK_CONFIG: Mapping[str, str] = {"batch.size": "262144", "linger.ms": "20"}
"""A batch size for throughput. With Kafka's default of 16 KB a small machine is busy with requests."""
_LEDGER_BYTES = 4000


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """All amounts and times of one demo."""

    paced: tuple[PerformanceRun, ...] = tuple(PerformanceRun(way, 20_000, 2000) for way in WAYS)
    """For latencies."""
    saturated: tuple[PerformanceRun, ...] = tuple(PerformanceRun(way, 250_000, config=BULK_CONFIG) for way in WAYS)
    """For throughput and cost."""
    ledger_records_per_s: float = 100.0
    """How much each numbered producer writes."""
    ledger_linger_ms: int = 300
    """Batches as bulk producers send them: large enough that an object is cheaper than its bytes across zones."""
    store_outage_s: float = 10.0
    calm_s: float = 5.0
    """Between two faults, so that each one's effects stand alone."""

    def ledger_producers(self) -> tuple[ProducerPlan, ...]:
        """The plans of the ledger's producers: every acks, every codec, and transactions."""
        rate = self.ledger_records_per_s
        client = {"linger.ms": self.ledger_linger_ms}

        def producer(name: str, acks: str = "all", codec: str = "none") -> ProducerPlan:
            return ProducerPlan(name, acks, codec, _LEDGER_BYTES, rate, client_config=client, sends_events=True)

        transactions = TransactionPlan(records=max(10, round(rate)), abort_every=4)
        return (
            producer("acks=1", acks="1"),
            producer("acks=all"),
            *(producer(codec, codec=codec) for codec in ("gzip", "snappy", "lz4", "zstd")),
            dataclasses.replace(producer("transactions"), transaction=transactions),
        )


def plan_for(store: OwnStore, *, quick: bool = False) -> DemoPlan:
    """Return the demo's amounts for a store; an S3 server on this machine takes fewer requests than a directory."""
    plan = DemoPlan()
    if quick:
        plan = DemoPlan(
            paced=tuple(PerformanceRun(way, 3000, 1000) for way in WAYS),
            # Agents know after a second or two that nothing else comes to a topic: in a short run that is half of it.
            saturated=tuple(
                PerformanceRun(way, 120_000 if way.by_agents else 40_000, config=BULK_CONFIG) for way in WAYS
            ),
            store_outage_s=4.0,
            calm_s=1.0,
        )
    if store is not OwnStore.LOCAL:
        slower = (dataclasses.replace(run, records=run.records // 2, records_per_s=4000) for run in plan.saturated)
        plan = dataclasses.replace(plan, saturated=tuple(slower), ledger_records_per_s=50.0, ledger_linger_ms=600)
    return plan
