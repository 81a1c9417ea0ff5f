"""The way past dead agents in server.properties: what would open it to others is refused, and TLS proves the broker."""

import asyncio
import ssl
import time
from pathlib import Path

import pytest

from agent.settings.agent_settings import AgentSettings
from agent.settings.bypass import bypass, tls_context
from agent.settings.setting_types import AgentSettingsError
from agent.settings_file import agent_settings
from kafka_cluster.client_config import KafkaClientConfig
from kafka_log.broker_files.server_properties import BrokerProperties, parse_broker_properties
from local_cluster.security.authority import Authority
from replication.follower.leader_bypass import Bypass
from replication.wire.framed_connection import FramedConnection
from replication.wire.peer_connection import Address, connect_framed
from replication.wire.sasl_login import SaslLogin

FILE = Path("/etc/kafka/server.properties")
TLS = {
    "remote.wal.agent.ssl.certificate.file": "/tls/agent.pem",
    "remote.wal.agent.ssl.key.file": "/tls/agent.key",
    "remote.wal.agent.ssl.ca.file": "/tls/ca.pem",
}
SASL = {"listener.security.protocol.map": "WAL:SASL_PLAINTEXT"}
KEY = "remote.wal.agent.bypass"
BROKER_TLS = "remote.wal.agent.broker.ssl"


def parsed(**keys: str) -> tuple[BrokerProperties, AgentSettings]:
    """Keys without the prefix of the bypass's, in Python's spelling; or whole."""
    raw = {
        "node.id": "1",
        "log.dirs": "/data/kafka",
        "listeners": "WAL://127.0.0.1:19901",
        "inter.broker.listener.name": "WAL",
        "listener.security.protocol.map": "WAL:PLAINTEXT",
        "remote.wal.agent.peers": "1@10.0.0.1:19090,2@10.0.0.2:19090,3@10.0.0.3:19090",
        KEY: "1@10.0.0.1:9095,2@10.0.0.2:9095",
    }
    raw |= {key if "." in key else f"{KEY}.{key.replace('_', '.')}": value for key, value in keys.items()}
    broker = parse_broker_properties(raw, FILE)
    return broker, agent_settings(broker, FILE)


def made(broker: BrokerProperties, settings: AgentSettings, **client: str) -> Bypass | None:
    properties = {key.replace("_", "."): value for key, value in client.items()}
    return bypass(broker, settings, KafkaClientConfig("", properties), time.monotonic)


def refused(**keys: str) -> str:
    with pytest.raises(AgentSettingsError) as caught:
        parsed(**keys)
    return str(caught.value)


def test_other_brokers_are_dialled_past_their_agents_and_the_own_one_is_passed_over() -> None:
    found = made(*parsed(**TLS))
    assert found is not None
    assert found.brokers == {2: Address("10.0.0.2", 9095)}
    assert (found.limits.after_s, found.limits.return_after_s) == (3.0, 10.0)


def test_without_the_key_no_agent_is_bypassed() -> None:
    assert made(*parsed(**{KEY: ""})) is None


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({**TLS, KEY: "1@10.0.0.1:9095,7@10.0.0.7:9095"}, f"{KEY}: broker 7 is not in remote.wal.agent.peers"),
        ({**TLS, KEY: "2@10.0.0.2"}, f"{KEY}: "),
        ({**TLS, KEY: "2@10.0.0.2:19090"}, f"{KEY}: 2@10.0.0.2:19090 is that broker's agent"),
        ({**TLS, KEY: "2@a:1,2@b:1"}, "named twice"),
        ({**TLS, "security_protocol": "TLS"}, f"{KEY}.security.protocol: "),
        ({"security_protocol": "PLAINTEXT"}, f"{KEY}.plaintext.accepted: "),
        ({**SASL, "security_protocol": "SASL_PLAINTEXT"}, f"{KEY}.plaintext.accepted: "),
        ({}, f"{BROKER_TLS}.ca.file: "),
        ({f"{BROKER_TLS}.ca.file": "/tls/ca.pem"}, f"{BROKER_TLS}.certificate.file: "),
        ({**TLS, f"{BROKER_TLS}.certificate.file": "/tls/other.crt"}, f"{BROKER_TLS}.*: "),
        ({**TLS, **SASL}, f"{KEY}.security.protocol: "),
    ],
)
def test_what_would_not_work_or_open_the_broker_is_refused_with_its_key(keys: dict[str, str], named: str) -> None:
    message = refused(**keys)
    assert message.startswith(str(FILE))
    assert named in message


@pytest.mark.parametrize(
    "keys",
    [
        {"security_protocol": "PLAINTEXT", "plaintext_accepted": "true"},
        {**SASL, "security_protocol": "SASL_PLAINTEXT", "plaintext_accepted": "true"},
        {**SASL, "security_protocol": "SASL_SSL", f"{BROKER_TLS}.ca.file": "/tls/ca.pem"},
    ],
)
def test_what_goes_together_is_taken(keys: dict[str, str]) -> None:
    assert made(*parsed(**keys)) is not None


def test_where_the_broker_does_not_log_in_the_agent_does_as_its_kafka_client() -> None:
    settings = parsed(**TLS, security_protocol="SASL_SSL")
    found = made(*settings, sasl_mechanism="SCRAM-SHA-512", sasl_username="agent-1", sasl_password="planted")
    assert found is not None
    assert getattr(found.login, "__self__", None) == SaslLogin("SCRAM-SHA-512", "agent-1", "planted")
    assert "planted" not in repr(found)
    with pytest.raises(AgentSettingsError, match=r"remote\.wal\.agent\.client\.config .* it has GSSAPI"):
        made(*settings, sasl_mechanism="GSSAPI")


def test_where_the_broker_logs_in_itself_the_agent_adds_no_login() -> None:
    found = made(*parsed(**TLS, **SASL, security_protocol="SASL_SSL"), sasl_mechanism="PLAIN", sasl_username="agent-1")
    assert found is not None
    assert found.login is None


async def echo(connection: FramedConnection) -> None:
    while (frame := await connection.read_frame()) is not None:
        connection.write_frame(frame)


@pytest.mark.parametrize("named", ["127.0.0.1", "127.0.0.9"])
async def test_the_brokers_certificate_must_name_the_host_that_is_dialled(tmp_path: Path, named: str) -> None:
    authority = Authority(tmp_path)
    own, other = authority.tls_for("broker-1"), authority.tls_for("broker-2", [named])
    tasks: list[asyncio.Task[None]] = []
    files = {"certificate": own.certificate_file, "key": own.key_file, "ca": own.ca_file}
    _, settings = parsed(**{f"{BROKER_TLS}.{name}.file": str(file) for name, file in files.items()})
    server = await asyncio.get_running_loop().create_server(
        lambda: FramedConnection(on_connected=lambda one: tasks.append(asyncio.create_task(echo(one)))),
        "127.0.0.1",
        ssl=other.server_context(),
    )
    address = Address("127.0.0.1", server.sockets[0].getsockname()[1])
    connection = FramedConnection()
    try:
        if named == "127.0.0.1":
            await connect_framed(address, connection, tls_context(settings))
            connection.write_frame(b"hello")
            assert await connection.read_frame() == b"hello"
        else:
            with pytest.raises(ssl.SSLCertVerificationError, match=r"127\.0\.0\.1"):
                await connect_framed(address, connection, tls_context(settings))
    finally:
        connection.close()
        server.close()
        await asyncio.gather(*tasks)
