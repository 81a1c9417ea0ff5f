"""The zone gateway in server.properties: what would open it to others, or lead nowhere, is refused."""

import asyncio
import random
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from agent.configuration import Configuration
from agent.identity import AgentIdentity
from agent.service_manager import ListeningSockets
from agent.settings.agent_settings import AgentSettings
from agent.settings.gateway_settings import GatewaySettings
from agent.settings.setting_types import AgentSettingsError
from agent.settings_file import agent_settings
from agent.wiring.gateway import ClientGateway
from agent.wiring.relaying import Relaying
from gateway.planning.plan import plan
from gateway.planning.planned_ports import BrokerSite
from gateway.zone_proxies import ZoneProxies, ranked
from kafka_log.broker_files.server_properties import BrokerProperties, parse_broker_properties
from local_cluster.layout import free_port_block
from replication.wire.peer_connection import HELLO_TIMEOUT_S, Address
from replication.wire.peer_protocol import PeerCapabilities

FILE = Path("/etc/kafka/server.properties")
KEY = "remote.wal.gateway"
PLANNED = plan(
    [BrokerSite(1, "az1", "kafka-1"), BrokerSite(2, "az2", "kafka-2"), BrokerSite(3, "az3", "kafka-3")],
    {"az1": "gw-1", "az2": "gw-2", "az3": "gw-3"},
)[1]


def parsed(**keys: str) -> tuple[BrokerProperties, AgentSettings]:
    """The planned lines of broker 1, but for these keys: without the gateway's prefix, or whole with a dot in them."""
    raw = {
        **PLANNED,
        "node.id": "1",
        "log.dirs": "/data/kafka",
        "listeners": f"{PLANNED['listeners']},WAL://127.0.0.1:19901,CONTROLLER://:9093",
        "advertised.listeners": f"{PLANNED['advertised.listeners']},WAL://127.0.0.1:19901",
        "listener.security.protocol.map": PLANNED["listener.security.protocol.map"]
        + ",WAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "WAL",
        "remote.wal.agent.peers": "1@10.0.0.1:19090,2@10.0.0.2:19090,3@10.0.0.3:19090",
        "remote.wal.agent.plaintext.enable": "true",
    }
    raw |= {key if "." in key else f"{KEY}.{key.replace('_', '.')}": value for key, value in keys.items()}
    broker = parse_broker_properties(raw, FILE)
    return broker, agent_settings(broker, FILE)


def test_what_is_planned_is_taken() -> None:
    _broker, settings = parsed()
    assert settings.gateway.enable
    assert settings.gateway.reached([3, 2]) == [2, 3]
    assert settings.gateway.zone_listeners == {"az2": "CLIENT_AZ2", "az3": "CLIENT_AZ3"}


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"broker.rack": ""}, "broker.rack"),
        ({"port_base": "65533"}, "port.base: the port of the highest"),
        ({"zone_listeners": "az2=NOWHERE"}, "az2=NOWHERE is none"),
        ({"zone_listeners": "az2=WAL"}, "az2=WAL is the inter-broker listener"),
        ({"zone_listeners": "az2=CONTROLLER"}, "az2=CONTROLLER is none"),
        ({"bootstrap_listener": "CONTROLLER"}, "bootstrap.listener: CONTROLLER is none"),
        ({"bootstrap_listener": "CLIENT_AZ2"}, "bootstrap.listener: CLIENT_AZ2 advertises agents"),
        (
            {"bootstrap_listener": "CLIENT_AZ1", "bootstrap_zones": "10.0.0.0/8=az9"},
            "bootstrap.zones: no listener here is for clients of az9",
        ),
        ({"bootstrap_zones": "10.0.0.0/8"}, "'10.0.0.0/8' is not <network>=<zone>"),
        ({"bootstrap_zones": "10.0.0.1/8=az2"}, "has host bits set"),
        ({"bootstrap_zones": "10.0.0.0/8=az2,10.0.0.0/255.0.0.0=az3"}, "network 10.0.0.0/8 is named twice"),
        ({"durable_listener": "CONTROLLER"}, "durable.listener: CONTROLLER is none"),
        (
            {"durable_listener": "WAL"},
            "durable.listener: WAL is the inter-broker listener: take the remote.wal.gateway.* lines out",
        ),
        ({"durable_listener": "CLIENT_AZ2"}, "durable.listener: CLIENT_AZ2 is not for clients of this broker's zone"),
        (
            {"durable_listener": "CLIENT_AZ1", "bootstrap_listener": "CLIENT_AZ1"},
            "bootstrap.listener: who comes by it would be led past",
        ),
        ({"durable_listener": "CLIENT_AZ1"}, "remote.log.wal.storage.system.enable is off"),
        ({"zone_listeners": "az2"}, "'az2' is not <zone>=<listener>"),
        ({"zone_listeners": "az2=CLIENT_AZ2,az2=CLIENT_AZ3"}, "zone az2 is named twice"),
        ({"ssl_key_file": "/tls/key"}, "belong together"),
        ({"ssl_ca_file": "/tls/ca"}, "belong together"),
        ({"peer_ssl_key_file": "/tls/key"}, "peer.ssl.*: certificate and key file belong together"),
        ({"plaintext_accepted": "false"}, "listen.host: 0.0.0.0 is open to other hosts unencrypted"),
    ],
)
def test_what_leads_nowhere_or_opens_too_much_is_refused(keys: dict[str, str], told: str) -> None:
    with pytest.raises(AgentSettingsError) as caught:
        parsed(**keys)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    "keys",
    [
        {"enable": "false", "zone_listeners": "az9=NOWHERE"},
        {"plaintext_accepted": "false", "ssl_certificate_file": "/tls/pem", "ssl_key_file": "/tls/key"},
        {"plaintext_accepted": "false", "listen_host": "127.0.0.1"},
        {"produce_enable": "true", "fetch_links_enable": "true"},
        {
            "produce_enable": "true",
            "durable_listener": "CLIENT_AZ1",
            "remote.log.wal.storage.system.enable": "true",
        },
    ],
    ids=["off", "TLS", "loopback", "the default memory is enough", "and with what answers are held by"],
)
def test_what_harms_nobody_is_taken(keys: dict[str, str]) -> None:
    parsed(**keys)


@pytest.mark.parametrize(("port", "is_agents"), [("9092", False), ("9095", True)])
def test_a_port_that_the_broker_itself_listens_at_is_left_to_it(port: str, is_agents: bool) -> None:
    keys = {"durable_listener": "CLIENT_AZ1", "durable_port": port, "acks_pipelined_enable": "true"}
    keys["remote.log.wal.storage.system.enable"] = "true"
    with capture_logs() as told:
        broker, settings = parsed(**keys)
    assert [one["event"] for one in told] == ([] if is_agents else ["clients_port_left_to_broker"])
    assert broker.listeners["CLIENT_AZ1"].port == 9092
    gateway = settings.gateway
    assert gateway.enable, "clients of other zones come by it all the same"
    assert (bool(gateway.durable_listener), gateway.acks_pipelined_enable) == (is_agents, is_agents)
    _, front = parsed(**keys, zone_listeners="")
    assert front.gateway.enable is is_agents


@asynccontextmanager
async def built(**keys: str) -> AsyncIterator[ClientGateway]:
    """The gateway of an agent with these keys."""
    identity = AgentIdentity("cluster", 1, 1, "az1", 0)
    made = Relaying(Configuration.load(*parsed(**keys)), identity, CollectorRegistry(), lambda: None, lambda: 1.0)
    assert made.gateway is not None
    assert made.runs.items() >= made.gateway.runs.items(), "a supervisor restarts what fails of it"
    try:
        yield made.gateway
    finally:
        await made.stop()


async def test_clients_are_told_of_in_readyz_while_a_broker_is_not_reached() -> None:
    async with built() as gateway:
        assert gateway.degraded == []
        gateway.clients.unreached[2] = "refused"
        assert gateway.degraded == ["clients here do not reach broker 2: refused"]


@pytest.mark.parametrize(
    ("keys", "more"),
    [
        ({}, PeerCapabilities.NONE),
        ({"produce_enable": "true"}, PeerCapabilities.ROUTED_PRODUCE | PeerCapabilities.ADOPTED_RECORDS),
        ({"fetch_links_enable": "true"}, PeerCapabilities.LINKED_FETCH),
    ],
    ids=["neither", "produce", "fetch"],
)
async def test_records_go_by_object_storage_only_where_that_is_set(
    keys: dict[str, str], more: PeerCapabilities
) -> None:
    async with built(**keys) as gateway:
        assert gateway.capabilities == PeerCapabilities.CLIENTS | PeerCapabilities.PACKED | more
        gateway.settings = GatewaySettings()
        await gateway.start(ListeningSockets([]))
        assert len(gateway.runs) == 1 + 3 * ("produce_enable" in keys), "uploads, sweeps, and outcomes"


async def test_ports_for_clients_come_and_go_with_the_brokers_where_all_are_wanted() -> None:
    port_base = free_port_block(6, random.SystemRandom()).start
    keys = {"listen_host": "127.0.0.1", "port_base": str(port_base)}
    async with built(**keys) as gateway, AsyncExitStack() as stack:
        await gateway.start(ListeningSockets([]))
        assert set(gateway.clients.addresses) == {2, 3}
        known = gateway.peers
        silent = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        known.learned({5: Address(*silent.getsockname()[:2]), 70_000: Address("10.0.0.6", 19090)})
        assert gateway.clients.unserved() == ()
        assert not await gateway.keep_to_peers(), "broker 70000 has no port"
        assert gateway.clients.unserved() == (70_000,), "a neighbour serves its clients"
        assert gateway.clients.addresses[5] == Address("127.0.0.1", port_base + 5)
        client = await asyncio.open_connection("127.0.0.1", port_base + 5)
        known.learned({})
        assert await gateway.keep_to_peers()
        assert gateway.clients.unserved() == ()
        assert set(gateway.clients.addresses) == {2, 3}
        async with asyncio.timeout(HELLO_TIMEOUT_S / 2):  # not because the other agent says nothing
            assert await client[0].read() == b""
        client[1].close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port_base + 5)


async def test_a_port_that_another_process_has_costs_the_clients_of_one_broker_a_neighbour_and_nothing_else() -> None:
    port_base = free_port_block(4, random.SystemRandom()).start
    keys = {"listen_host": "127.0.0.1", "port_base": str(port_base)}
    async with built(**keys) as gateway:
        with socket.create_server(("127.0.0.1", port_base + 2)):
            await gateway.start(ListeningSockets([]))
            assert (set(gateway.clients.addresses), gateway.clients.unserved()) == ({3}, (2,))
        assert await gateway.keep_to_peers()
        assert (set(gateway.clients.addresses), gateway.clients.unserved()) == ({2, 3}, ())


async def test_a_port_for_clients_that_is_taken_may_be_the_brokers_by_its_old_lines() -> None:
    with socket.create_server(("127.0.0.1", 0)) as brokers:
        keys = {"listen_host": "127.0.0.1", "durable_listener": "CLIENT_AZ1", "zone_listeners": ""}
        keys |= {"durable_port": str(brokers.getsockname()[1]), "remote.log.wal.storage.system.enable": "true"}
        async with built(**keys) as gateway:
            with pytest.raises(OSError, match="Address already in use; the broker may still run with its old lines"):
                await gateway.start(ListeningSockets([]))


async def test_clients_reach_a_broker_by_its_proxy_alone_and_by_the_next_agent_when_that_is_gone() -> None:
    port_base = free_port_block(4, random.SystemRandom()).start
    keys = {"listen_host": "127.0.0.1", "port_base": str(port_base)}
    async with built(**keys) as gateway:
        there = {9}
        gateway.proxies = ZoneProxies(1, lambda: frozenset({9}), lambda one, _broker: one in there)
        own = {one for one in (2, 3) if ranked(one, {1, 9})[0] == 1}
        await gateway.start(ListeningSockets([]))
        assert set(gateway.clients.addresses) == own
        there.clear()
        assert await gateway.keep_to_peers()
        assert set(gateway.clients.addresses) == {2, 3}
        there.add(9)
        assert await gateway.keep_to_peers()
        assert set(gateway.clients.addresses) == own
