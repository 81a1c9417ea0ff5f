"""Clients of a zone reach every broker by their zone's gateways: they could not reach anything else.

Zones az1 (brokers 1 and 4), az2 (2) and az3 (3). A client runs in a network namespace that has routes to addresses of
its own zone alone, and knows its own zone's gateways by one name, which stands for all of them.
"""

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.zone_proxies import ranked
from local_cluster.cluster import LocalCluster
from local_cluster.kafka_tools import KafkaTools
from local_cluster.polling import wait_until
from local_cluster.zones import ZoneGateways
from tests.cluster.agent_views import AgentCounters, read_metrics
from tests.cluster.gateway_cluster import gateway_cluster
from tests.cluster.script import PATIENCE_S
from tests.cluster.zone_network import CAN_MAKE, CHECKOUT, ClientZone, can_reach, client_zones

GATEWAYS = ZoneGateways({1: "az1", 2: "az2", 3: "az3", 4: "az1"}, network="10.77", is_named=True)
BYTES = "remote_wal_gateway_bytes_total"
RECORDS, RECORD_BYTES = 2000, 1000

pytestmark = [
    pytest.mark.skipif(not CAN_MAKE, reason="network namespaces need root and iproute2"),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def zones() -> Iterator[dict[str, ClientZone]]:
    with client_zones(GATEWAYS) as made:
        yield made


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, zones: dict[str, ClientZone]) -> Iterator[LocalCluster]:
    brokers = {
        "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
        "offsets.topic.num.partitions": "6",
        "transaction.state.log.num.partitions": "6",
    }
    with gateway_cluster(tmp_path_factory, GATEWAYS, broker_keys=brokers) as made:
        yield made


@pytest.fixture
def client(zones: dict[str, ClientZone]) -> ClientZone:
    return zones["az1"]


def bootstrap(cluster: LocalCluster, client: ClientZone) -> str:
    return GATEWAYS.bootstrap_servers(cluster.layout, client.zone)


def run(cluster: LocalCluster, client: ClientZone, library: str, what: str, *arguments: str) -> dict[str, Any]:
    """What a client program in the zone's namespace says."""
    told = subprocess.run(
        client.command(library, what, bootstrap(cluster, client), *arguments),
        capture_output=True, text=True, timeout=200, check=False, cwd=CHECKOUT,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    answer: dict[str, Any] = json.loads(told.stdout.splitlines()[-1])
    return answer


def java(cluster: LocalCluster, client: ClientZone) -> KafkaTools:
    return cluster.runtime.tools(bootstrap(cluster, client), prefix=client.prefix)


def create_topic(cluster: LocalCluster, topic: str, assignment: list[list[int]]) -> None:
    cluster.admin.create_topic(topic, assignment=assignment, config={"min.insync.replicas": "1"})


def test_a_clients_namespace_leads_to_its_own_zone_alone(zones: dict[str, ClientZone]) -> None:
    for zone, client in zones.items():
        for other in zones:
            assert [can_reach(client, host) for host in GATEWAYS.addresses(other)] == [zone == other] * len(
                GATEWAYS.addresses(other)
            )


def test_librdkafka_stays_in_its_zone(cluster: LocalCluster, client: ClientZone, topic: str) -> None:
    counters = AgentCounters(cluster)
    created = run(cluster, client, "confluent", "create", topic)
    assert created["brokers"] == [1, 2, 3, 4]
    cluster.admin.wait_for_full_isr(topic, partitions=3)
    produced = run(cluster, client, "confluent", "produce", topic, str(RECORDS))
    assert produced == {"waiting": 0, "delivered": RECORDS, "failed": 0}
    produced = run(cluster, client, "confluent", "produce", topic, str(RECORDS), "transactions")
    assert produced == {"waiting": 0, "delivered": RECORDS, "failed": 0}
    for protocol in ("classic", "consumer"):
        assert run(cluster, client, "confluent", "consume", topic, str(2 * RECORDS), protocol) == {"read": 2 * RECORDS}
    assert counters.growth(BYTES, side="gateway", zone="az1", direction="to_client") > 0
    assert counters.growth(BYTES, side="broker", zone="az1", broker="2") > 0
    assert counters.growth(BYTES, side="broker", zone="az1", broker="3") > 0


def test_kafka_python_stays_in_its_zone(cluster: LocalCluster, client: ClientZone, topic: str) -> None:
    assert run(cluster, client, "python", "create", topic)["brokers"] == [1, 2, 3, 4]
    cluster.admin.wait_for_full_isr(topic, partitions=3)
    assert run(cluster, client, "python", "produce", topic, str(RECORDS)) == {"delivered": RECORDS}
    assert run(cluster, client, "python", "consume", topic, str(RECORDS)) == {"read": RECORDS}


def test_java_clients_stay_in_their_zone(cluster: LocalCluster, client: ClientZone, topic: str) -> None:
    tools = java(cluster, client)
    where = ["--bootstrap-server", bootstrap(cluster, client)]
    tools.run(
        "org.apache.kafka.tools.TopicCommand",
        [*where, "--create", "--topic", topic, "--replica-assignment", "2:1:3,3:2:4,1:2:3"],
    )
    cluster.admin.wait_for_full_isr(topic, partitions=3)
    config = {"compression.type": "zstd", "acks": "all"}
    assert tools.produce(topic, records=RECORDS, record_bytes=RECORD_BYTES, config=config).records == RECORDS
    transactional = {**config, "transactional.id": f"{topic}-transactions"}
    assert tools.produce(topic, records=RECORDS, config=transactional).records == RECORDS
    for protocol in ("classic", "consumer"):
        settings = {"group.protocol": protocol, "isolation.level": "read_committed"}
        assert tools.consume(topic, records=2 * RECORDS, config=settings) >= 2 * RECORDS
    groups = tools.run("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", [*where, "--list"])
    assert len(groups.split()) >= 2


def test_consumers_that_name_their_zone_read_from_its_replica(
    cluster: LocalCluster, client: ClientZone, topic: str
) -> None:
    # Led in az2, with a replica in az1: without client.rack all records come through the gateway.
    create_topic(cluster, topic, [[2, 1, 3]])
    run(cluster, client, "confluent", "produce", topic, str(RECORDS))
    through, wire = {}, {}
    for rack in ("", "az1"):
        counters, before = AgentCounters(cluster), client.received_bytes
        assert run(cluster, client, "confluent", "consume", topic, str(RECORDS), "classic", rack) == {"read": RECORDS}
        through[rack] = counters.growth(BYTES, side="gateway", zone="az1", direction="to_client", broker="2")
        wire[rack] = client.received_bytes - before
    record_bytes = RECORDS * RECORD_BYTES
    assert through[""] > record_bytes
    assert through["az1"] < record_bytes / 10
    assert min(wire.values()) > record_bytes, "the client was sent them both times"


def connections(cluster: LocalCluster, agent: int, broker: int) -> float:
    """How many clients of az1 this agent has for that broker; 0 while it does not answer."""
    labels = (("broker", str(broker)), ("side", "gateway"), ("zone", "az1"))
    try:
        return read_metrics(cluster, agent).get(("remote_wal_gateway_connections", labels), 0.0)
    except OSError:
        return 0.0


def test_clients_reach_each_broker_by_one_gateway_of_their_zone_and_by_the_next_when_that_is_killed(
    cluster: LocalCluster, client: ClientZone, topic: str
) -> None:
    # 1 and 4 are az1's gateways; the topic's replicas and their agents are elsewhere.
    first = {broker: ranked(broker, (1, 4))[0] for broker in (2, 3)}

    def expect_proxies(gone: int | None = None) -> None:
        def is_so() -> bool:
            return all(
                bool(connections(cluster, agent, broker)) is (agent != gone and (proxy in (agent, gone)))
                for broker, proxy in first.items()
                for agent in (1, 4)
            )

        wait_until(is_so, f"brokers are reached by {first}, without {gone}", PATIENCE_S)

    create_topic(cluster, topic, [[2, 3], [3, 2]])
    words = ("confluent", "go_on", bootstrap(cluster, client), topic)
    with client.producing(*words) as told:

        def expect_more() -> None:
            before = len(told)
            wait_until(lambda: len(told) >= before + 3, "300 more records are acknowledged", PATIENCE_S)

        expect_more()
        expect_proxies()
        for gateway in (1, 4):
            cluster.agent(gateway).kill()
            expect_more()
            expect_proxies(gone=gateway)
            cluster.start_agent(gateway)
            expect_more()
            expect_proxies()
