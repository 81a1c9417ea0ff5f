"""`remote-wal pause` ends all links under load, over an agent's restart too, until `remote-wal resume`."""

from contextlib import suppress

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

    assert ask_cluster(cluster, "resume", "--all") == "all: resumed\n"
    script.expect_links_to_be_used()
    expect_paused(script, (1, 2, 3), paused=False)

    host = ["--local", "--broker-config", str(cluster.layout.server_properties(RESTARTED))]
    remote_wal(cluster, "pause", *host)
    expect_paused(script, (RESTARTED,), paused=True)
    counters = AgentCounters(cluster, [RESTARTED])
    script.expect_inline_bytes(200_000)
    assert counters.growth(RECORD_BYTES, path="linked") == 0
    assert remote_wal(cluster, "resume", *host) == "local: resumed\n"
    expect_paused(script, (RESTARTED,), paused=False)
    script.expect_links_to_be_used()
    script.expect_promises()
