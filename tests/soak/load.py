"""What writes and reads while faults strike: Kafka's verifiable clients on one topic, numbered producers of several
kinds on another."""

from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from local_cluster.cluster import LocalCluster
from local_cluster.ledger import LedgerReport, ProducerPlan, ProducerReport, TransactionPlan
from local_cluster.ledger_workload import LedgerWorkload
from local_cluster.topic_switch import LINKED_AND_KEPT, set_topics
from tests.soak.verifiable_clients import VerifiableClients

VERIFIABLE_TOPIC = "soak-verifiable"
LEDGER_TOPIC = "soak-ledger"
TOPICS = (VERIFIABLE_TOPIC, LEDGER_TOPIC)
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
    """What became of the records of all producers."""

    ledger: LedgerReport
    send_errors: dict[str, int]
    """Of the verifiable producer; whether such a record is there is open."""

    def findings(self) -> list[str]:
        """What breaks Kafka's promises."""
        broken = [str(LedgerReport((producer,), 0)) for producer in self.ledger.producers if producer.faults]
        foreign = self.ledger.foreign_records
        return broken + ([f"{foreign} records that nobody sent"] if foreign else [])


class Load:
    """Both topics' clients."""

    def __init__(self, cluster: LocalCluster, directory: Path, seed: int, retention_ms: int) -> None:
        """Make the topics; nothing is written yet."""
        config = {"retention.ms": str(retention_ms), "segment.bytes": "4194304", "segment.ms": "60000"}
        for topic in TOPICS:
            cluster.admin.create_topic(topic, _PARTITIONS, config=config)
        if cluster.files.has_agents:
            set_topics(cluster.bootstrap_servers, TOPICS, LINKED_AND_KEPT)
        self._verifiable = VerifiableClients(cluster, VERIFIABLE_TOPIC, directory)
        self._ledger = LedgerWorkload(cluster.bootstrap_servers, LEDGER_TOPIC, _PLANS, seed=seed)

    def __enter__(self) -> Self:
        self._ledger.start()
        self._verifiable.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._verifiable.close()
        self._ledger.abandon()

    def records(self) -> Records:
        """The counts as of now. Raises LedgerWorkloadError, VerifiableClientError."""
        return self._records(self._verifiable.report(), self._ledger.report())

    def finish(self) -> Records:
        """Stop writing, read all that is there, and give the final counts.

        Raises LedgerWorkloadError, VerifiableClientError.
        """
        return self._records(self._verifiable.finish(), self._ledger.finish())

    def _records(self, verifiable: ProducerReport, ledger: LedgerReport) -> Records:
        every = LedgerReport((verifiable, *ledger.producers), ledger.foreign_records)
        return Records(every, dict(self._verifiable.account.send_errors))
