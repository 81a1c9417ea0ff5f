"""recover and verify, as an operator runs them beside a broker that lives."""

import json
import os
import subprocess
import sys
from collections.abc import Container
from pathlib import Path
from typing import Any

from cli.exit_code import ExitCode
from local_cluster.cluster import LocalCluster
from tests.cluster.script import PATIENCE_S

CHECKOUT = Path(__file__).parents[2]
WORDS = "words-of-a-record"
"""What records have in them, nothing tells."""


def command_line(cluster: LocalCluster, command: str, broker_id: int, *options: str) -> list[str]:
    """Of a command that tells in JSON; to be run in CHECKOUT."""
    config = str(cluster.layout.server_properties(broker_id))
    return [sys.executable, "-m", "cli.main", *command.split(), "--broker-config", config, "--json", *options]


def run_command(
    cluster: LocalCluster, command: str, broker_id: int, *options: str, exit_code: int | Container[int] = 0
) -> dict[str, Any]:
    """What it tells; `exit_code`, or one of these, is what it ends with."""
    done = _run(cluster, command, broker_id, *options)
    expected = (exit_code,) if isinstance(exit_code, int) else exit_code
    assert done.returncode in expected, done.stderr + done.stdout
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def refused_recovery(cluster: LocalCluster, broker_id: int, reason: str, *options: str) -> str:
    """What the refusal says, the reason in it."""
    done = _run(cluster, "recover", broker_id, *options)
    assert done.returncode == ExitCode.REFUSED, done.stderr
    assert reason in done.stderr
    assert json.loads(done.stdout)["exit_code"] == ExitCode.REFUSED
    return done.stderr


def decide_held(cluster: LocalCluster, broker_id: int, action: str, topic: str, partition: int = 0) -> None:
    """What a person types about records that a log lost."""
    agents, config = cluster.settings.agents, cluster.layout.server_properties(broker_id)
    assert agents is not None
    where = [topic, str(partition), "--broker-config", str(config)]
    done = subprocess.run(
        [sys.executable, "-m", "cli.main", "held", action, *where],
        capture_output=True,
        text=True,
        check=False,
        cwd=CHECKOUT,
        env={**os.environ, **agents.store.environment()},
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _run(cluster: LocalCluster, command: str, broker_id: int, *options: str) -> subprocess.CompletedProcess[str]:
    agents = cluster.settings.agents
    assert agents is not None
    done = subprocess.run(
        command_line(cluster, command, broker_id, *options),
        capture_output=True, text=True, timeout=PATIENCE_S, check=False, cwd=CHECKOUT,
        env={**os.environ, **agents.store.environment()},
    )  # fmt: skip
    assert WORDS not in done.stdout + done.stderr
    return done


def planned_recovery(
    cluster: LocalCluster, broker_id: int, topic: str, exit_code: int | Container[int] = 0
) -> dict[str, Any]:
    """What a recovery would restore of the topic's only partition."""
    told = run_command(cluster, "recover", broker_id, "--dry-run", "--topic", topic, exit_code=exit_code)
    [log] = told["logs"]
    planned: dict[str, Any] = log
    return planned


def drilled_recovery(cluster: LocalCluster, broker_id: int, topic: str, scratch: Path) -> dict[str, Any]:
    """What is restored of the topic's only partition, into a directory of its own; Kafka's dump-log reads all of it.

    What is stored equals the broker's own replica, too.
    """
    replicas = [
        option for path in cluster.layout.log_directories(broker_id) for option in ("--replica-log-dir", str(path))
    ]
    told = run_command(cluster, "verify", broker_id, "--topic", topic, *replicas, "--drill", str(scratch))
    assert told["sound"], told["findings"]
    [log] = told["drill"]
    drilled: dict[str, Any] = log
    assert drilled["fault"] == ""
    return drilled
