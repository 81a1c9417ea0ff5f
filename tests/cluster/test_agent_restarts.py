"""Agents are stopped and started as an operator does it."""

import subprocess

from local_cluster.cluster import agent_is_ready
from local_cluster.polling import wait_until
from tests.cluster.script import PATIENCE_S, PLAIN, TRANSACTIONS, ZSTD, Script


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
