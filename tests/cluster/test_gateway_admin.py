"""Kafka's own tools set and show remote.wal.* of topics, by the agents' ports for admin tools.

Brokers have an authorizer. Who a client is, its SASL login says, end to end: operator may do all, reader may describe
topics, and alter nothing.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from kafka_cluster.client_config import KafkaClientConfig
from local_cluster.cluster import LocalCluster
from local_cluster.kafka_tools import KafkaToolError
from local_cluster.polling import wait_until
from local_cluster.zones import ZoneGateways
from metadata_topic.settings.settings_topic import read_settings
from metadata_topic.settings.topic_settings import LinkPolicy, TopicSettings
from tests.cluster.gateway_cluster import THREE_ZONES, gateway_cluster
from tests.cluster.script import PATIENCE_S

GATEWAYS = ZoneGateways(THREE_ZONES, admin=True, security_protocol="SASL_PLAINTEXT")
ENABLE, POLICY, BOUND = "remote.wal.storage.enable", "remote.wal.link.policy", "remote.wal.link.latency.bound.ms"
TIMEOUT_S = 60.0
PASSWORDS = {"operator": "o-secret", "reader": "r-secret"}
LISTENERS = ("client_az1", "client_az2", "client_az3", "client_admin")

pytestmark = pytest.mark.timeout(600)


def sasl_listeners() -> dict[str, str]:
    users = " ".join(f'user_{name}="{password}"' for name, password in PASSWORDS.items())
    module = f"org.apache.kafka.common.security.plain.PlainLoginModule required {users};"
    return {f"listener.name.{name}.plain.sasl.jaas.config": module for name in LISTENERS}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    brokers = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        # Brokers, agents and the test itself come by listeners without a login.
        "super.users": "User:ANONYMOUS;User:operator",
        "sasl.enabled.mechanisms": "PLAIN",
        **sasl_listeners(),
    }
    with gateway_cluster(tmp_path_factory, GATEWAYS, broker_keys=brokers) as made:
        may_read = [
            AclBinding(
                ResourceType.TOPIC, "*", ResourcePatternType.LITERAL, "User:reader", "*", one, AclPermissionType.ALLOW
            )
            for one in (AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)
        ]
        admin = AdminClient({"bootstrap.servers": made.bootstrap_servers})
        for done in admin.create_acls(may_read).values():
            done.result(TIMEOUT_S)
        yield made


@pytest.fixture
def tool(cluster: LocalCluster, tmp_path: Path) -> "Tool":
    return Tool(cluster, tmp_path)


class Tool:
    """Kafka's commands, which are told one agent's port alone."""

    def __init__(self, cluster: LocalCluster, directory: Path) -> None:
        self._cluster, self._directory = cluster, directory
        self._address = GATEWAYS.own_zone_address(cluster.layout, 1)
        self.librdkafka = AdminClient(
            {
                "bootstrap.servers": self._address,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": "operator",
                "sasl.password": PASSWORDS["operator"],
            }
        )

    def configs(self, *arguments: str, user: str = "operator") -> str:
        return self._run("org.apache.kafka.tools.ConfigCommand", *arguments, "--entity-type", "topics", user=user)

    def topics(self, *arguments: str) -> str:
        return self._run("org.apache.kafka.tools.TopicCommand", *arguments, user="operator")

    def _run(self, tool: str, *arguments: str, user: str) -> str:
        login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
        config = self._directory / f"{user}.properties"
        config.write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
            f'sasl.jaas.config={login} username="{user}" password="{PASSWORDS[user]}";\n'
        )
        where = ["--bootstrap-server", self._address, "--command-config", str(config)]
        return self._cluster.runtime.tools(self._address).run(tool, [*where, *arguments])


def settings_of(cluster: LocalCluster, topic: str) -> TopicSettings | None:
    """The topic's settings but for its id, which is not known yet when they come with the topic's creation."""
    found = read_settings(KafkaClientConfig(cluster.bootstrap_servers))[0].get(topic)
    return found and replace(found, topic_id=None)


def test_kafka_configs_sets_shows_and_deletes_our_keys_beside_kafkas(
    cluster: LocalCluster, tool: Tool, topic: str
) -> None:
    tool.topics("--create", "--topic", topic, "--partitions", "1", "--config", "retention.ms=3600000")
    of_topic = ["--entity-name", topic]
    # Brokers are asked at random, so each of them has its turn.
    for policy in ("always", "cost", "latency", "always"):
        added = f"{ENABLE}=true,{POLICY}={policy},{BOUND}=250,segment.bytes=1048576"
        tool.configs("--alter", *of_topic, "--add-config", added)
        expected = TopicSettings(True, LinkPolicy(policy), 250)
        assert settings_of(cluster, topic) == expected
    told = tool.configs("--describe", *of_topic)
    assert f"{ENABLE}=true sensitive=false synonyms={{DYNAMIC_TOPIC_CONFIG:{ENABLE}=true" in told
    assert "segment.bytes=1048576" in told
    assert "remote.wal.archive.enable" not in told
    assert "remote.wal.archive.enable=false" in tool.configs("--describe", "--all", *of_topic)
    assert f"{POLICY}=always" in tool.topics("--describe", "--topic", topic)
    tool.configs("--alter", *of_topic, "--delete-config", f"{POLICY},{BOUND},segment.bytes")
    assert settings_of(cluster, topic) == TopicSettings(enable=True)
    assert "segment.bytes" not in tool.configs("--describe", *of_topic)
    tool.configs("--alter", *of_topic, "--delete-config", ENABLE)
    assert settings_of(cluster, topic) is None


def test_the_broker_says_who_may_alter_a_topic_even_where_nothing_of_kafkas_is_to_be_altered(
    cluster: LocalCluster, tool: Tool, topic: str
) -> None:
    tool.topics("--create", "--topic", topic)
    with pytest.raises(KafkaToolError, match="TopicAuthorizationException"):
        tool.configs("--alter", "--entity-name", topic, "--add-config", f"{ENABLE}=true", user="reader")
    with pytest.raises(KafkaToolError, match="UnknownTopicOrPartitionException"):
        tool.configs("--alter", "--entity-name", f"{topic}-none", "--add-config", f"{ENABLE}=true")
    assert settings_of(cluster, topic) is None
    assert settings_of(cluster, f"{topic}-none") is None


def test_a_value_that_is_none_is_refused_by_its_keys_name_and_kafkas_part_with_it(
    cluster: LocalCluster, tool: Tool, topic: str
) -> None:
    tool.topics("--create", "--topic", topic)
    with pytest.raises(KafkaToolError, match=f"InvalidConfigurationException.*{POLICY}"):
        tool.configs("--alter", "--entity-name", topic, "--add-config", f"{POLICY}=never,retention.ms=5000")
    with pytest.raises(KafkaToolError, match=r"Unknown topic config name: remote\.wal\.unknown"):
        tool.configs("--alter", "--entity-name", topic, "--add-config", f"{ENABLE}=true,remote.wal.unknown=1")
    assert "retention.ms=5000" not in tool.configs("--describe", "--entity-name", topic)
    assert settings_of(cluster, topic) is None


def test_a_topic_is_created_with_our_keys(cluster: LocalCluster, tool: Tool, topic: str) -> None:
    wanted = {ENABLE: "true", POLICY: "always", "retention.ms": "3600000"}
    tool.librdkafka.create_topics([NewTopic(topic, 3, 3, config=wanted)])[topic].result(TIMEOUT_S)
    assert settings_of(cluster, topic) == TopicSettings(True, LinkPolicy.ALWAYS)
    assert "retention.ms=3600000" in tool.configs("--describe", "--entity-name", topic)
    refused = NewTopic(f"{topic}-refused", 1, 3, config={ENABLE: "perhaps"})
    with pytest.raises(KafkaException, match=ENABLE):
        tool.librdkafka.create_topics([refused])[f"{topic}-refused"].result(TIMEOUT_S)
    again = NewTopic(topic, 1, 3, config={ENABLE: "false"})
    with pytest.raises(KafkaException, match="already exists"):
        tool.librdkafka.create_topics([again])[topic].result(TIMEOUT_S)
    assert settings_of(cluster, topic) == TopicSettings(True, LinkPolicy.ALWAYS)
    listed = tool.topics("--list").split()
    assert topic in listed
    assert f"{topic}-refused" not in listed


def test_the_older_alteration_replaces_all_of_a_topics_settings_ours_too(
    cluster: LocalCluster, tool: Tool, topic: str
) -> None:
    tool.topics("--create", "--topic", topic, "--config", "retention.ms=3600000")

    def replace(**wanted: str) -> None:
        named = ConfigResource(ConfigResource.Type.TOPIC, topic)
        for key, text in wanted.items():
            named.set_config(key.replace("_", "."), text)
        with pytest.deprecated_call():
            asked = tool.librdkafka.alter_configs([named])
        asked[named].result(TIMEOUT_S)

    replace(segment_bytes="1048576", remote_wal_storage_enable="true", remote_wal_link_policy="always")
    assert settings_of(cluster, topic) == TopicSettings(True, LinkPolicy.ALWAYS)
    told = tool.configs("--describe", "--entity-name", topic)
    assert "segment.bytes=1048576" in told
    assert "retention.ms" not in told
    with pytest.raises(KafkaException, match=POLICY):
        replace(remote_wal_link_policy="never", segment_bytes="2097152")
    replace(remote_wal_storage_enable="true")
    assert settings_of(cluster, topic) == TopicSettings(enable=True)
    assert "segment.bytes" not in tool.configs("--describe", "--entity-name", topic)
    replace(retention_ms="3600000")
    assert settings_of(cluster, topic) is None


def test_kafka_topics_itself_refuses_names_that_it_does_not_know(tool: Tool, topic: str) -> None:
    # Before it asks anybody; then the topic is made without ours, and kafka-configs sets them.
    with pytest.raises(KafkaToolError, match=f"Unknown topic config name: {ENABLE}"):
        tool.topics("--create", "--topic", topic, "--config", f"{ENABLE}=true")


def test_agents_take_a_topic_on_that_was_enabled_so(cluster: LocalCluster, tool: Tool, topic: str) -> None:
    wanted = {ENABLE: "true", POLICY: "always"}
    tool.librdkafka.create_topics([NewTopic(topic, 1, 3, config=wanted)])[topic].result(TIMEOUT_S)
    cluster.admin.wait_for_full_isr(topic, partitions=1)
    cluster.tools.produce(topic, records=100)
    objects = cluster.layout.object_store_directory
    wait_until(lambda: any(one.is_file() for one in objects.rglob("*")), "something is uploaded", PATIENCE_S)
