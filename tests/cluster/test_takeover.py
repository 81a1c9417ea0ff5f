"""A host is gone with its disk: the broker's place is taken on another one, by a command that is killed at each step.

Each broker has a network namespace, and the new place a fifth one. Brokers 1 to 3 are the controllers, so that the dead
one was a voter. Agents are in front of the brokers, so that topics can be durable. Brokers log in at each other under
TLS, and so do agents.
"""

import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import javaproperties
import pytest
from confluent_kafka import Consumer, TopicPartition

from cli.exit_code import ExitCode
from cli.takeover.steps import Step
from kafka_cluster.client_config import KafkaClientConfig
from local_cluster.broker_config import AgentsMode, ClusterSettings, server_properties
from local_cluster.cluster import LocalCluster
from local_cluster.cluster_admin import LINKED_AND_KEPT, set_topics
from local_cluster.node_processes import broker_process
from local_cluster.polling import wait_until
from local_cluster.processes import ManagedProcess, ProcessSpec
from local_cluster.workload.replica_comparison import compare_replicas
from local_cluster.zones import ZoneHosts, hosts_where_allowed
from metadata_topic.settings.settings_topic import read_settings
from recovery.reassignment.admin import ReassignmentAdmin
from tests.cluster.agent_views import describe
from tests.cluster.recovery_commands import CHECKOUT
from tests.cluster.script import PATIENCE_S
from tests.cluster.secured import secured
from tests.cluster.test_gateway_durable import DURABLE, NumberedProducer
from tests.cluster.test_pipelined_acks import more_acknowledged

DEAD, BROKER_ALONE, ELSEWHERE = 3, 4, 5
CONTROLLERS = (1, 2, DEAD)
HOSTS = ZoneHosts("10.229", (*CONTROLLERS, BROKER_ALONE, ELSEWHERE))
AGENTS = AgentsMode(front=True)
STEPS = list(Step)

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(1500)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with hosts_where_allowed(HOSTS) as are_there:
        if not are_there:
            pytest.skip("network namespaces need root and iproute2")
        settings = secured(ClusterSettings(AGENTS, heap_mb=384, hosts=HOSTS))
        assert settings.agents is not None
        with LocalCluster.create(tmp_path / "cluster", brokers=4, settings=settings) as made:
            voters = ",".join(f"{one}@{made.layout.controller_address(one)}" for one in CONTROLLERS)
            listeners = server_properties(made.layout, BROKER_ALONE, settings)["listeners"].split(",")
            kept = ",".join(one for one in listeners if not one.startswith("CONTROLLER"))
            alone = {"process.roles": "broker", "listeners": kept}
            made.settings = replace(
                settings, overrides={"controller.quorum.voters": voters}, broker_overrides={BROKER_ALONE: alone}
            )
            made.configure(settings.agents)
            made.start(300)
            yield made


@dataclass
class Group:
    """A consumer group of one, in a thread, and the values that it has read."""

    bootstrap: str
    topics: list[str]
    seen: set[str] = field(default_factory=set)

    def __enter__(self) -> "Group":
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        settings = {"bootstrap.servers": self.bootstrap, "group.id": "takeover", "auto.offset.reset": "earliest"}
        consumer = Consumer({**settings, "log_level": 0})
        consumer.subscribe(self.topics)
        while not self._is_over.is_set():
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                self.seen.add((message.value() or b"").decode())
        consumer.close()


@dataclass(frozen=True)
class NewPlace:
    """The command on the new host."""

    cluster: LocalCluster
    directory: Path

    def command(self, *more: str) -> list[str]:
        layout, scratch = self.cluster.layout, self.directory.parent
        keys, old, new = layout.configured(DEAD), layout.host(DEAD), layout.host(ELSEWHERE)
        own = {key: value.replace(old, new) for key, value in keys.items() if old in value}
        del own["controller.quorum.voters"], own["remote.wal.agent.peers"]
        host_config = scratch / "host.properties"
        host_config.write_text(javaproperties.dumps({**own, "broker.rack": "az5"}, timestamp=False))
        runtime, settings = self.cluster.runtime, replace(self.cluster.settings, hosts=None)
        jvm = broker_process(layout, DEAD, settings, runtime.java, runtime.kafka).spec.command[:-1]
        script = scratch / "kafka-server-start.sh"
        script.write_text(f'#!/bin/sh\nexec {shlex.join(jvm)} "$1"\n')
        script.chmod(0o755)
        files = ("--host-config", str(host_config), "--directory", str(self.directory), "--kafka", str(script))
        config = ("--broker-config", str(layout.server_properties(DEAD)))
        living = ",".join(layout.client_address(one) for one in (1, 2, BROKER_ALONE))
        return [
            *HOSTS.prefix(ELSEWHERE), sys.executable, "-m", "cli.start", "takeover", str(DEAD),
            "--bootstrap-server", living, *config, *files, *more,
        ]  # fmt: skip

    def refused(self, reason: str) -> None:
        done = subprocess.run(self.command("--dry-run"), capture_output=True, text=True, check=False, cwd=CHECKOUT)
        assert done.returncode == ExitCode.REFUSED, done.stdout + done.stderr
        assert reason in done.stdout
        assert not self.directory.exists(), "nothing is written"

    def run(self) -> None:
        done = subprocess.run(self.command(), capture_output=True, text=True, check=False, cwd=CHECKOUT)
        assert done.returncode == 0, done.stdout + done.stderr

    def kill_at(self, step: Step) -> None:
        """Kill the command when it begins this step."""
        begins, told = f"{STEPS.index(step) + 1} of {len(STEPS)}: ", []
        with subprocess.Popen(self.command(), stderr=subprocess.PIPE, text=True, cwd=CHECKOUT) as process:
            assert process.stderr is not None
            for line in process.stderr:
                told.append(line)
                if line.startswith(begins):
                    process.kill()
                    return
        raise AssertionError(f"it did not come to {step}: {''.join(told)}")

    def kill_started(self, name: str) -> None:
        """Kill a process that the killed command has left, if there is one."""
        known = ProcessSpec(name, (), self.directory / f"{name}.log", self.directory / f"{name}.pid", self.directory)
        ManagedProcess(known).kill()


def uploaded(cluster: LocalCluster, topic: str) -> Callable[[], bool]:
    """Whether all of the log as of now is stored."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "-"})
    _, end_offset = consumer.get_watermark_offsets(TopicPartition(topic, 0), PATIENCE_S)
    consumer.close()

    def is_stored() -> bool:
        led = [one for one in describe(cluster, DEAD)["partitions"] if one["topic"] == topic]
        return any(one["uploaded_offset"] >= end_offset for one in led)

    return is_stored


def test_the_place_of_a_dead_broker_is_taken_on_another_host(cluster: LocalCluster, topic: str, tmp_path: Path) -> None:
    one, durable, three = topics = [f"{topic}-{kind}" for kind in ("one", "durable", "three")]
    for name, replicas, settings in (
        (one, [DEAD], LINKED_AND_KEPT),
        (durable, [DEAD], DURABLE),
        (three, [DEAD, 1, 2], LINKED_AND_KEPT),
    ):
        cluster.admin.create_topic(name, assignment=[replicas])
        set_topics(cluster.bootstrap_servers, [name], settings)
    wait_until(
        lambda: {view["topic"] for view in describe(cluster, DEAD)["partitions"]} >= set(topics), "led", PATIENCE_S
    )
    living = ",".join(cluster.layout.client_address(broker) for broker in (1, 2, BROKER_ALONE))
    place = NewPlace(cluster, tmp_path / "place")
    with ExitStack() as running:
        producers = [
            # By acks=1, as in stock Kafka, a planned change of leaders loses what the new one does not have yet.
            running.enter_context(NumberedProducer(living, name, name, acks="all"))
            for name in topics
        ]
        group = running.enter_context(Group(living, topics))
        more_acknowledged(producers)
        place.refused("the controllers say that it is alive")
        certain = len(producers[0].acknowledged)
        wait_until(uploaded(cluster, one), "what was acknowledged by now is stored", PATIENCE_S)

        # The broker dies before its agent, which alone is a reason to refuse; then all of the host is gone.
        cluster.broker(DEAD).kill()
        begun_s = time.monotonic()
        wait_until(lambda: DEAD not in cluster.admin.registered_brokers(), "it is fenced", PATIENCE_S)
        place.refused("its agent answers at")
        cluster.agent(DEAD).kill()
        risked = len(producers[0].acknowledged)
        for path in (*cluster.layout.log_directories(DEAD), cluster.layout.agent_directory(DEAD)):
            shutil.rmtree(path)

        try:
            place.kill_at(Step.RECOVER)
            place.kill_started("recover")
            place.kill_at(Step.START)
            place.kill_at(Step.LEAD)
            place.kill_at(Step.DRAIN)
            place.kill_started("drain")
            # Topics of one replica serve again before anything is moved, where the recovered broker is.
            more_acknowledged(producers, 200)
            sys.stderr.write(f"all are served {time.monotonic() - begun_s:.0f} s after the death\n")
            for name in (one, durable):
                [state] = cluster.admin.partitions(name)
                assert (state.leader, state.replicas) == (DEAD, (DEAD,))
            place.kill_at(Step.DRAIN)  # its moves go on, until the new host restarts
            for name in ("drain", "broker", "agent"):
                place.kill_started(name)
            wait_until(lambda: DEAD not in cluster.admin.registered_brokers(), "it is fenced again", PATIENCE_S)
            place.kill_at(Step.STOP)
            place.kill_at(Step.HAND_OVER)
            place.run()
        finally:
            for name in ("broker", "agent", "recover", "drain"):
                place.kill_started(name)
        more_acknowledged(producers)

    with ReassignmentAdmin(KafkaClientConfig(living)) as admin:
        assert [left for left in admin.cluster().partitions if DEAD in left.replicas] == []
    assert read_settings(KafkaClientConfig(living)).agents[DEAD].is_gone
    read = {name: read_all(living, name) for name in topics}
    lost = [value for value in producers[0].acknowledged if value not in read[one]]
    at = [producers[0].acknowledged.index(value) for value in lost]
    assert all(certain <= number < risked for number in at), f"more than what was not stored yet: {at}"
    for producer, name in zip(producers[1:], (durable, three), strict=True):
        assert set(producer.acknowledged) <= read[name], f"all that was acknowledged of {name} is there"
    with Group(living, topics, group.seen) as group:  # it goes on where it was
        wait_until(lambda: set().union(*read.values()) <= group.seen, "the group has read all", PATIENCE_S)
    cluster.admin.wait_for_full_isr(three)
    assert compare_replicas(cluster, three, PATIENCE_S).identical


def read_all(bootstrap: str, topic: str) -> set[str]:
    """All values of the topic's only partition."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "-", "enable.auto.commit": False})
    _, end_offset = consumer.get_watermark_offsets(TopicPartition(topic, 0), PATIENCE_S)
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: set[str] = set()
    at = 0
    while at < end_offset:
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        assert message.error() is None, message.error()
        values.add((message.value() or b"").decode())
        at = message.offset() + 1
    consumer.close()
    return values
