"""Pods as the chart renders them, in network namespaces: three zones, one of which is scaled from 1 to 2 to 1; and one
whose second pod is lost with its volumes.

Kubernetes is not here; `tests.cluster.pods` plays the kubelet.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from local_cluster.object_store.native import GoProgramMissingError
from local_cluster.polling import wait_until
from local_cluster.zones import ZoneHosts, hosts_where_allowed
from tests.cluster.agent_views import RECORD_BYTES
from tests.cluster.conftest import IMPATIENT
from tests.cluster.pod_client import RECORDS
from tests.cluster.pods import STORE, Client, Node, Pod
from tests.cluster.script import PATIENCE_S
from tests.package.helm_chart import VALUES, helm, of_kind, rendered, values
from tests.package.scaling import ApiServer, api_environment, api_server

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(1900)]

HOSTS = ZoneHosts("10.237", (1, 2, 3, 4, 5))
PODS = {"kafka-az1-0": 1, "kafka-az2-0": 2, "kafka-az3-0": 3, "kafka-az1-1": 4}
CLIENT = 5
JOB, BALANCE = "kafka-takeover-1", "kafka-balance"
PLAIN_TEXT_FOR_THE_CLIENT = {
    "listeners": "@CONTROLLER@CLIENT://:9092,TEST://:9192,WAL://127.0.0.1:@WAL_PORT@",
    "advertised.listeners": "CLIENT://@POD@.kafka.streams.svc:9092,TEST://@POD@.kafka.streams.svc:9192,"
    "WAL://127.0.0.1:@WAL_PORT@",
    "listener.security.protocol.map": "CLIENT:SSL,CONTROLLER:SSL,WAL:PLAINTEXT,TEST:PLAINTEXT",
}
"""Agents, controllers and commands use the chart's listeners, under TLS; the workload one of its own."""
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
LOGIN = {
    "listener.security.protocol.map": "CLIENT:SASL_SSL,CONTROLLER:SSL,WAL:PLAINTEXT,TEST:PLAINTEXT",
    "listener.name.client.sasl.enabled.mechanisms": "PLAIN",
    "listener.name.client.plain.sasl.jaas.config": f'{_PLAIN} user_agent="its-password";',
}
LOGIN_OF_AGENTS = f"""security.protocol=SASL_SSL
sasl.mechanism=PLAIN
sasl.jaas.config={_PLAIN} username="agent" password="its-password";
ssl.truststore.type=PEM
ssl.truststore.location=/etc/remote-wal/ca.crt
"""
NEW_BROKER = "1"
"""The id of the second pod of zone az1."""


def manifests(az1: int, settings: Mapping[str, str] = MappingProxyType({}), **more: object) -> list[dict[str, Any]]:
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
                **settings,
                "offsets.topic.num.partitions": "3",
                "transaction.state.log.num.partitions": "3",
                "log.cleaner.dedupe.buffer.size": "16777216",
            },
            certificates={"issuer": {"name": "agents"}},
            kafka={"heap": "-Xms128m -Xmx320m"},
            **{"drainOnScaleIn": True, "joinOnScaleOut": True, "terminationGracePeriodSeconds": 600, **more},
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
    numbers = {**PODS, JOB: PODS["kafka-az1-1"], BALANCE: CLIENT}  # the job has the names of the pod that is lost
    made = Node(tmp_path / "node", HOSTS, numbers, manifests(1), api.rights, api_environment(api, HOSTS.here))
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


def test_the_place_of_a_lost_pod_is_taken_by_the_job_under_tls_and_logins(node: Node, pods: dict[str, Pod]) -> None:
    # four pods, agents log in -> one is lost with a topic's only replica -> the job brings it back, and moves it
    secret = node.secrets["kafka-client"] = node.directory / "secrets" / "kafka-client"
    secret.mkdir()
    (secret / "client.properties").write_text(LOGIN_OF_AGENTS)
    told = {"clientSecret": "kafka-client", "drainOnScaleIn": False, "joinOnScaleOut": False}
    taken = {"zone": "az1", "ordinal": 1, "inZone": "az2"}
    node.manifests = manifests(2, LOGIN, balance={"enabled": True, "every": 5}, takeover=taken, **told)
    lost = pods["kafka-az1-1"]
    for pod in pods.values():
        pod.start()
    for pod in pods.values():
        pod.wait_until_ready()
        pod.wait_for_agent()
    client = Client(node, CLIENT, f"{pods['kafka-az2-0'].address}:9192,{pods['kafka-az3-0'].address}:9192", "orders")
    with ExitStack() as at_end:
        at_end.callback(client.end)
        client.expect_records_to_flow()
        balance = Pod(node, BALANCE, "Deployment")
        at_end.callback(balance.kill)
        balance.start()
        wait_until(lambda: "in a second" in balance.log("balance"), "it has asked and measured", PATIENCE_S)
        balance.kill()
        client.wait_until("replicas", lambda now: now["under_replicated"] == 0, "what it moved is there")
        assert client.ask(f"write {NEW_BROKER}") == {"left": 0}
        led = ("alone", 0, RECORDS)
        wait_until(
            lambda: led in {tuple(one[key] for key in ("topic", "partition", "uploaded_offset"))
                            for one in lost.describe()["partitions"]},
            "all is stored", PATIENCE_S,
        )  # fmt: skip

        lost.kill()
        lost.lose_claims()
        client.wait_until("replicas", lambda now: int(NEW_BROKER) not in now["living"], "it is fenced")
        job = Pod(node, JOB, "Job")
        at_end.callback(job.kill)
        job.start()
        assert job.exit_code("takeover", 4 * PATIENCE_S) == 0, job.log("takeover")
        now = client.ask("replicas")
        assert NEW_BROKER not in now["replicas"]
        assert int(NEW_BROKER) not in now["living"]
        assert client.ask("read") == {"records": RECORDS}
        client.wait_until("replicas", lambda now: now["under_replicated"] == 0, "all are in sync")
        client.expect_records_to_flow()
        report = client.ask("finish")
        assert report["faults"] == 0, report["text"]
        assert report["sent"] == report["acknowledged"], report["text"]
