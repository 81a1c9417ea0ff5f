"""One line in the brokers' file, or a pattern, enables topics; a topic's own setting wins."""

import json

import pytest

from local_cluster.broker_config import AgentsMode, ClusterSettings
from local_cluster.cluster import LocalCluster
from local_cluster.object_store.store_spec import LocalDirectoryStore
from local_cluster.polling import wait_until
from tests.cluster.agent_views import describe
from tests.cluster.conftest import ClusterFactory
from tests.cluster.recovery_commands import ask_cluster
from tests.cluster.script import PATIENCE_S

BY_FILE = {"remote.wal.storage.enable": "true", "remote.wal.storage.topics.exclude": "tmp-.*"}


def expect_enabled(cluster: LocalCluster, *topics: str) -> None:
    """All agents know exactly these topics as enabled."""
    wait_until(
        lambda: all(describe(cluster, one)["enabled_topics"] == sorted(topics) for one in cluster.broker_ids),
        f"{topics} are enabled",
        PATIENCE_S,
    )


@pytest.mark.thorough
def test_the_file_enables_present_and_future_topics_a_pattern_more_and_a_topic_keeps_its_own_word(
    make_cluster: ClusterFactory,
) -> None:
    # one by the file, one excluded -> a pattern brings that one -> off by its own word -> a future topic -> reset
    cluster = make_cluster(ClusterSettings(AgentsMode(LocalDirectoryStore(), BY_FILE)))
    for topic in ("orders", "tmp-1"):
        cluster.admin.create_topic(topic, 2)
    expect_enabled(cluster, "orders")
    ask_cluster(cluster, "topics", "enable", "tmp-.*", "--pattern", "--link-policy", "always")
    expect_enabled(cluster, "orders", "tmp-1")
    ask_cluster(cluster, "topics", "disable", "orders")
    expect_enabled(cluster, "tmp-1")
    cluster.admin.create_topic("later", 1)
    expect_enabled(cluster, "later", "tmp-1")
    told = json.loads(ask_cluster(cluster, "describe", "--json"))["topic_settings"]
    origins = {topic: tuple(keys["remote.wal.storage.enable"].values()) for topic, keys in told.items()}
    assert origins == {
        "later": ("true", "server.properties"),
        "orders": ("false", "topic"),
        "tmp-1": ("true", "pattern tmp-.*"),
    }
    assert told["tmp-1"]["remote.wal.link.policy"] == {"value": "always", "from": "pattern tmp-.*"}
    ask_cluster(cluster, "topics", "reset", "orders")
    expect_enabled(cluster, "later", "orders", "tmp-1")
    ask_cluster(cluster, "topics", "disable", "tmp-.*", "--pattern")
    expect_enabled(cluster, "later", "orders")
