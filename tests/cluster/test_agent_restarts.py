"""Agents are stopped and started as an operator does it."""

import subprocess

from tests.cluster.script import PLAIN, TRANSACTIONS, ZSTD, Script


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


def test_a_second_agent_for_the_same_broker_is_refused_in_one_line(agent_script: Script) -> None:
    spec = agent_script.cluster.agent(1).spec
    second = subprocess.run(
        spec.command, cwd=spec.working_directory, capture_output=True, text=True, timeout=60, check=False
    )
    assert second.returncode == 1
    assert second.stdout == ""
    (line,) = second.stderr.splitlines()
    assert line.startswith("remote-wal: another agent runs with the state directory ")
    assert agent_script.cluster.agent_is_ready(1)
