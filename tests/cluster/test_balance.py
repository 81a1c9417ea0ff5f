"""`remote-wal reassign balance` on brokers of which two carry nearly everything, while records flow.

The brokers' own files judge what is stored and taken in; leaders and offsets judge what is given out.
"""

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from cli.costs.cluster_samples import Sampler, partition_loads
from kafka_cluster.client_config import KafkaClientConfig
from local_cluster.cluster import LocalCluster
from local_cluster.polling import wait_until
from local_cluster.processes import ManagedProcess, ProcessSpec
from recovery.reassignment.admin import ReassignmentAdmin
from recovery.reassignment.plan import broker_loads
from tests.cluster.agent_views import read_metrics
from tests.cluster.recovery_commands import CHECKOUT, remote_wal
from tests.cluster.script import PATIENCE_S, PLAIN, ZSTD, Script

ASSIGNMENT = [[1, 2]] * 10 + [[2, 3]] * 2
"""Broker 1 leads ten of twelve, broker 3 leads none, and follows two."""
ALIKE = 0.2
MEASURED_S = 15.0
LOAD = "load"
RECORD_BYTES, EVERY_S = 10_000, 0.1


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_skewed_brokers_come_within_a_fifth_of_each_other_while_records_flow(
    agent_script: Script, tmp_path: Path
) -> None:
    script, cluster = agent_script, agent_script.cluster
    script.create_topic(assignment=ASSIGNMENT)
    cluster.admin.create_topic(LOAD, len(ASSIGNMENT), assignment=ASSIGNMENT)
    script.produce(*(replace(one, records_per_s=30) for one in (PLAIN, ZSTD)))
    script.expect_links_to_be_used()
    script.expect_records_to_flow()
    with steady_load(cluster):
        expect_to_be_balanced(script, cluster)
        expect_another_to_take_over(cluster, tmp_path)
    script.expect_promises()


@contextmanager
def steady_load(cluster: LocalCluster) -> Iterator[None]:
    """Give each partition of a topic one load, however long answers take: the script sends where they come first."""
    stop, producer = threading.Event(), Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "1"})

    def send() -> None:
        begun, rounds = time.monotonic(), 0
        while not stop.wait(max(0.0, begun + rounds * EVERY_S - time.monotonic())):
            for partition in range(len(ASSIGNMENT)):
                producer.produce(LOAD, os.urandom(RECORD_BYTES), partition=partition)
            producer.poll(0)
            rounds += 1

    with ThreadPoolExecutor(1) as thread:
        sending = thread.submit(send)
        try:
            yield
        finally:
            stop.set()
            sending.result()
            producer.purge()
            producer.flush(PATIENCE_S)


def expect_to_be_balanced(script: Script, cluster: LocalCluster) -> None:
    # What agents' topics store is alike on all brokers, and large if tests ran before this one.
    wait_until(
        lambda: min(map(spread, carried(cluster))) > 1.0, "brokers are skewed in all that they carry", 4 * PATIENCE_S
    )
    moves = balance(cluster)
    assert {one["state"] for one in moves} == {"done"}
    script.expect_links_to_be_used()

    taken_in, given_out, stored = after = carried(cluster)
    assert max(map(spread, after)) <= ALIKE, f"in {taken_in}, out {given_out}, stored {stored}"
    assert spread(files(cluster)) <= ALIKE, "what the brokers' disks have"
    assert balance(cluster) == [], "the next round has nothing to do"


def expect_another_to_take_over(cluster: LocalCluster, directory: Path) -> None:
    """Of two balancers that go on, as units and the chart's pods do, one works, until it is killed."""
    where = ("--bootstrap-server", cluster.bootstrap_servers, "--seconds", "5", "--every", "1")
    line = (sys.executable, "-m", "cli.main", "reassign", "balance", "--watch", *where)
    logs = [directory / f"balance-{number}.log" for number in (1, 2)]
    works, waits = (ManagedProcess(ProcessSpec(log.stem, line, log, log.with_suffix(".pid"), CHECKOUT)) for log in logs)
    with ExitStack() as running:
        for one in (works, waits):
            running.callback(one.kill)

        def rounds() -> list[int]:
            assert waits.is_alive() or not waits.spec.log_path.exists(), waits.log_tail()
            return [log.read_text().count("out a second") if log.exists() else 0 for log in logs]

        works.start()
        wait_until(lambda: rounds()[0] >= 1, "the first works", PATIENCE_S)
        waits.start()
        before = rounds()[0]
        wait_until(lambda: rounds()[0] >= before + 4, "it goes on", PATIENCE_S)
        assert rounds()[1] == 0, "the second waits"
        told = json.loads(remote_wal(cluster, "status", "--bootstrap-server", cluster.bootstrap_servers, "--json"))
        assert set(told["balance"]) == {"in", "out", "stored", "measured_ms"}
        for broker_id in cluster.broker_ids:
            assert {name for name, _ in read_metrics(cluster, broker_id)} >= {"remote_wal_imbalance_ratio"}
        works.kill()
        wait_until(lambda: rounds()[1] >= 1, "the second has taken over", 2 * PATIENCE_S)


def balance(cluster: LocalCluster) -> list[dict[str, Any]]:
    """What the command says of its moves, all of which are done."""
    where = ("--bootstrap-server", cluster.bootstrap_servers, "--seconds", str(MEASURED_S), "--json")
    line = (sys.executable, "-m", "cli.main", "reassign", "balance", *where)
    done = subprocess.run(line, capture_output=True, text=True, timeout=400, check=False, cwd=CHECKOUT)
    assert done.returncode == 0, done.stdout + done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["moves"]
    return found


def carried(cluster: LocalCluster) -> Sequence[list[float]]:
    """What each broker takes in, gives out and stores, by where replicas and leaders are now."""
    client = KafkaClientConfig(cluster.bootstrap_servers)
    with Sampler(client, 30.0, time.monotonic) as sampler, ReassignmentAdmin(client) as admin:
        first = sampler.sample()
        threading.Event().wait(MEASURED_S)
        loads = broker_loads(admin.cluster(), partition_loads(first, sampler.sample())).values()
    return (
        [one.in_bytes_per_s for one in loads],
        [one.out_bytes_per_s for one in loads],
        [one.stored_bytes for one in loads],
    )


def files(cluster: LocalCluster) -> list[float]:
    """How many bytes of log segments each broker has, in partitions that are its own and not about to be deleted."""
    found = []
    for one in cluster.broker_ids:
        partitions = [path for root in cluster.layout.log_directories(one) for path in root.iterdir()]
        own = [path for path in partitions if re.fullmatch(r"(?!__cluster_metadata).*-\d+", path.name)]
        found.append(float(sum(log.stat().st_size for path in own for log in path.glob("*.log"))))
    return found


def spread(loads: Iterable[float]) -> float:
    """The difference between the largest and the smallest, as a part of their mean."""
    found = sorted(loads)
    return (found[-1] - found[0]) * len(found) / sum(found)
