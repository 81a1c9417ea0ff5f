"""Topics are switched on and off, and links paused, by the command line while agents and producers run."""

import json
from typing import Any

from local_cluster.polling import wait_until
from tests.cluster.agent_views import RECORD_BYTES, AgentCounters
from tests.cluster.recovery_commands import ask_cluster
from tests.cluster.script import PATIENCE_S, PLAIN, Script


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
