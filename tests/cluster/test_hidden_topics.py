"""What a real broker says of topics that a client may not describe, and what is concluded from it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from doctor.cluster_questions import ask_topics
from kafka_cluster.client_config import KafkaClientConfig
from kafka_log.topic_partition import TopicId, topic_id_to_text
from local_cluster.broker_config import ClusterSettings, server_properties
from local_cluster.cluster import LocalCluster
from local_cluster.layout import free_port_block
from local_cluster.polling import wait_until
from metadata_topic.settings.topic_settings import TopicSettings
from metadata_topic.settings.wal_retention import AgentsRetention
from metadata_topic.topic.topic import METADATA_TOPIC
from rlm.lifecycle.cluster_observer import ClusterObserver, Observation
from rlm.lifecycle.release import TopicWatch
from tests.cluster.replica_moves import delete_topic
from tests.cluster.script import PATIENCE_S

GRACE_MS = 1000
LONG_AFTER_MS = 1_000_000
ORDERS = "orders"
WATCHER = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "watcher",
    "sasl.password": "watcher-secret",
}
LIBRDKAFKAS_ALONE = {"enable.ssl.certificate.verification": "true"}
"""With this, topics are asked for by name alone."""


@pytest.fixture
def watchers_port() -> int:
    return free_port_block(1, Random()).start


@pytest.fixture
def cluster(tmp_path: Path, watchers_port: int) -> Iterator[LocalCluster]:
    """One broker, with an authorizer, and a listener at which a client has a name that can be denied things."""
    layout = LocalCluster.create(tmp_path / "cluster", brokers=1).layout
    plain = server_properties(layout, 1, ClusterSettings())
    own = f",WATCHER://127.0.0.1:{watchers_port}"
    overrides = {
        "listeners": plain["listeners"] + own,
        "advertised.listeners": plain["advertised.listeners"] + own,
        "listener.security.protocol.map": plain["listener.security.protocol.map"] + ",WATCHER:SASL_PLAINTEXT",
        "listener.name.watcher.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.watcher.plain.sasl.jaas.config": (
            "org.apache.kafka.common.security.plain.PlainLoginModule required "
            f'user_{WATCHER["sasl.username"]}="{WATCHER["sasl.password"]}";'
        ),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "allow.everyone.if.no.acl.found": "true",
        # A topic that is asked for by name must not come into being by that.
        "auto.create.topics.enable": "true",
    }
    with LocalCluster.open(tmp_path / "cluster", settings=ClusterSettings(overrides=overrides)) as cluster:
        cluster.start()
        yield cluster


class Watcher:
    """Observes as the agents of a cluster do; the times are the test's."""

    def __init__(self, port: int, login: Mapping[str, str] = WATCHER, *, heard_of: tuple[str, ...] = (ORDERS,)) -> None:
        self._observer = ClusterObserver(KafkaClientConfig(f"127.0.0.1:{port}", login), 1, TopicWatch(GRACE_MS))
        self._heard_of = heard_of
        self.wanted: set[TopicId] = set()

    def look(self, now_ms: int) -> Observation:
        return self._observer.observe(self.wanted, self._heard_of, lambda: now_ms)

    def says_gone(self, topic_id: TopicId, now_ms: int) -> bool:
        self.wanted.add(topic_id)
        return self.look(now_ms).view.is_gone(topic_id)


@contextmanager
def hidden(cluster: LocalCluster) -> Iterator[None]:
    """The watcher may not describe the topic."""
    whom = (ResourceType.TOPIC, ORDERS, ResourcePatternType.LITERAL, f"User:{WATCHER['sasl.username']}", "*")
    what = (AclOperation.DESCRIBE, AclPermissionType.DENY)
    [created] = cluster.admin.client.create_acls([AclBinding(*whom, *what)]).values()
    created.result(PATIENCE_S)
    yield
    [deleted] = cluster.admin.client.delete_acls([AclBindingFilter(*whom, *what)]).values()
    deleted.result(PATIENCE_S)


def test_a_topic_is_gone_when_it_was_deleted_and_not_when_it_is_hidden(
    cluster: LocalCluster, watchers_port: int
) -> None:
    for name in (METADATA_TOPIC, ORDERS):
        cluster.admin.create_topic(name, assignment=[[1]])
    watcher, stranger = Watcher(watchers_port), Watcher(watchers_port, heard_of=())
    by_name = [Watcher(watchers_port, WATCHER | LIBRDKAFKAS_ALONE) for _ in range(2)]
    seen = wait_until(lambda: {n: i for i, n in watcher.look(0).names.items()}, "the topics are there", PATIENCE_S)
    assert by_name[0].look(0).names == watcher.look(0).names
    orders = seen[ORDERS]
    with hidden(cluster):
        wait_until(lambda: watcher.look(0).hidden == {ORDERS}, "the topic is hidden", PATIENCE_S)
        for late_ms in (0, LONG_AFTER_MS):
            for one in (watcher, stranger, *by_name):
                assert not one.says_gone(orders, late_ms)
        assert stranger.look(LONG_AFTER_MS).hidden == {topic_id_to_text(orders)}, "it knows no name"
        client = KafkaClientConfig(f"127.0.0.1:{watchers_port}", WATCHER)
        assert ask_topics(client, {ORDERS: TopicSettings(enable=True)}, AgentsRetention.registered(()), PATIENCE_S)[
            ORDERS
        ].is_hidden, "doctor is told"

        # By its id it can be told that it is deleted now; by its name it cannot.
        delete_topic(cluster.admin, ORDERS)
        for one in (watcher, stranger):
            deleted = partial(is_missing, one, orders, LONG_AFTER_MS)
            wait_until(deleted, "the broker does not know the id any more", PATIENCE_S)
            assert not one.says_gone(orders, LONG_AFTER_MS + GRACE_MS - 1)
            assert one.says_gone(orders, LONG_AFTER_MS + GRACE_MS)
        for one in by_name:
            assert not one.says_gone(orders, 2 * LONG_AFTER_MS)
    for one in by_name:
        shown = partial(shows_all, one, 2 * LONG_AFTER_MS)
        wait_until(shown, "it is not hidden any more", PATIENCE_S)
        assert not one.says_gone(orders, 2 * LONG_AFTER_MS + GRACE_MS - 1)
        assert one.says_gone(orders, 2 * LONG_AFTER_MS + GRACE_MS)
    assert ORDERS not in cluster.admin.client.list_topics(timeout=10).topics


def is_missing(watcher: Watcher, topic_id: TopicId, now_ms: int) -> bool:
    return topic_id in watcher.look(now_ms).view.missing


def shows_all(watcher: Watcher, now_ms: int) -> bool:
    return not watcher.look(now_ms).hidden
