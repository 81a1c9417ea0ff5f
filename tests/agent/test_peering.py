"""How the agent names itself to others, and what it lets them ask."""

import struct
from pathlib import Path

import pytest

from agent.identity import AgentIdentity
from agent.settings.agent_settings import AgentSettings
from agent.settings.setting_types import AgentSettingsError
from agent.settings_file import agent_settings
from agent.wiring.peering import broker_requests, gateway_tls, max_request_bytes, own_hello
from kafka_log.broker_files.server_properties import BrokerProperties, parse_broker_properties
from replication.wire.broker_requests import RequestRefusedError
from replication.wire.peer_connection import PeerTls
from replication.wire.peer_protocol import CAPABILITIES, Hello, PeerCapabilities, agree

IDENTITY = AgentIdentity("cluster", 2, 22, None, 0)
MIB = 1024 * 1024
FILE = Path("/etc/kafka/server.properties")


def broker(**keys: str) -> BrokerProperties:
    raw = {
        "node.id": "2",
        "process.roles": "broker",
        "log.dirs": "/data/kafka",
        "listeners": "PLAINTEXT://:9092",
        **{key.replace("_", "."): value for key, value in keys.items()},
    }
    return parse_broker_properties(raw, FILE)


def parsed(**keys: str) -> AgentSettings:
    return agent_settings(broker(**keys), FILE)


def hello(archive: str, digest: str = "crc32c") -> Hello:
    settings = parsed(remote_wal_archive_enable=archive, remote_wal_link_digest=digest, remote_wal_pack_enable="false")
    return own_hello(IDENTITY, settings, shares_reads=False)


def test_an_agent_with_an_archive_has_all_capabilities() -> None:
    assert hello("true") == Hello("cluster", 2, 22, CAPABILITIES)


@pytest.mark.parametrize(("leader", "follower"), [("true", "false"), ("false", "true"), ("false", "false")])
def test_links_to_archive_objects_are_agreed_upon_only_where_both_agents_have_the_archive_on(
    leader: str, follower: str
) -> None:
    assert agree(hello("true"), hello("true")) == CAPABILITIES
    assert agree(hello(leader), hello(follower)) == CAPABILITIES & ~PeerCapabilities.ARCHIVE_LINKS


def test_digests_are_agreed_upon_only_where_both_agents_take_them() -> None:
    wants = hello("true", digest="sha256")
    assert PeerCapabilities.LINK_DIGESTS in agree(wants, wants)
    assert agree(wants, hello("true")) == agree(hello("true"), wants) == CAPABILITIES


def may_ask(api_key: int, **keys: str) -> bool:
    try:
        broker_requests(broker(**keys), parsed(**keys).process).check(struct.pack(">hhi", api_key, 1, 1))
    except RequestRefusedError:
        return False
    return True


METADATA, DELETE_TOPICS = 3, 20


def test_what_kip_405s_metadata_manager_asks_passes_where_it_comes_by_agents() -> None:
    tiers = {"remote_log_storage_system_enable": "true"}
    assert not may_ask(METADATA)
    assert may_ask(METADATA, **tiers)
    assert may_ask(METADATA, **tiers, remote_log_metadata_manager_listener_name="PLAINTEXT")
    assert not may_ask(METADATA, **tiers, remote_log_metadata_manager_listener_name="CLIENT")
    assert not may_ask(DELETE_TOPICS, **tiers)


def test_operators_may_name_more_requests_as_kafka_names_them() -> None:
    assert may_ask(DELETE_TOPICS, remote_wal_agent_peer_requests="Metadata, DeleteTopics")
    assert may_ask(DELETE_TOPICS, remote_wal_agent_peer_requests="*")
    with pytest.raises(AgentSettingsError, match="'Deletion' is no request"):
        parsed(remote_wal_agent_peer_requests="Deletion")


def test_a_gateway_shows_its_own_certificate_where_it_has_one() -> None:
    tls = {f"remote_wal_agent_ssl_{one}_file": f"/tls/agent.{one}" for one in ("certificate", "key", "ca")}
    own = {f"remote_wal_gateway_peer_ssl_{one}_file": f"/tls/gateway.{one}" for one in ("certificate", "key")}

    def shown(**keys: str) -> PeerTls | None:
        settings = parsed(**keys)
        return gateway_tls(settings.tls, settings.gateway)

    authority = Path("/tls/agent.ca")
    assert shown(**tls) == PeerTls(Path("/tls/agent.certificate"), Path("/tls/agent.key"), authority)
    assert shown(**tls, **own) == PeerTls(Path("/tls/gateway.certificate"), Path("/tls/gateway.key"), authority)
    assert shown(**own) is None


def test_requests_are_as_large_as_the_broker_takes_them_and_never_less_than_by_its_default() -> None:
    assert max_request_bytes(broker(socket_request_max_bytes=str(200 * MIB))) == 200 * MIB
    assert max_request_bytes(broker(socket_request_max_bytes=str(MIB))) == max_request_bytes(broker()) == 100 * MIB
