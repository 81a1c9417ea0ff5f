"""Clients of a zone share one of its agents for each remote leader, and an agent that dies moves its leaders alone.

Zone az1 has brokers 1 and 2 with their agents, zones az2 to az4 have the six leaders. Clients run in a network
namespace that reaches az1 alone. The kernel says which sockets they have.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from gateway.zone_proxies import ranked
from local_cluster.cluster import LocalCluster
from local_cluster.polling import wait_until
from local_cluster.zones import ZoneGateways
from tests.cluster.gateway_cluster import gateway_cluster
from tests.cluster.script import PATIENCE_S
from tests.cluster.zone_network import CAN_MAKE, ClientZone, client_zones

AGENTS, LEADERS = (1, 2), (3, 4, 5, 6, 7, 8)
GATEWAYS = ZoneGateways(
    {1: "az1", 2: "az1", 3: "az2", 4: "az2", 5: "az3", 6: "az3", 7: "az4", 8: "az4"}, network="10.78", is_named=True
)
PROXIES = {leader: ranked(leader, AGENTS)[0] for leader in LEADERS}
CLIENTS = 10
SHARE = 0.95

Sockets = dict[tuple[int, int], frozenset[str]]
"""By agent and leader: the sockets' addresses at the clients, with the kernel's numbers of them."""

pytestmark = [
    pytest.mark.skipif(not CAN_MAKE, reason="network namespaces need root and iproute2"),
    pytest.mark.timeout(900),
]


@pytest.fixture(scope="module")
def client() -> Iterator[ClientZone]:
    with client_zones(GATEWAYS) as made:
        yield made["az1"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, client: ClientZone) -> Iterator[LocalCluster]:
    assert client.zone == "az1"
    with gateway_cluster(tmp_path_factory, GATEWAYS, heap_mb=256) as made:
        yield made


def sockets(cluster: LocalCluster, client: ClientZone) -> Sockets:
    """The established ones from the clients' namespace to the zone's agents."""
    hosts = {GATEWAYS.gateway_host(agent): agent for agent in AGENTS}
    ports = {cluster.layout.replica_port(leader): leader for leader in LEADERS}
    listed = subprocess.run(
        [*client.prefix, "ss", "-tnHe", "state", "established"], capture_output=True, text=True, check=True
    )
    found: dict[tuple[int, int], set[str]] = {(agent, leader): set() for agent in AGENTS for leader in LEADERS}
    for line in listed.stdout.splitlines():
        _received, _sent, here, there, *_rest = line.split()
        host, _, port = there.rpartition(":")
        number = re.search(r"\bsk:(\w+)", line)
        if host in hosts and int(port) in ports and number is not None:
            found[hosts[host], ports[int(port)]].add(f"{here} {number[1]}")
    return {where: frozenset(those) for where, those in found.items()}


def wait_until_reached_by(cluster: LocalCluster, client: ClientZone, proxies: dict[int, int]) -> Sockets:
    """Wait until each leader's agent has every client, and nearly all of the leader's connections."""
    seen: list[Sockets] = []

    def is_so() -> bool:
        seen.append(sockets(cluster, client))
        for leader, agent in proxies.items():
            there, everywhere = len(seen[-1][agent, leader]), sum(len(seen[-1][one, leader]) for one in AGENTS)
            if there < CLIENTS or there < SHARE * everywhere:
                return False
        return True

    wait_until(is_so, f"leaders are reached by {proxies}", PATIENCE_S)
    counts = {leader: {agent: len(seen[-1][agent, leader]) for agent in AGENTS} for leader in LEADERS}
    sys.stdout.write(f"connections by leader and agent: {json.dumps(counts)}\n")
    return seen[-1]


def test_six_leaders_clients_share_an_agent_each_and_only_a_killed_agents_clients_reconnect(
    cluster: LocalCluster, client: ClientZone, topic: str
) -> None:
    assert set(PROXIES.values()) == set(AGENTS), "each agent is the proxy of some"
    cluster.admin.create_topic(topic, assignment=[[one] for one in LEADERS], config={"min.insync.replicas": "1"})
    bootstrap = GATEWAYS.bootstrap_servers(cluster.layout, "az1")
    with client.producing("confluent", "go_on", bootstrap, topic, str(CLIENTS)):
        before = wait_until_reached_by(cluster, client, PROXIES)
        for gone, other in (AGENTS, AGENTS[::-1]):
            rest = [leader for leader in LEADERS if PROXIES[leader] == other]
            cluster.agent(gone).kill()
            without = wait_until_reached_by(cluster, client, dict.fromkeys(LEADERS, other))
            for leader in rest:
                assert before[other, leader] <= without[other, leader], "clients of the other agent kept their sockets"
            cluster.start_agent(gone)
            after = wait_until_reached_by(cluster, client, PROXIES)
            for leader in rest:
                assert before[other, leader] <= after[other, leader], "nor did they reconnect when it came back"
            before = after
