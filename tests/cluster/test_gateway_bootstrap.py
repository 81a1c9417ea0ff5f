"""Clients of all zones are told one address, and are led to the brokers as their zone reaches them."""

from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from local_cluster.cluster import LocalCluster
from local_cluster.zones import ZoneGateways
from tests.cluster.agent_views import AgentCounters
from tests.cluster.gateway_cluster import THREE_ZONES, with_gateways

GATEWAYS = ZoneGateways(THREE_ZONES, bootstrap=True)
CROSSED = "remote_wal_gateway_bytes_total"
RECORDS = 500
TIMEOUT_S = 60.0

pytestmark = pytest.mark.timeout(600)


cluster = with_gateways(GATEWAYS)


@pytest.mark.parametrize("zone", ["az1", "az2", "az3"])
@pytest.mark.parametrize("asked", [1, 2, 3])
def test_librdkafka_is_told_of_brokers_as_its_zone_reaches_them(cluster: LocalCluster, zone: str, asked: int) -> None:
    address = GATEWAYS.bootstrap_address(cluster.layout, asked)
    admin = AdminClient({"bootstrap.servers": address, "client.id": f"app,zone={zone}"})
    brokers = admin.list_topics(timeout=TIMEOUT_S).brokers
    told = {one.id: one.host for one in brokers.values()}
    gateway = GATEWAYS.gateway_name(zone)
    assert told == {one: GATEWAYS.broker_host(one) if its == zone else gateway for one, its in THREE_ZONES.items()}


@pytest.mark.parametrize("client_id", ["app", "app,zone=az3"])
def test_java_clients_go_on_from_one_address(cluster: LocalCluster, topic: str, tmp_path: Path, client_id: str) -> None:
    cluster.admin.create_topic(topic, assignment=[[1, 2], [2, 3], [3, 1]])
    address = GATEWAYS.bootstrap_address(cluster.layout, 2)
    config = tmp_path / "client.properties"
    config.write_text(f"client.id={client_id}\nauto.offset.reset=earliest\n")
    tools, counters = cluster.runtime.tools(address), AgentCounters(cluster)
    common = ["--bootstrap-server", address, "--topic", topic, "--command-config", str(config)]
    tools.run(
        "org.apache.kafka.tools.ProducerPerformance",
        [*common, "--num-records", str(RECORDS), "--record-size", "1000", "--throughput", "-1"],
    )
    told = tools.run(
        "org.apache.kafka.tools.ConsumerPerformance",
        [*common, "--num-records", str(RECORDS), "--timeout", "30000", "--group", topic],
    )
    assert str(RECORDS) in told
    # The agent that it asked stands in az2; the brokers that it goes on at are those of its own zone.
    zone = "az3" if "az3" in client_id else "az2"
    assert counters.growth(CROSSED, side="gateway", zone=zone, direction="to_client") > 0
    others = {"az1", "az2", "az3"} - {zone}
    assert sum(counters.growth(CROSSED, side="gateway", zone=one, direction="to_client") for one in others) == 0
