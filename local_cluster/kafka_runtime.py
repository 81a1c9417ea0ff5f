"""Java and Kafka, found at the first use: a cluster can be observed and ended without either."""

from collections.abc import Sequence
from functools import cached_property

from jvm.ivy import Progress
from jvm.java import Java, find_java
from local_cluster.class_archive import with_class_archive
from local_cluster.kafka_distribution import KAFKA_VERSION, TIERED_KAFKA_VERSION, KafkaDistribution, resolve_kafka
from local_cluster.kafka_tools import KafkaTools


class KafkaRuntime:
    """The Java and Kafka that start a cluster's JVMs."""

    def __init__(self, tiered_storage: bool, tell: Progress) -> None:
        self._tiered_storage = tiered_storage
        self.version = TIERED_KAFKA_VERSION if tiered_storage else KAFKA_VERSION
        """The version of brokers for which no other is chosen."""
        self._tell = tell
        self._versions: dict[str, KafkaDistribution] = {}

    @cached_property
    def java(self) -> Java:
        """The Java installation. Raises JavaNotFoundError."""
        return find_java()

    @property
    def kafka(self) -> KafkaDistribution:
        """Kafka's jars of the usual version. Raises KafkaDistributionError."""
        return self.of(self.version)

    def of(self, version: str) -> KafkaDistribution:
        """Return Kafka's jars of this version, fetched on the first use. Raises KafkaDistributionError."""
        if version not in self._versions:
            kafka = resolve_kafka(self.java, tiered_storage=self._tiered_storage, progress=self._tell, version=version)
            self._versions[version] = with_class_archive(self.java, kafka, self._tell)
        return self._versions[version]

    def tools(self, bootstrap_servers: str, *, jvm_as_shipped: bool = False, prefix: Sequence[str] = ()) -> KafkaTools:
        """Return Kafka's own tools, run against that cluster; the parameters are those of `KafkaTools`."""
        return KafkaTools(self.java, self.kafka, bootstrap_servers, jvm_as_shipped=jvm_as_shipped, prefix=prefix)
