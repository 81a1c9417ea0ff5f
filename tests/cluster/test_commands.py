"""Topics are switched on and off, and links paused, by the command line while agents and producers run."""

import json
from contextlib import suppress
from typing import Any

import pytest

from kafka_cluster.client_config import KafkaClientConfig
from kafka_cluster.errors import KafkaClusterError
from local_cluster.cluster import LocalCluster
from local_cluster.polling import wait_until
from metadata_topic.settings.settings_topic import read_settings
from metadata_topic.topic.topic import SETTINGS_TOPIC
from tests.cluster.agent_views import RECORD_BYTES, AgentCounters, describe, readiness
from tests.cluster.recovery_commands import ask_cluster, remote_wal
from tests.cluster.replica_moves import delete_topic
from tests.cluster.script import PATIENCE_S, PLAIN, ZSTD, Script


def described(script: Script) -> list[dict[str, Any]]:
    """The topic's partitions as `remote-wal describe` has them."""
    answer = json.loads(ask_cluster(script.cluster, "describe", "--json", "--topic", script.topic))
    assert answer["silent"] == {}
    return [partition for agent in answer["agents"] for partition in agent["partitions"]]


def test_a_topic_is_switched_on_off_and_on_under_load(agent_script: Script) -> None:
    # inline -> enable -> links -> disable -> inline alone -> enable -> links -> at rest: all stored
    script = agent_script
    script.create_topic(partitions=3, linked=False)
    script.produce(PLAIN)
    script.expect_inline_bytes()

    ask_cluster(script.cluster, "topics", "enable", script.topic, "--link-policy", "always")
    script.expect_links_to_be_used()

    ask_cluster(script.cluster, "topics", "disable", script.topic)
    wait_until(lambda: not script.partitions_of_agents(), "the agents let go of the topic", PATIENCE_S)
    counters = AgentCounters(script.cluster)
    script.expect_inline_bytes(200_000)
    assert counters.growth(RECORD_BYTES, path="linked") == 0

    ask_cluster(script.cluster, "topics", "enable", script.topic, "--link-policy", "always")
    script.expect_links_to_be_used()

    script.expect_promises()
    wait_until(lambda: all(found["lag_bytes"] == 0 for found in described(script)), "all is stored", PATIENCE_S)
    at_rest = described(script)
    assert sorted(found["partition"] for found in at_rest) == [0, 1, 2]
    for found in at_rest:
        assert found["uploaded_offset"] == found["log_end_offset"] > 0
        assert found["lag_age_ms"] == 0
        assert found["linked_bytes"] > 0


RESTARTED = 1


def expect_paused(script: Script, brokers: tuple[int, ...], *, paused: bool) -> None:
    wait_until(
        lambda: all(bool(describe(script.cluster, one)["paused"]) is paused for one in brokers),
        f"links of {brokers} are {'paused' if paused else 'resumed'}",
        PATIENCE_S,
    )


def recorded_pauses(cluster: LocalCluster) -> set[str]:
    """Return what the settings topic says is paused; nothing while it is not there."""
    with suppress(KafkaClusterError):
        return set(read_settings(KafkaClientConfig(cluster.bootstrap_servers)).pauses)
    return set()


@pytest.mark.thorough
def test_all_goes_inline_after_one_command_and_by_links_again_after_the_other(agent_script: Script) -> None:
    # links -> pause --all -> inline alone -> the settings topic is deleted, and an agent restarts -> still inline
    # -> resume -> links
    # -> one host is paused by a file -> its partitions inline, others by links -> resume -> all stored and true
    script, cluster = agent_script, agent_script.cluster
    script.create_topic(assignment=[[1, 2, 3], [2, 3, 1], [3, 1, 2]])
    script.produce(PLAIN, ZSTD)
    script.expect_links_to_be_used()

    told = ask_cluster(cluster, "pause", "--all", "--reason", "a trial")
    assert told.startswith("all links are paused since ")
    expect_paused(script, (1, 2, 3), paused=True)
    counters = AgentCounters(cluster)
    script.expect_inline_bytes(200_000)
    assert counters.growth(RECORD_BYTES, path="linked") == 0
    reasons = counters.grown_labels("remote_wal_inline_bytes_total", "reason")
    assert reasons.get("paused_by_operator", 0) > 0
    status, text = readiness(cluster, 2)
    assert (status, "degraded: all links are paused since " in text) == (200, True)
    assert "(a trial)" in text

    delete_topic(cluster.admin, SETTINGS_TOPIC)
    script.stop_agent(RESTARTED)
    script.start_agent(RESTARTED)
    wait_until(lambda: recorded_pauses(cluster) == {"all"}, "agents have written again what is paused", PATIENCE_S)
    expect_paused(script, (RESTARTED,), paused=True)
    counters = AgentCounters(cluster)
    script.expect_inline_bytes(200_000)
    assert counters.growth(RECORD_BYTES, path="linked") == 0

    assert ask_cluster(cluster, "resume", "--all") == "all links: resumed\n"
    script.expect_links_to_be_used()
    expect_paused(script, (1, 2, 3), paused=False)

    host = ["--local", "--broker-config", str(cluster.layout.server_properties(RESTARTED))]
    remote_wal(cluster, "pause", *host)
    expect_paused(script, (RESTARTED,), paused=True)
    counters = AgentCounters(cluster, [RESTARTED])
    script.expect_inline_bytes(200_000)
    assert counters.growth(RECORD_BYTES, path="linked") == 0
    assert remote_wal(cluster, "resume", *host) == "this agent's links: resumed\n"
    expect_paused(script, (RESTARTED,), paused=False)
    script.expect_links_to_be_used()
    script.expect_promises()
