"""Pods as the chart renders them, in network namespaces: three zones, one of which is scaled from 1 to 2 to 1.

Kubernetes is not here; `tests.cluster.pods` plays the kubelet.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from local_cluster.go_programs import GoProgramMissingError
from local_cluster.polling import wait_until
from local_cluster.zones import ZoneHosts, hosts_where_allowed
from tests.cluster.agent_views import RECORD_BYTES
from tests.cluster.conftest import IMPATIENT
from tests.cluster.pods import STORE, Client, Node, Pod
from tests.cluster.script import PATIENCE_S
from tests.package.helm_chart import VALUES, helm, of_kind, rendered, values
from tests.package.scaling import ApiServer, api_environment, api_server

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(1900)]

HOSTS = ZoneHosts("10.237", (1, 2, 3, 4, 5))
PODS = {"kafka-az1-0": 1, "kafka-az2-0": 2, "kafka-az3-0": 3, "kafka-az1-1": 4}
CLIENT = 5
PLAIN_TEXT_FOR_THE_CLIENT = {
    "listeners": "@CONTROLLER@CLIENT://:9092,TEST://:9192,WAL://127.0.0.1:@WAL_PORT@",
    "advertised.listeners": "CLIENT://@POD@.kafka.streams.svc:9092,TEST://@POD@.kafka.streams.svc:9192,"
    "WAL://127.0.0.1:@WAL_PORT@",
    "listener.security.protocol.map": "CLIENT:SSL,CONTROLLER:SSL,WAL:PLAINTEXT,TEST:PLAINTEXT",
}
"""Agents, controllers and commands use the chart's listeners, under TLS; the workload one of its own."""
NEW_BROKER = "1"
"""The id of the second pod of zone az1."""


def manifests(az1: int) -> list[dict[str, Any]]:
    """With so many pods in the first zone."""
    first, *others = VALUES["zones"]
    return rendered(
        values(
            zones=[{**zone, "bucket": ""} for zone in ({**first, "replicas": az1}, *others)],
            store={
                "class": "plugin.local_directory.LocalWalStorageManager",
                "settings": {"directory": STORE, "put.latency.ms": "3", "get.latency.ms": "3"},
            },
            settings={
                **IMPATIENT,
                **PLAIN_TEXT_FOR_THE_CLIENT,
                "offsets.topic.num.partitions": "3",
                "transaction.state.log.num.partitions": "3",
                "log.cleaner.dedupe.buffer.size": "16777216",
            },
            certificates={"issuer": {"name": "agents"}},
            kafka={"heap": "-Xms128m -Xmx320m"},
            drainOnScaleIn=True,
            joinOnScaleOut=True,
            terminationGracePeriodSeconds=600,
        )
    )


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ApiServer]:
    try:
        helm()
    except GoProgramMissingError as error:
        pytest.skip(str(error))
    with hosts_where_allowed(HOSTS) as are_there:
        if not are_there:
            pytest.skip("this machine allows no network namespaces")
        with api_server(tmp_path / "api", HOSTS.here) as api:
            yield api


@pytest.fixture
def node(tmp_path: Path, api: ApiServer) -> Iterator[Node]:
    made = Node(tmp_path / "node", HOSTS, PODS, manifests(1), api.rights, api_environment(api, HOSTS.here))
    made.prepare()
    with made.names():
        yield made


@pytest.fixture
def pods(node: Node) -> Iterator[dict[str, Pod]]:
    made = {name: Pod(node, name) for name in PODS}
    with ExitStack() as at_end:
        for one in made.values():
            at_end.callback(one.kill)
        yield made


def linked_bytes(pods: dict[str, Pod]) -> float:
    lines = [line for pod in pods.values() for line in pod.metrics().splitlines()]
    return sum(
        float(line.rpartition(" ")[2]) for line in lines if line.startswith(RECORD_BYTES) and 'path="linked"' in line
    )


def test_a_zone_that_is_scaled_out_and_in_loses_no_request(node: Node, pods: dict[str, Pod], api: ApiServer) -> None:
    # three pods -> a fourth gets its share -> it restarts and keeps it -> it is scaled in and drained
    new = pods.pop("kafka-az1-1")
    for name in of_kind(node.manifests, "StatefulSet"):
        api.tell(name, 1)
    for pod in pods.values():
        pod.start()
    for pod in pods.values():
        pod.wait_until_ready()
        pod.wait_for_agent()
    client = Client(node, CLIENT, f"{pods['kafka-az1-0'].address}:9192,{pods['kafka-az2-0'].address}:9192", "orders")
    try:
        client.expect_records_to_flow()

        node.manifests = manifests(2)
        api.tell("kafka-az1", 2)
        new.start()
        new.wait_until_ready()
        new.wait_for_join()
        assert NEW_BROKER in client.ask("replicas")["replicas"], new.log("scaling")
        client.wait_until("replicas", lambda now: now["under_replicated"] == 0, "and is in sync")
        share = client.ask("replicas")["replicas"][NEW_BROKER]
        client.expect_records_to_flow()
        wait_until(lambda: linked_bytes({**pods, new.name: new}) > 0, "records travel as links", PATIENCE_S)

        code, text = new.end()
        assert (code, "comes back" in text) == (200, True), text
        assert client.ask("replicas")["replicas"][NEW_BROKER] == share, "a restart drains nothing"
        new.start()
        new.wait_until_ready()
        client.wait_until("replicas", lambda now: now["under_replicated"] == 0, "the broker is back")
        client.expect_records_to_flow()

        node.manifests = manifests(1)
        api.tell("kafka-az1", 1)
        code, text = new.end()
        assert (code, text) == (200, f"broker {NEW_BROKER} is drained"), new.log("scaling")
        assert NEW_BROKER not in client.ask("replicas")["replicas"]
        client.wait_until("replicas", lambda now: now["under_replicated"] == 0, "all are in sync")
        client.expect_records_to_flow()

        report = client.ask("finish")
        assert report["faults"] == 0, report["text"]
        assert report["sent"] == report["acknowledged"], report["text"]
    finally:
        client.end()
