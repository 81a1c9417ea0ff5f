"""An agent in front of each broker: clients keep their addresses through a rolling change, there and back."""

import json
import logging
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import javaproperties
import pytest

from local_cluster.broker_config import AgentsMode, ClusterSettings
from local_cluster.cluster import LocalCluster
from local_cluster.zones import ZoneHosts, hosts_where_allowed
from tests.cluster.agent_views import AgentCounters
from tests.cluster.conftest import IMPATIENT
from tests.cluster.replica_moves import wait_for_isr
from tests.cluster.test_gateway_durable import NumberedProducer
from tests.cluster.test_pipelined_acks import ACKS_ALL, REQUESTS, PythonProducer, expect_kept, more_acknowledged
from tests.soak.verifiable_clients import VerifiableClients

HOSTS = ZoneHosts("10.238")
BROKERS = {**IMPATIENT, "min.insync.replicas": "2", "auto.create.topics.enable": "false"}
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with hosts_where_allowed(HOSTS) as are_there:
        if not are_there:
            pytest.skip("network namespaces need root and iproute2")
        directory = tmp_path_factory.mktemp("front")
        settings = ClusterSettings(AgentsMode(), BROKERS, heap_mb=384, hosts=HOSTS)
        with LocalCluster.create(directory / "cluster", settings=settings) as made:
            made.start(300)
            yield made


def command(*words: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "cli.start", *words, "--json"], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def front_plan(cluster: LocalCluster) -> dict[str, dict[str, dict[str, str]]]:
    found: dict[str, dict[str, dict[str, str]]] = command(
        "gateway", "plan", "--front", "--bootstrap-server", cluster.bootstrap_servers
    )["brokers"]
    return found


def roll(cluster: LocalCluster, topics: Sequence[str], lines: Mapping[int, Mapping[str, str]]) -> None:
    """Change one host after the other, as an operator does: agent and broker stop, and start with the new lines."""
    for broker_id, keys in lines.items():
        file = cluster.layout.server_properties(broker_id)
        cluster.broker(broker_id).terminate()
        cluster.agent(broker_id).terminate()
        file.write_text(javaproperties.dumps({**cluster.layout.configured(broker_id), **keys}, timestamp=False))
        cluster.start_agent(broker_id, wait=False)
        cluster.start_broker(broker_id)
        cluster.wait_for_agent(broker_id)
        for topic in topics:
            wait_for_isr(cluster.admin, topic, cluster.broker_ids, timeout_s=300)


def errors_of_doctor(cluster: LocalCluster, broker_id: int) -> list[Any]:
    told = command("doctor", "--broker-config", str(cluster.layout.server_properties(broker_id)))
    return [one for one in told["checks"] if one["level"] == "error" and one["check"].startswith("gateway")]


def test_no_client_is_changed_and_nothing_acknowledged_is_lost(
    cluster: LocalCluster, topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "kafka")  # caught records would keep kafka-python's connections, and sockets
    # Java, librdkafka and kafka-python produce with acks=all -> brokers get a listener for agents -> agents stand in
    # front, and hold answers -> planned once more, nothing is left to do -> back to brokers alone
    topics = [topic, f"{topic}-java"]
    for name in topics:
        cluster.admin.create_topic(name, assignment=[[1, 2, 3]])
    producers = [
        NumberedProducer(cluster.bootstrap_servers, topic, f"{topic}-c", **ACKS_ALL),
        PythonProducer(cluster.bootstrap_servers, topic, f"{topic}-python"),
    ]
    java = VerifiableClients(cluster, cluster.bootstrap_servers, topics[1], tmp_path / "java")
    with ExitStack() as running:
        for one in producers:
            running.enter_context(one)
        running.enter_context(java)
        more_acknowledged(producers)
        planned = front_plan(cluster)
        roll(cluster, topics, {int(one): lines["first"] for one, lines in planned.items()})
        more_acknowledged(producers)
        roll(cluster, topics, {int(one): lines["then"] for one, lines in planned.items()})
        held = AgentCounters(cluster)
        more_acknowledged(producers)
        assert held.growth(REQUESTS, way="pipelined") > 0
        assert all(not lines["first"] and not lines["then"] for lines in front_plan(cluster).values())
        assert errors_of_doctor(cluster, 1) == []
        roll(
            cluster, topics, {one: {"listeners": planned[str(one)]["first"]["listeners"]} for one in cluster.broker_ids}
        )
        past = AgentCounters(cluster)
        more_acknowledged(producers)
        assert past.growth(REQUESTS, way="pipelined") == 0
        report = java.finish()
    assert report.faults == 0, report
    assert report.acknowledged > 0
    expect_kept(cluster, topic, producers)
