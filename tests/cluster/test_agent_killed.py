"""An agent is killed with SIGKILL at each step of a record's way. Kafka's own retries must be all that is needed."""

import pytest

from local_cluster.polling import wait_until
from local_cluster.workload.ledger import ProducerPlan
from tests.cluster.agent_views import describe
from tests.cluster.kernel_views import is_stopped, unsent_bytes
from tests.cluster.script import PATIENCE_S, PLAIN, TRANSACTIONS, ZSTD, Script, expect_whole_objects

LEADER, FOLLOWER = 1, 3

UPLOADING = [("die-before-put", ""), ("die-mid-put", ""), ("die-after-put", "")]
STORED = [("die-after-put-ms", "2"), ("die-after-put-ms", "10")]
"""Metadata is published, links and announcements go out: the moment is left to chance, the outcome is not."""
HYDRATING = [("die-before-get", ""), ("die-after-get", "")]
"""The leader has replied with links, the follower's broker has no reply yet."""


@pytest.mark.parametrize(
    ("script", "steps"),
    [("agents", UPLOADING), ("agents", STORED), ("agents", HYDRATING), ("stock", [])],
    ids=["agents-uploading", "agents-stored", "agents-hydrating", "stock"],
    indirect=["script"],
)
def test_an_agent_killed_at_a_step_of_the_way_loses_nothing(script: Script, steps: list[tuple[str, str]]) -> None:
    # every agent leads one partition and follows two, so each step comes by at each agent
    script.create_topic(partitions=3)
    script.produce(PLAIN, ZSTD, TRANSACTIONS)
    script.expect_records_to_flow()
    for number, (step, value) in enumerate(steps):
        victim = script.cluster.broker_ids[number % 3]
        script.switch(victim, step, value)
        script.expect_agent_to_die(victim)
        script.start_agent(victim)
        script.expect_records_to_flow()
    script.expect_promises()
    if script.with_agents:
        assert expect_whole_objects(script.cluster) > 0


@pytest.mark.gate
def test_an_agent_killed_with_half_a_reply_sent(script: Script) -> None:
    # 3 stands still and lags by more than one reply can hold -> it asks its agent, which reads what the reply links to
    # -> 3 stands still again: half of the frame is in the socket -> kill -9 -> 3 sees that it broke, and asks again
    script.create_topic(assignment=[[LEADER, 2, FOLLOWER]] * 3)
    script.kill_agent(FOLLOWER)
    script.produce(ProducerPlan("large", payload_bytes=50_000, records_per_s=100))
    script.expect_records_to_flow(300)
    if script.with_agents:
        send_half_a_reply(script)
        broken = broken_fetches(script)
        script.kill_agent(FOLLOWER)
        script.cluster.broker(FOLLOWER).resume()
        wait_until(lambda: broken_fetches(script) > broken, "the broker sees that its connection broke", PATIENCE_S)
    script.start_agent(FOLLOWER)
    script.expect_promises()


def send_half_a_reply(script: Script) -> None:
    """On return, the follower's agent writes a reply that its broker, paused, does not take."""
    cluster, layout = script.cluster, script.cluster.layout
    cluster.broker(FOLLOWER).pause()
    cluster.start_agent(FOLLOWER, wait=False)
    pid = cluster.agent(FOLLOWER).pid
    assert pid is not None
    wait_until(lambda: reads_the_store(script), "the follower's agent can read what is stored", PATIENCE_S)
    script.switch(FOLLOWER, "stop-before-get")
    cluster.broker(FOLLOWER).resume()
    wait_until(lambda: is_stopped(pid), "the follower's agent begins to hydrate a reply", PATIENCE_S)
    cluster.broker(FOLLOWER).pause()
    cluster.agent(FOLLOWER).resume()
    posing_as_leader = (layout.agent_replica_host(FOLLOWER), layout.replica_port(LEADER))
    wait_until(lambda: unsent_bytes(*posing_as_leader) > 65_536, "half of the reply is sent", PATIENCE_S)


def reads_the_store(script: Script) -> bool:
    try:
        told = describe(script.cluster, FOLLOWER)
    except OSError:
        return False
    return bool(told["storage_ready"] and not told["hydration_paused"] and script.topic in told["enabled_topics"])


def broken_fetches(script: Script) -> int:
    """How often the follower's broker has lost a connection to the leader while it waited for a reply."""
    log = script.cluster.layout.broker_directory(FOLLOWER) / "kafka.log"
    return log.read_text(errors="replace").count(
        f"Connection to {LEADER} was disconnected before the response was read"
    )
