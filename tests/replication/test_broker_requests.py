"""Which requests pass between brokers, in whose name, and who may ask for them."""

import struct
from pathlib import Path

import pytest
from kafka.protocol.api_key import ApiKey

from local_cluster.security.authority import Authority
from replication.follower.leader_bypass import RouteLimits
from replication.wire.broker_requests import (
    BROKER_REQUESTS,
    METADATA_MANAGER_REQUESTS,
    BrokerRequests,
    RequestRefusedError,
    parse_request_names,
)
from replication.wire.fetch_frame import FETCH_API_KEY, scan_fetch_request
from replication.wire.framed_connection import FramedConnection
from replication.wire.kafka_frame import parse_request_header
from replication.wire.peer_connection import connect_framed, exchange_hellos
from replication.wire.peer_protocol import CAPABILITIES, Hello, PeerCapabilities
from tests.kafka_log.batches import batches
from tests.metric_values import metric_value
from tests.replication.captured_requests import captured
from tests.replication.fetch_frames import request
from tests.replication.test_peer_handlers import agents_under_tls
from tests.replication.test_peer_tls import on_both_event_loops
from tests.replication.two_agents import Agents, framed, two_agents

ASKED = {name for group in BROKER_REQUESTS.values() for name in group}


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def asks(api: int, correlation_id: int = 5) -> bytes:
    return struct.pack(">hhih", api, 1, correlation_id, 1) + b"x"


def refused(agents: Agents, listener: str, api: str) -> float:
    metrics = agents.leader_metrics if listener == "peer" else agents.follower_metrics
    return metric_value(metrics.held.refused_requests.labels(listener, api))


def test_each_request_has_the_name_that_kafka_gives_it() -> None:
    by_name = {api.name: api.value for api in ApiKey}
    for name, key in by_name.items():
        only = BrokerRequests(parse_request_names(name))  # type: ignore[arg-type]
        only.check(asks(key))
    for name in ASKED | set(METADATA_MANAGER_REQUESTS):
        BrokerRequests([name]).check(asks(by_name[name]))


@pytest.mark.parametrize(("key", "name"), [(93, "StreamsGroupTopologyDescriptionUpdate"), (94, "UnregisterController")])
def test_requests_of_kafka_4_4_are_named_and_refused(key: int, name: str) -> None:
    with pytest.raises(RequestRefusedError, match=rf"{name} \(API key {key}\)"):
        BrokerRequests().check(asks(key))
    BrokerRequests(parse_request_names(name)).check(asks(key))  # type: ignore[arg-type]


def test_dead_letter_queues_of_share_groups_pass_and_no_other_change_of_topics() -> None:
    for name in ("Produce", "CreateTopics"):
        BrokerRequests().check(asks(ApiKey[name]))
    for name in ("DeleteTopics", "DeleteRecords", "IncrementalAlterConfigs", "CreatePartitions", "InitProducerId"):
        with pytest.raises(RequestRefusedError):
            BrokerRequests().check(asks(ApiKey[name]))


def test_what_is_named_beside_brokers_own_requests_passes_too() -> None:
    more = BrokerRequests(["DeleteTopics", "93", "95"])
    for key in (1, 20, 93, 95):
        more.check(asks(key))
    for key in (21, 94, 96, -1):
        with pytest.raises(RequestRefusedError):
            more.check(asks(key))
    everything = BrokerRequests(["*"])
    for key in (1, 21, 96, -1):
        everything.check(asks(key))


async def expect_brokers_requests_alone(agents: Agents, listener: str) -> None:
    address = agents.leader_address if listener == "peer" else agents.follower_address
    for api in ApiKey:
        if api.name == "Fetch":
            continue
        asker = await agents.connect(address)
        before = len(agents.broker.requests)
        asker.writer.write(framed(asks(api)))
        assert (await asker.receive() is not None) == (api.name in ASKED), api.name
        assert len(agents.broker.requests) - before == (api.name in ASKED), api.name
        if api.name not in ASKED:
            await agents.until(lambda: refused(agents, listener, api.name) == 1)  # noqa: B023


@pytest.mark.parametrize("listener", ["peer", "replica"])
async def test_only_what_brokers_ask_each_other_reaches_one(listener: str) -> None:
    async with two_agents() as agents:
        await expect_brokers_requests_alone(agents, listener)
        raw = batches(1, 0)
        agents.append({0: raw})
        follower = await agents.connect()
        assert await follower.fetch({0: 0}) == follower.expected({0: raw})


async def test_past_a_dead_agent_only_what_brokers_ask_each_other_passes_too() -> None:
    limits = RouteLimits(after_s=0.3, return_after_s=100.0)
    async with two_agents(bypass_limits=limits) as agents:
        await agents.leader.stop()
        agents.bypass_ahead_s = 10.0
        await expect_brokers_requests_alone(agents, "replica")
        assert agents.follower.bypasses.bypassed == [1]


async def dial(agents: Agents, authority: Authority, name: str, *also: str) -> FramedConnection:
    connection = FramedConnection()
    await connect_framed(agents.leader_address, connection, authority.tls_for(name, also=also).client_context())
    return connection


async def greet(agents: Agents, authority: Authority, hello: Hello, name: str, *also: str) -> FramedConnection:
    """Raises ConnectionError when the leader's agent refuses it."""
    connection = await dial(agents, authority, name, *also)
    await exchange_hellos(connection, hello, expected_broker_id=1)
    return connection


@on_both_event_loops
async def test_under_tls_who_says_no_hello_asks_for_nothing_whatever_its_certificate_names(
    authority: Authority,
) -> None:
    async with agents_under_tls(authority) as agents:
        agents.append({0: batches(1, 0)})
        for name in ("some-other-service", "broker-2"):
            connection = await dial(agents, authority, name)
            connection.write_frame(request({0: 0}))
            assert await connection.read_frame() is None
            connection.close()
        assert agents.broker.requests == []
        assert agents.leader_faults("peer_refused") == 2


@on_both_event_loops
async def test_a_certificate_for_another_cluster_is_refused_and_one_for_this_is_good(authority: Authority) -> None:
    async with agents_under_tls(authority) as agents:
        for also in ((), ("cluster-cluster",), ("cluster-other", "cluster-cluster")):
            (await greet(agents, authority, Hello("cluster", 2, 22), "broker-2", *also)).close()
        assert agents.leader_faults("peer_refused") == 0
        with pytest.raises(ConnectionError):
            await greet(agents, authority, Hello("cluster", 2, 22), "broker-2", "cluster-other")
        assert agents.leader_faults("peer_refused") == 1


@on_both_event_loops
async def test_a_gateways_certificate_is_good_for_clients_alone(authority: Authority) -> None:
    async with agents_under_tls(authority) as agents:
        with pytest.raises(ConnectionError):
            await greet(agents, authority, Hello("cluster", 2, 22), "gateway-2")
        assert agents.leader_faults("peer_refused") == 1
        clients = CAPABILITIES | PeerCapabilities.CLIENTS
        with pytest.raises(ConnectionError):
            await greet(agents, authority, Hello("cluster", 3, 22, clients), "gateway-2")
        connection = await greet(agents, authority, Hello("cluster", 2, 22, clients), "gateway-2")
        connection.close()


@pytest.mark.parametrize("release", captured())
def test_what_brokers_of_each_release_were_seen_to_ask_passes(release: str) -> None:
    frames = captured()[release]
    for frame in frames:
        BrokerRequests().check(frame)
        header = parse_request_header(frame)
        if header.api_key == FETCH_API_KEY:
            assert scan_fetch_request(frame, header.api_version).replica_id in (1, 2, 3)
