"""`remote-wal doctor --before-restart` on a real cluster: only while all is well does it exit with 0."""

import gc
import json
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.main import build_app
from doctor import restart_questions
from local_cluster.broker_config import AgentsMode, ClusterSettings
from local_cluster.cluster import LocalCluster
from local_cluster.polling import wait_until
from tests.cluster.conftest import IMPATIENT, ClusterFactory
from tests.cluster.script import PATIENCE_S


def asked(cluster: LocalCluster, *options: str) -> tuple[int, dict[str, dict[str, str]]]:
    file = str(cluster.layout.broker_directory(1) / "server.properties")
    command = ["doctor", "--before-restart", "--json", "--broker-config", file, *options]
    answer: dict[str, Any] = json.loads(CliRunner().invoke(build_app(), command).stdout)
    return answer["exit_code"], {one["check"]: one for one in answer["checks"]}


def expect_refusal(cluster: LocalCluster, exit_code: int, row: str, found: str) -> None:
    def is_refused() -> bool:
        code, rows = asked(cluster)
        assert code != 0, rows
        return code == exit_code and found in rows[row]["found"]

    wait_until(is_refused, f"{row} says {found}", PATIENCE_S)


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_what_is_dead_or_does_not_answer_forbids_a_restart(
    make_cluster: ClusterFactory, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make_cluster(start=False)
    cluster.settings = ClusterSettings(AgentsMode(), IMPATIENT)
    cluster.configure(AgentsMode())
    cluster.start()
    cluster.admin.create_topic(topic, 3)

    def expect_well() -> None:
        code, rows = asked(cluster, "--wait", str(PATIENCE_S))
        assert code == 0, rows

    expect_well()

    # A dead agent is named as soon as it is dead, before its broker's replicas leave the ISR.
    cluster.agent(2).kill()
    expect_refusal(cluster, 1, "agents", "the agent of broker 2 does not answer")
    cluster.start_agent(2)
    expect_well()

    # A dead broker.
    cluster.broker(3).kill()
    expect_refusal(cluster, 1, "brokers", "broker 3 is not there")
    cluster.start_broker(3)
    expect_well()

    # Brokers that stand still: nobody answers, so nothing is known and nothing is well.
    monkeypatch.setattr(restart_questions, "TIMEOUT_S", 3.0)
    for one in cluster.broker_ids:
        assert cluster.broker(one).pause()
    try:
        code, rows = asked(cluster)
        assert code == 3
        assert {one["level"] for one in rows.values()} == {"unknown"}
    finally:
        for one in cluster.broker_ids:
            assert cluster.broker(one).resume()
    monkeypatch.undo()
    expect_well()

    # Two of three controllers are dead: the third broker answers out of what it knew, and no controller does.
    cluster.broker(2).kill()
    cluster.broker(3).kill()

    def is_unknown() -> bool:  # once a controller that still lives misses the others
        code, rows = asked(cluster)
        assert code in (1, 3), rows
        return rows["controller"]["level"] == "unknown"

    wait_until(is_unknown, "no controller is told", PATIENCE_S)
    gc.collect()  # sockets that dead brokers refused, while their warnings are still ignored
