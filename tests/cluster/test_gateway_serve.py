"""The gateway of a zone answers its consumers itself, and they read what the broker would have given them.

Zones az1 to az3 with a broker each; topics are led in az2, without a replica in az1. Consumers know az1's gateway
alone.
"""

import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Producer

from local_cluster.cluster import LocalCluster
from local_cluster.polling import wait_until
from local_cluster.zones import ZoneGateways
from tests.cluster.agent_views import AgentCounters
from tests.cluster.gateway_cluster import THREE_ZONES, Reader, gateway_cluster
from tests.cluster.script import PATIENCE_S, Script
from tests.soak.transactional_copier import TransactionalCopier, read_committed
from tests.soak.verifiable_clients import VerifiableClients

GATEWAYS = ZoneGateways(THREE_ZONES)
GATEWAY, LEADER = 1, 2
SERVE = "remote_wal_gateway_fetch_serve_total"
TIMEOUT_S = 60.0

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    keys = {"remote.wal.gateway.fetch.links.enable": "true", "remote.wal.gateway.fetch.serve.enable": "true"}
    with gateway_cluster(tmp_path_factory, GATEWAYS, keys) as made:
        yield made


class Writer:
    """Writes to the leader's own listener, in transactions of which every third is aborted."""

    def __init__(self, cluster: LocalCluster, topic: str) -> None:
        self.committed: list[bytes] = []
        self._topic = topic
        self._values = random.Random(11)
        settings = {"bootstrap.servers": cluster.layout.bootstrap_servers, "linger.ms": 2}
        self._plain = Producer(settings)
        self._transactional = Producer({**settings, "transactional.id": topic})
        self._transactional.init_transactions(TIMEOUT_S)

    def write(self, transactions: int, records: int = 20, size: int = 1000) -> None:
        for number in range(transactions):
            for producer, is_kept in ((self._plain, True), (self._transactional, number % 3 != 2)):
                if producer is self._transactional:
                    producer.begin_transaction()
                values = [self._values.randbytes(size) for _ in range(records)]
                for value in values:
                    producer.produce(self._topic, value)
                assert producer.flush(TIMEOUT_S) == 0
                if producer is self._transactional:
                    producer.commit_transaction(TIMEOUT_S) if is_kept else producer.abort_transaction(TIMEOUT_S)
                self.committed += values if is_kept else []


@pytest.mark.gate
def test_consumers_read_from_their_gateway_what_the_broker_would_give_them(cluster: LocalCluster, topic: str) -> None:
    cluster.admin.create_topic(topic, assignment=[[LEADER]], config={"min.insync.replicas": "1"})
    with Script(cluster, topic) as script, ExitStack() as stack:
        script.link_topic()
        writer = Writer(cluster, topic)
        writer.write(1)
        gateway = GATEWAYS.bootstrap_servers(cluster.layout, "az1")
        readers = [stack.enter_context(Reader(gateway, topic)) for _ in range(3)]

        def all_read() -> bool:
            return all(len(one.values) >= len(writer.committed) for one in readers)

        counters = AgentCounters(cluster, [GATEWAY])

        def is_served() -> bool:
            return counters.growth(SERVE, way="served") > 0

        wait_until(all_read, "what is there is read", PATIENCE_S)
        wait_until(is_served, "the gateway answers", PATIENCE_S)
        counters = AgentCounters(cluster, [GATEWAY])
        writer.write(12)
        wait_until(all_read, "all is read", PATIENCE_S)
        assert all(one.values == writer.committed for one in readers)
        served, relayed = counters.growth(SERVE, way="served"), counters.growth(SERVE)
        assert served > 0.8 * relayed, counters.grown_labels(SERVE, "way")


@pytest.mark.parametrize("struck", ["gateway", "leader's agent", "leader"])
def test_verifiable_clients_and_a_transactional_copier_miss_nothing_when_something_is_killed(
    cluster: LocalCluster, topic: str, tmp_path: Path, struck: str
) -> None:
    # az1's clients by their gateway; killed: their gateway, the agent beside the leader, or the broker itself
    target, gateway = f"{topic}-copied", GATEWAYS.bootstrap_servers(cluster.layout, "az1")
    for name in (topic, target):
        cluster.admin.create_topic(name, assignment=[[LEADER, 3]], config={"min.insync.replicas": "1"})
    with Script(cluster, topic) as script:
        script.link_topic()
        counters = AgentCounters(cluster, [GATEWAY])
        copier = TransactionalCopier(cluster, gateway, topic, target, tmp_path)
        clients = VerifiableClients(cluster, gateway, topic, tmp_path)
        try:
            with clients:
                copier.start()
                wait_until(lambda: counters.growth(SERVE, way="served") > 20, "the gateway answers", PATIENCE_S)
                if struck == "gateway":
                    script.kill_agent(GATEWAY)
                    script.start_agent(GATEWAY)
                elif struck == "leader's agent":
                    script.kill_agent(LEADER)
                    script.start_agent(LEADER)
                else:
                    cluster.broker(LEADER).kill()
                    cluster.start_broker(LEADER)
                before = counters.growth(SERVE, way="served")
                wait_until(lambda: counters.growth(SERVE, way="served") > before + 20, "it answers again", PATIENCE_S)
                copier.rest()
                report = clients.finish()
            assert report.faults == 0, report
            assert report.acknowledged > 0
            values = (int(value) for _, value in read_committed(cluster.bootstrap_servers, topic, 0))
            copied = copier.finish(values)
            assert copied.faults == 0, copied
        finally:
            copier.close()


def test_a_share_group_reads_by_the_gateway_as_before(cluster: LocalCluster, topic: str) -> None:
    gateway, group = GATEWAYS.bootstrap_servers(cluster.layout, "az1"), f"{topic}-shared"
    cluster.admin.create_topic(topic, assignment=[[LEADER]], config={"min.insync.replicas": "1"})
    from_begin = ["--alter", "--add-config", "share.auto.offset.reset=earliest"]
    where = ["--bootstrap-server", cluster.bootstrap_servers, "--entity-type", "groups", "--entity-name", group]
    with Script(cluster, topic) as script:
        script.link_topic()
        cluster.runtime.tools(cluster.bootstrap_servers).run(
            "org.apache.kafka.tools.ConfigCommand", [*where, *from_begin]
        )
        cluster.runtime.tools(cluster.layout.bootstrap_servers).produce(topic, records=500, record_bytes=100)
        counters = AgentCounters(cluster, [GATEWAY])
        told = ["--bootstrap-server", gateway, "--topic", topic, "--group", group, "--max-messages", "500"]
        output = cluster.runtime.tools(gateway).run("org.apache.kafka.tools.consumer.ConsoleShareConsumer", told)
        assert len(output.splitlines()) >= 500
        assert counters.growth(SERVE) == 0, "ShareFetch goes to the broker"
