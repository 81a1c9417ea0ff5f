"""Clients of all zones are told one address, and are led to the brokers as their zone reaches them."""

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient

from local_cluster.broker_config import AgentsMode, ClusterSettings
from local_cluster.cluster import LocalCluster
from local_cluster.zone_gateways import ZoneGateways

ZONES = {1: "az1", 2: "az2", 3: "az3"}
GATEWAYS = ZoneGateways(ZONES, bootstrap=True)
RECORDS = 500
TIMEOUT_S = 60.0

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    settings = ClusterSettings(AgentsMode(gateways=GATEWAYS), {"group.initial.rebalance.delay.ms": "0"}, heap_mb=384)
    directory = tmp_path_factory.mktemp("bootstrap") / "cluster"
    with LocalCluster.create(directory, settings=settings) as made:
        made.start(300)
        yield made


@pytest.mark.parametrize("zone", ["az1", "az2", "az3"])
@pytest.mark.parametrize("asked", [1, 2, 3])
def test_librdkafka_is_told_of_brokers_as_its_zone_reaches_them(cluster: LocalCluster, zone: str, asked: int) -> None:
    address = GATEWAYS.bootstrap_address(cluster.layout, asked)
    admin = AdminClient({"bootstrap.servers": address, "client.id": f"app,zone={zone}"})
    brokers = admin.list_topics(timeout=TIMEOUT_S).brokers
    told = {one.id: one.host for one in brokers.values()}
    gateway = GATEWAYS.gateway_name(zone)
    assert told == {one: GATEWAYS.broker_host(one) if its == zone else gateway for one, its in ZONES.items()}


def test_java_clients_that_say_nothing_are_of_the_zone_of_whom_they_ask(cluster: LocalCluster, topic: str) -> None:
    cluster.admin.create_topic(topic, assignment=[[1, 2], [2, 3], [3, 1]])
    tools = cluster.runtime.tools(GATEWAYS.bootstrap_address(cluster.layout, 2))
    for client_id in ("app", "app,zone=az3"):
        tools.produce(topic, records=RECORDS, config={"client.id": client_id, "acks": "all"})
        read = tools.consume(
            topic, records=RECORDS, config={"client.id": client_id, "group.id": f"{topic}-{client_id}"}
        )
        assert read.records >= RECORDS
