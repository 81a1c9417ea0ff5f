"""How the agent names itself to others."""

from pathlib import Path

import pytest

from agent.identity import AgentIdentity
from agent.peering import own_hello
from agent.settings_file import agent_settings
from kafka_log.server_properties import parse_broker_properties
from replication.wire.peer_protocol import CAPABILITIES, Hello, PeerCapabilities, agree

IDENTITY = AgentIdentity("cluster", 2, 22, None, 0)
FILE = Path("/etc/kafka/server.properties")


def hello(archive: str) -> Hello:
    raw = {
        "node.id": "2",
        "process.roles": "broker",
        "log.dirs": "/data/kafka",
        "listeners": "PLAINTEXT://:9092",
        "remote.wal.archive.enable": archive,
    }
    return own_hello(IDENTITY, agent_settings(parse_broker_properties(raw, FILE), FILE).archive.enable)


def test_an_agent_with_an_archive_has_all_capabilities() -> None:
    assert hello("true") == Hello("cluster", 2, 22, CAPABILITIES)


@pytest.mark.parametrize(("leader", "follower"), [("true", "false"), ("false", "true"), ("false", "false")])
def test_links_to_archive_objects_are_agreed_upon_only_where_both_agents_have_the_archive_on(
    leader: str, follower: str
) -> None:
    assert agree(hello("true"), hello("true")) == CAPABILITIES
    assert agree(hello(leader), hello(follower)) == CAPABILITIES & ~PeerCapabilities.ARCHIVE_LINKS
