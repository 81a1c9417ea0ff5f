"""Commands of `remote-wal`, as an operator runs them; above all recover and verify beside a broker that lives."""

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
_TIMEOUT_S = 4 * PATIENCE_S
WORDS = "words-of-a-record"
"""What records have in them, nothing tells."""


def command_line(cluster: LocalCluster, command: str, broker_id: int, *options: str) -> list[str]:
    """Of a command that tells in JSON; to be run in CHECKOUT."""
    return [sys.executable, "-m", "cli.main", *_words(cluster, command, broker_id, *options)]


def run_command(
    cluster: LocalCluster, command: str, broker_id: int, *options: str, exit_code: int | Container[int] = 0
) -> dict[str, Any]:
    """What it tells; `exit_code`, or one of these, is what it ends with."""
    told: dict[str, Any] = json.loads(
        remote_wal(cluster, *_words(cluster, command, broker_id, *options), exit_code=exit_code)
    )
    return told


def ask_cluster(cluster: LocalCluster, *words: str, exit_code: int | Container[int] = 0) -> str:
    """What a command prints that is told where the cluster is."""
    return remote_wal(cluster, *words, "--bootstrap-server", cluster.bootstrap_servers, exit_code=exit_code)


def remote_wal(cluster: LocalCluster, *words: str, exit_code: int | Container[int] = 0) -> str:
    """What `remote-wal` prints, which ends with this exit code, or one of these."""
    done = _run(cluster, *words)
    expected = (exit_code,) if isinstance(exit_code, int) else exit_code
    assert done.returncode in expected, done.stderr + done.stdout
    return done.stdout


def refused_recovery(cluster: LocalCluster, broker_id: int, reason: str, *options: str) -> str:
    done = _run(cluster, *_words(cluster, "recover", broker_id, *options))
    assert done.returncode == ExitCode.REFUSED, done.stderr
    assert reason in done.stderr
    assert json.loads(done.stdout)["exit_code"] == ExitCode.REFUSED
    return done.stderr


def decide_held(cluster: LocalCluster, broker_id: int, action: str, topic: str, partition: int = 0) -> None:
    """What a person types about records that a log lost."""
    config = str(cluster.layout.server_properties(broker_id))
    remote_wal(cluster, "held", action, topic, str(partition), "--broker-config", config)


def _words(cluster: LocalCluster, command: str, broker_id: int, *options: str) -> list[str]:
    config = str(cluster.layout.server_properties(broker_id))
    return [*command.split(), "--broker-config", config, "--json", *options]


def _run(cluster: LocalCluster, *words: str) -> subprocess.CompletedProcess[str]:
    agents = cluster.settings.agents
    environment = agents.store.environment() if agents is not None else {}
    done = subprocess.run(
        [sys.executable, "-m", "cli.main", *words],
        capture_output=True, text=True, timeout=_TIMEOUT_S, check=False, cwd=CHECKOUT,
        env={**os.environ, **environment},
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
