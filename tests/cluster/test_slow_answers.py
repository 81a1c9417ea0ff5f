"""Standard output is the answer alone, and there is one, where brokers and the store take two seconds for theirs."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from cli.exit_code import ExitCode
from local_cluster.broker_config import BACKEND_PREFIX, AgentsMode
from local_cluster.cluster import LocalCluster
from local_cluster.cluster_admin import LINKED_AND_KEPT
from local_cluster.object_store.store_spec import S3Store
from local_cluster.polling import wait_until
from tests.cli.test_answers_of_commands import ASKING
from tests.cluster.recovery_commands import CHECKOUT
from tests.cluster.script import PATIENCE_S, PLAIN, Script
from tests.cluster.slow_listener import slow_answers, slow_bootstrap_servers, with_slow_listener
from tests.faulty_store import DEFAULT_BUCKET, Fault, FaultyFront, FaultyServer

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(5400)]

SLOW_S = 2.0
TOPIC = "orders"
BOUND_S = 1800.0
"""Within which each command ends, beside others on few cores; alone the longest, report, took 152 s of two."""
AT_A_TIME = 4
_ESTIMATE = "estimate --json --bootstrap-server {at}"
COMMANDS = (
    *(
        one.replace(_ESTIMATE, f"{_ESTIMATE} --minutes 1").replace(" topic 0", f" {TOPIC} 0")
        for one in reversed(ASKING)
    ),
    "doctor --json --broker-config {file}",
)
"""The report is the first, as it takes longest. The estimate would sample for ten minutes."""
IMPATIENT = "orphans --json --broker-config {impatient}"
"""By a file that gives the store less time than it takes."""
IMPATIENT_TIMES = {"attempt.timeout.ms": "1500", "total.timeout.ms": "4000"}
LONG = ("verify", "recover", "metadata", "orphans", "doctor", "report")
GOOD = {ExitCode.GOOD, ExitCode.FINDINGS, ExitCode.DECLARED, ExitCode.CRITICAL, ExitCode.REFUSED}


@dataclass(frozen=True, slots=True)
class Ended:
    """A command that has."""

    exit_code: int | None
    """None: it was ended, as its time was over."""
    stdout: str
    stderr: str
    seconds: float


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with slow_cluster(tmp_path_factory.mktemp("slow") / "cluster") as cluster:
        yield cluster


@contextmanager
def slow_cluster(directory: Path) -> Iterator[LocalCluster]:
    """With records that are stored; it is slow for those who ask at its slow listener, the store for all."""
    with FaultyServer(FaultyFront(), [DEFAULT_BUCKET]) as store:
        layout = LocalCluster.create(directory).layout
        agents = AgentsMode(S3Store(store.endpoint_url, DEFAULT_BUCKET))
        with LocalCluster.open(directory, settings=with_slow_listener(layout, agents)) as cluster:
            cluster.start()
            with Script(cluster, TOPIC) as script:
                cluster.admin.create_topic(TOPIC, 1, assignment=[[1, 2, 3]])
                script.link_topic(LINKED_AND_KEPT)
                script.produce(PLAIN)
                script.expect_records_to_flow()
                script.expect_promises()
                wait_until(lambda: is_stored(script), "all records are stored", PATIENCE_S)
            store.faults.add(Fault("latency", seconds=SLOW_S))
            with slow_answers(layout, SLOW_S):
                yield cluster


def is_stored(script: Script) -> bool:
    views = script.partitions_of_agents()
    return bool(views) and all(view["uploaded_offset"] == view["log_end_offset"] for view in views)


def broker_file(cluster: LocalCluster, file: Path, told: Mapping[str, str]) -> Path:
    """The first broker's, whose agent reaches the cluster slowly, with these keys of the store."""
    own = cluster.layout.server_properties(1).read_text()
    more = {"remote.wal.agent.bootstrap.servers": slow_bootstrap_servers(cluster.layout)}
    more |= {BACKEND_PREFIX + key: value for key, value in told.items()}
    file.write_text(own + "".join(f"{key}={value}\n" for key, value in more.items()))
    return file


def ended(cluster: LocalCluster, words: list[str], directory: Path) -> Ended:
    """The command, which writes into this directory what it writes."""
    agents = cluster.settings.agents
    assert agents is not None
    environment = {**os.environ, **agents.store.environment(), "PYTHONPATH": str(CHECKOUT)}
    begins = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "cli.main", *words],
            cwd=directory, env=environment, capture_output=True, text=True, timeout=BOUND_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as late:
        return Ended(None, "", (late.stderr or b"").decode(), BOUND_S)
    return Ended(done.returncode, done.stdout, done.stderr, time.monotonic() - begins)


@pytest.fixture(scope="module")
def answers(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Ended]:
    """Of all commands; several at a time, as they wait for most of it."""
    scratch = tmp_path_factory.mktemp("files")
    plan = scratch / "plan.json"
    moves = [{"topic": TOPIC, "partition": 0, "replicas": [1, 2, 3]}]
    plan.write_text(json.dumps({"version": 1, "partitions": moves}))
    names = {
        "at": slow_bootstrap_servers(cluster.layout),
        "file": broker_file(cluster, scratch / "server.properties", {}),
        "impatient": broker_file(cluster, scratch / "impatient.properties", IMPATIENT_TIMES),
        "plan": plan,
        "zone": "{zone}",
    }

    def answer(command: str) -> Ended:
        words = [word.format(**names) for word in command.split()]
        return ended(cluster, words, tmp_path_factory.mktemp("run"))

    commands = (*COMMANDS, IMPATIENT)
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        return dict(zip(commands, pool.map(answer, commands), strict=True))


@pytest.mark.parametrize("command", COMMANDS)
def test_an_answer_that_takes_long_is_json_alone(answers: Mapping[str, Ended], command: str) -> None:
    done = answers[command]
    assert done.exit_code in GOOD, (done.stdout, done.stderr)
    json.loads(done.stdout)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", [one for one in COMMANDS if one.split()[0] in LONG])
def test_who_waits_is_told_what_for(answers: Mapping[str, Ended], command: str) -> None:
    assert len(answers[command].stderr.splitlines()) > 1, answers[command].seconds


def test_times_that_an_operator_has_set_stay_in_force(answers: Mapping[str, Ended]) -> None:
    done = answers[IMPATIENT]
    assert done.exit_code == ExitCode.UNKNOWN
    assert "no answer in time" in json.loads(done.stdout)["error"]


def test_a_log_comes_back_byte_by_byte_from_a_slow_store(cluster: LocalCluster, tmp_path: Path) -> None:
    empty = tmp_path / "log"
    empty.mkdir()
    file = broker_file(cluster, tmp_path / "server.properties", {})
    with file.open("a") as more:
        more.write(f"log.dirs={empty}\n")
    done = ended(cluster, ["recover", "--json", "--broker-config", str(file), "--topic", TOPIC], tmp_path)
    told = json.loads(done.stdout)
    assert done.exit_code == ExitCode.GOOD, (told, done.stderr)
    living = cluster.layout.partition_directory(1, TOPIC, 0)
    assert living is not None
    restored = log_bytes(empty / f"{TOPIC}-0")
    assert len(restored) == told["size_bytes"] > 0
    assert restored == log_bytes(living)


def log_bytes(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))
