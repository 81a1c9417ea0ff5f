"""What writes and reads while faults strike: Kafka's verifiable clients on one topic, numbered producers of several
kinds on another, and one for each topic of which records go away. Where clients come by gateways, each kind is in
another zone.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from local_cluster.cluster import LocalCluster
from local_cluster.cluster_admin import LINKED_AND_KEPT, set_topics
from local_cluster.workload.ledger import LedgerReport, LedgerWorkload, ProducerPlan, ProducerReport, TransactionPlan
from tests.soak.changed_topics import ChangedTopics
from tests.soak.transactional_copier import TransactionalCopier
from tests.soak.verifiable_clients import VerifiableClients

VERIFIABLE_TOPIC = "soak-verifiable"
LEDGER_TOPIC = "soak-ledger"
COPY_TOPIC = "soak-copied"
TOPICS = (VERIFIABLE_TOPIC, LEDGER_TOPIC, COPY_TOPIC)
_COPIED_PARTITION = 0
_PARTITIONS = 3
_ONE_BY_ONE = {"max.in.flight.requests.per.connection": 1}
"""With several in flight, librdkafka takes a new producer epoch when one of them fails, and sends again under that what
may be in the log already: doubled by the client. Kafka's own clients, the verifiable ones, have their five in flight.
"""
_PLANS = (
    ProducerPlan("plain", records_per_s=100, client_config=_ONE_BY_ONE),
    ProducerPlan("zstd", codec="zstd", records_per_s=100, payload_bytes=300, client_config=_ONE_BY_ONE),
    ProducerPlan("transactions", codec="lz4", records_per_s=50, transaction=TransactionPlan(20, 3)),
)


@dataclass(frozen=True, slots=True)
class Records:
    ledger: LedgerReport
    send_errors: dict[str, int]
    """Of the verifiable producer; whether such a record is there is open."""

    def findings(self) -> list[str]:
        broken = [str(LedgerReport((producer,), 0)) for producer in self.ledger.producers if producer.faults]
        foreign = self.ledger.foreign_records
        return broken + ([f"{foreign} records that nobody sent"] if foreign else [])


class Load:
    def __init__(
        self, cluster: LocalCluster, directory: Path, seed: int, retention_ms: int, *, copies: bool = True
    ) -> None:
        """Make the topics; nothing is written yet. `copies`: whether the transactional copier runs."""
        config = {"retention.ms": str(retention_ms), "segment.bytes": "4194304", "segment.ms": "60000"}
        for topic in TOPICS:
            # All copies are held against all that was copied, however far the copier is behind.
            kept = {} if topic == LEDGER_TOPIC else {"retention.ms": "-1"}
            cluster.admin.create_topic(topic, _PARTITIONS, config=config | kept)
        if cluster.layout.has_agents:
            set_topics(cluster.bootstrap_servers, TOPICS, LINKED_AND_KEPT)
        agents = cluster.settings.agents
        is_durable = bool(agents and agents.gateways and agents.gateways.durable)
        if is_durable:
            set_topics(cluster.bootstrap_servers, [LEDGER_TOPIC], replace(LINKED_AND_KEPT, durable=True))
        plans = [one for one in _PLANS if one.transaction is None or not is_durable]  # durable topics take none
        zones = [bootstrap_servers(cluster, broker_id) for broker_id in cluster.broker_ids]
        self._verifiable = VerifiableClients(cluster, zones[0], VERIFIABLE_TOPIC, directory)
        self._ledger = LedgerWorkload(zones[1], LEDGER_TOPIC, plans, seed=seed)
        self.changed = ChangedTopics(cluster, zones[1], is_durable=is_durable)
        self._copier: TransactionalCopier | None = None
        if copies:
            self._copier = TransactionalCopier(cluster, zones[2], VERIFIABLE_TOPIC, COPY_TOPIC, directory)

    def __enter__(self) -> Self:
        self._ledger.start()
        self._verifiable.start()
        self.changed.start()
        if self._copier is not None:
            self._copier.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._verifiable.close()
        self._ledger.abandon()
        self.changed.abandon()
        if self._copier is not None:
            self._copier.close()

    @property
    def copier_runs(self) -> list[int]:
        """How each run of the copier has ended."""
        return [] if self._copier is None else list(self._copier.runs)

    def records(self) -> Records:
        """The counts as of now. Raises LedgerWorkloadError, VerifiableClientError."""
        return self._records(self._ledger.report(), self._verifiable.report())

    def rest(self) -> None:
        """From now on no client comes or goes, until `finish`."""
        if self._copier is not None:
            self._copier.rest()

    def finish(self) -> Records:
        """Stop writing, read all that is there, and give the final counts.

        Raises LedgerWorkloadError, VerifiableClientError, WaitTimeoutError.
        """
        verifiable, ledger = self._verifiable.finish(), self._ledger.finish()
        if self._copier is None:
            return self._records(ledger, verifiable)
        copied = self._copier.finish(self._verifiable.account.values.get(_COPIED_PARTITION, ()))
        return self._records(ledger, verifiable, copied)

    def _records(self, ledger: LedgerReport, *others: ProducerReport) -> Records:
        every = LedgerReport((*others, *ledger.producers), ledger.foreign_records)
        return Records(every, dict(self._verifiable.account.send_errors))


def bootstrap_servers(cluster: LocalCluster, broker_id: int) -> str:
    """Of clients in this broker's zone: of its gateways, where there are any, and of all brokers else."""
    agents = cluster.settings.agents
    if agents is None or agents.gateways is None:
        return cluster.bootstrap_servers
    return agents.gateways.bootstrap_servers(cluster.layout, agents.gateways.zones[broker_id])
