"""Secrets that an agent is given appear nowhere in what it tells."""

import asyncio
import http.client
import logging
import traceback
from pathlib import Path

import pytest

import metadata_topic.topic.metadata_topics as metadata_topics
from agent.identity import AgentLock
from agent.process import Agent
from agent.settings.kafka_client import client_config
from agent.settings.process_settings import BrokerTlsSettings
from agent.settings.setting_types import AgentSettingsError
from agent.settings_file import agent_settings
from agent.tls.broker_tls import BrokerTls, broker_tls_plan
from kafka_cluster.client_config import KafkaClientConfig
from kafka_cluster.errors import KafkaClusterError
from kafka_log.broker_files.server_properties import load_broker_properties
from kafka_log.errors import BrokerPropertiesError
from metadata_topic.records.errors import MetadataTopicError

PLANTED = "planted-0123456789"
SERVER_PROPERTIES = """
process.roles=broker
node.id=1
log.dirs={directory}/data
listeners=PLAINTEXT://127.0.0.1:1,REPLICATION://127.0.0.1:2
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,REPLICATION:PLAINTEXT
inter.broker.listener.name=REPLICATION
ssl.keystore.password=planted-0123456789-keystore
remote.log.wal.storage.system.enable=true
remote.log.wal.storage.manager.class.name=plugin.s3.S3WalStorageManager
{prefix}bucket=bucket
{prefix}region=us-east-1
{prefix}allow.http=true
{prefix}endpoint.url=http://127.0.0.1:9
{prefix}credentials.file={directory}/credentials
{prefix}attempt.timeout.ms=600
{prefix}total.timeout.ms=600
remote.wal.agent.state.directory={directory}/state
remote.wal.agent.peer.listener=127.0.0.1:0
remote.wal.agent.http.listener=127.0.0.1:0
remote.wal.agent.client.config={directory}/client.properties
remote.wal.agent.shutdown.timeout.ms=0
"""


@pytest.fixture
def properties(tmp_path: Path) -> Path:
    from plugin.loading import IMPL_PREFIX

    (tmp_path / "data").mkdir()
    (tmp_path / "data/meta.properties").write_text("version=1\ncluster.id=abc\nnode.id=1\n")
    (tmp_path / "credentials").write_text(
        f"[default]\naws_access_key_id={PLANTED}-id\naws_secret_access_key={PLANTED}-key\n"
    )
    (tmp_path / "client.properties").write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config="
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        f'username="agent" password="{PLANTED}-sasl";\n'
    )
    path = tmp_path / "server.properties"
    path.write_text(SERVER_PROPERTIES.format(directory=tmp_path, prefix=IMPL_PREFIX))
    return path


def _brokers_are_away(client: KafkaClientConfig, *_: object) -> object:
    """Without Kafka's own client, which would go on dialling, and telling so, for long after the test."""
    raise MetadataTopicError("make topics", client.bootstrap_servers, "no broker answers")


def fields_of(made: object) -> list[str]:
    return [*getattr(made, "__slots__", ()), *getattr(made, "__dict__", ())]


def ask(port: int, path: str) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        return connection.getresponse().read()
    finally:
        connection.close()


async def test_a_whole_run_tells_no_secret(
    properties: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither Kafka nor object storage answers, so there is much to complain about."""
    monkeypatch.setattr("plugin.loading.RETRY_S", 0.01)
    monkeypatch.setattr(metadata_topics, "KafkaCluster", _brokers_are_away)
    caplog.set_level(logging.INFO)  # botocore, told to debug, writes down whole requests
    broker = load_broker_properties(properties)
    found = agent_settings(broker, properties)
    lock = AgentLock(found.process.state_directory)
    running = Agent(broker, found, lock)
    stop = asyncio.Event()
    run = asyncio.create_task(running.run(stop))
    told: list[str] = []
    try:
        async with asyncio.timeout(60):
            awaited = {"storage_not_there", "agent_started"}
            while running.state.storage_run is None or any(one not in "".join(told) for one in awaited):
                await asyncio.sleep(0.02)
                told += capfd.readouterr()
                assert not run.done()
        assert running.http.address is not None
        run_made = running.state.storage_run
        port = running.http.address.port
        for path in ("/metrics", "/describe", "/objects", "/config", "/", "/readyz", "/livez"):
            told.append((await asyncio.to_thread(ask, port, path)).decode())
    finally:
        stop.set()
        await run
        lock.release()
    told += capfd.readouterr()
    told += [record.getMessage() for record in caplog.records]
    told += [
        repr(part)
        for part in (
            broker,
            found,
            running,
            *vars(running).values(),
            *(getattr(running.state, name) for name in fields_of(running.state)),
        )
    ]
    system = running.state.system
    assert system is not None
    assert run_made is not None
    shown = (running, running.state, system, run_made, run_made.kafka, run_made.write_path)
    fields = [[getattr(each, name) for name in fields_of(each)] for each in shown]
    told += [str(fields), repr(fields)]
    everything = "\n".join(told)
    assert "remote_wal_led_partitions" in everything
    assert "agent_started" in everything
    found_at = everything.find(PLANTED)
    assert found_at < 0, everything[max(found_at - 200, 0) : found_at]


def test_a_secret_in_a_wrong_place_is_not_repeated_in_the_error(properties: Path) -> None:
    with properties.open("a") as file:
        file.write(f"remote.wal.secret.key={PLANTED}\n")
    broker = load_broker_properties(properties)
    with pytest.raises(AgentSettingsError, match=r"remote\.wal\.secret\.key") as caught:
        agent_settings(broker, properties)
    assert PLANTED not in "".join(traceback.format_exception(caught.value))


JAAS = "sasl.mechanism=PLAIN\nsasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required "
WRONG_LOGINS = {
    "no user": f'{JAAS}password="{PLANTED}";',
    "options without values": f"{JAAS}{PLANTED};",
    "an unknown module": f'sasl.mechanism=PLAIN\nsasl.jaas.config=Some required username="a" password="{PLANTED}";',
    "an unknown provider": f"sasl.mechanism=PLAIN\nssl.key.password=${{vault:{PLANTED}}}-{PLANTED}",
}


@pytest.mark.parametrize("login", WRONG_LOGINS.values(), ids=WRONG_LOGINS)
def test_what_is_wrong_with_a_login_is_told_without_it(properties: Path, login: str) -> None:
    client = properties.with_name("client.properties")
    client.write_text(f"security.protocol=SASL_PLAINTEXT\n{login}\n")
    broker = load_broker_properties(properties)
    with pytest.raises((AgentSettingsError, KafkaClusterError, BrokerPropertiesError)) as caught:
        client_config(broker, agent_settings(broker, properties).client)
    assert PLANTED not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("key", ["ssl.keystore.key", "ssl.keystore.certificate.chain", "ssl.truststore.certificates"])
def test_what_is_wrong_with_a_key_is_told_without_it(properties: Path, key: str) -> None:
    with properties.open("a") as file:
        file.write("listener.security.protocol.map=PLAINTEXT:PLAINTEXT,REPLICATION:SSL\n")
        file.write("ssl.keystore.type=PEM\nssl.truststore.type=PEM\n")
        file.write("".join(f"{one}={PLANTED}\n" for one in {key, "ssl.keystore.key", "ssl.keystore.certificate.chain"}))
    broker = load_broker_properties(properties)
    plan = broker_tls_plan(broker, BrokerTlsSettings())
    assert plan is not None
    assert PLANTED not in repr(plan)
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever it is, it tells nothing
        BrokerTls(plan).client_context()
    assert PLANTED not in "".join(traceback.format_exception(caught.value))
