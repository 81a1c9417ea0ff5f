"""An agent is killed at each step of a record's way, stands still for a while, or is restarted as an operator does it.

What Kafka's own retries do must be all that is needed."""

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from local_cluster.cluster import agent_is_ready
from local_cluster.polling import WaitTimeoutError, wait_until
from local_cluster.workload.ledger import ProducerPlan
from tests.cluster.agent_views import FAULTS, describe
from tests.cluster.kernel_views import is_stopped, unsent_bytes
from tests.cluster.replica_moves import wait_for_isr
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


TRIES = 6
"""A pause may meet no response on its way."""


def test_a_paused_follower_leaves_the_isr_and_comes_back(script: Script) -> None:
    # 1 leads; 3 stands still longer than replica.lag.time.max.ms -> ISR 1,2 -> it goes on -> ISR 1,2,3
    script.create_topic(assignment=[[1, 2, 3]])
    # No transactions: their coordinator may be 3, and what 3 leads is not acknowledged while nobody can fetch from it.
    script.produce(PLAIN, ZSTD)
    script.expect_records_to_flow()
    script.cut_off_follower(3)
    wait_for_isr(script.cluster.admin, script.topic, [1, 2])
    script.expect_records_to_flow()
    script.reconnect_follower(3)
    wait_for_isr(script.cluster.admin, script.topic, [1, 2, 3])
    script.expect_promises()


@pytest.mark.gate
def test_after_a_pause_of_the_leaders_agent_nothing_stale_is_served(agent_script: Script) -> None:
    # 1 leads; its agent stands still: no follower is served -> ISR 1 -> it goes on, and followers have given up
    # their requests meanwhile -> ISR 1,2,3
    script = agent_script
    script.create_topic(assignment=[[1, 2, 3]])
    script.produce(PLAIN, TRANSACTIONS)
    script.expect_records_to_flow()
    script.cluster.agent(1).pause()
    wait_for_isr(script.cluster.admin, script.topic, [1])
    script.cluster.agent(1).resume()
    wait_for_isr(script.cluster.admin, script.topic, [1, 2, 3])
    script.expect_promises()


def test_a_response_that_comes_out_of_a_pause_too_late_is_dropped(agent_script: Script) -> None:
    # 1 leads; its agent takes a request for given up sooner than the followers do -> it stands still for longer than
    # that, with a response on its way -> it goes on: the response is dropped with its connection, followers ask again
    script = agent_script
    script.create_topic(assignment=[[1, 2, 3]])
    script.produce(PLAIN, TRANSACTIONS)
    script.expect_records_to_flow()
    with gives_up_after(script, 1, "1000"):
        script.expect_records_to_flow()
        before = script.counters.growth(FAULTS, reason="stale_response")
        with script.without_a_shrinking_isr():
            for _ in range(TRIES):
                pause(script)
                with suppress(WaitTimeoutError):  # the pause met no response on its way
                    wait_until(lambda: script.counters.growth(FAULTS, reason="stale_response") > 0, "stale", 5)
                    break
            script.expect_growth(FAULTS, reason="stale_response")
            script.expect_records_to_flow()
    assert before == 0
    script.expect_promises()


def pause(script: Script) -> None:
    """Of agent 1, for less than replica.socket.timeout.ms of the followers."""
    script.cluster.agent(1).pause()
    threading.Event().wait(1.5)  # the fault itself
    script.cluster.agent(1).resume()


@contextmanager
def gives_up_after(script: Script, broker_id: int, timeout_ms: str) -> Iterator[None]:
    """The agent reads another replica.socket.timeout.ms than its broker has, and its brokers' followers have."""
    file = script.cluster.layout.server_properties(broker_id)
    told = file.read_text()
    file.write_text(f"{told}\nreplica.socket.timeout.ms={timeout_ms}\n")
    try:
        script.stop_agent(broker_id)
        script.start_agent(broker_id)
        yield
    finally:
        file.write_text(told)
    script.stop_agent(broker_id)
    script.start_agent(broker_id)


def test_a_rolling_restart_of_all_agents_under_load(script: Script) -> None:
    # SIGTERM -> exit code 0 -> start -> ready -> the next one
    script.create_topic(partitions=3)
    script.produce(PLAIN, ZSTD, TRANSACTIONS)
    script.expect_records_to_flow()
    for broker_id in script.cluster.broker_ids:
        script.stop_agent(broker_id)
        assert "metadata_unpublished" not in script.agent_log(broker_id)
        script.start_agent(broker_id)
        script.expect_records_to_flow()
        script.expect_links_to_be_used()
    script.expect_promises()


def test_an_agent_that_drains_relays_until_its_end(agent_script: Script) -> None:
    # 1 leads; its store takes seconds for an upload -> SIGTERM -> followers' logs grow while it waits -> it ends
    script = agent_script
    script.create_topic(assignment=[[1, 2, 3]])
    script.produce(PLAIN, ZSTD)
    script.expect_records_to_flow()
    script.expect_links_to_be_used()
    agent = script.cluster.agent(1)
    script.switch(1, "put-latency-ms", "4000")
    agent.request_exit()
    wait_until(lambda: "agent_stopping" in script.agent_log(1), "it stops", PATIENCE_S)
    for follower in (2, 3):
        log_bytes = replica_bytes(script, follower)
        wait_until(
            lambda: replica_bytes(script, follower) > log_bytes + 20_000,  # noqa: B023 - asked in this round alone
            f"the log of {follower} grows",
            PATIENCE_S,
            interval_s=0.01,
        )
        assert agent.is_alive(), "it had ended before the follower's log grew"
    agent.wait_for_exit(PATIENCE_S)
    assert agent.exit_code == 0, agent.log_tail()
    script.start_agent(1)
    script.clear_switches()
    script.expect_promises()


def replica_bytes(script: Script, broker_id: int) -> int:
    directory = script.cluster.layout.partition_directory(broker_id, script.topic, 0)
    assert directory is not None
    return sum(path.stat().st_size for path in directory.glob("*.log"))


def test_a_second_agent_for_the_same_broker_is_refused_in_one_line(agent_script: Script) -> None:
    spec = agent_script.cluster.agent(1).spec
    second = subprocess.run(
        spec.command, cwd=spec.working_directory, capture_output=True, text=True, timeout=60, check=False
    )
    assert second.returncode == 3
    assert second.stdout == ""
    (line,) = second.stderr.splitlines()
    assert line.startswith("remote-wal: another agent runs with the state directory ")
    assert agent_is_ready(agent_script.cluster.layout, 1)
