"""Brokers with agents in pods as Strimzi makes them: its ports, its properties files, its names, one start for both.

A pod is a network namespace with a hosts file as the kubelet writes it. Strimzi itself, its image and its scripts are
not here: each pod runs the program that the image puts in the place of kafka-server-start.sh.
"""

import os
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from doctor.cluster_questions import cluster_of
from kafka_cluster.client_config import KafkaClientConfig
from local_cluster.broker_config import AgentsMode, ClusterSettings
from local_cluster.cluster import LocalCluster, agent_is_ready
from local_cluster.cluster_admin import LINKED_AND_KEPT, set_topics
from local_cluster.layout import ClusterLayout
from local_cluster.node_processes import broker_process
from local_cluster.object_store.store_spec import LocalDirectoryStore
from local_cluster.polling import wait_until
from local_cluster.processes import ManagedProcess, ProcessSpec, descendants
from local_cluster.security.listeners import agents_tls, write_certificates
from local_cluster.zones import ZoneHosts, hosts_where_allowed
from tests.cluster.conftest import IMPATIENT
from tests.cluster.script import PATIENCE_S, PLAIN, TRANSACTIONS, Script
from tests.package.bare_environment import ROOT
from tests.package.strimzi import PROGRAM, SERVICE, generated, pod
from tests.package.test_strimzi import COMPARED_NOT

HOSTS = ZoneHosts("10.236")
IDS = HOSTS.broker_ids
POOLS = {one: f"az{one}" for one in IDS}
DOMAIN = f"{SERVICE}.cluster.local"
JVM_ON_SIGTERM = 143


class Pods:
    """Three pods, and the cluster that they make as others see it."""

    def __init__(self, directory: Path) -> None:
        self.layout = ClusterLayout.plan(directory, len(IDS), network=HOSTS.network)
        self.cluster = LocalCluster(self.layout, ClusterSettings(AgentsMode(), hosts=HOSTS))
        write_certificates(self.layout)
        for one in IDS:
            self._write(one)
        self.cluster.format()
        self.processes = {one: self._process(one) for one in IDS}

    def text(self, one: int) -> str:
        layout, directory = self.layout, self.layout.broker_directory(one)
        store = LocalDirectoryStore()
        peers = (f"{other}@{_name(other)}:{layout.peer_port(other)}" for other in IDS)
        config = {
            **IMPATIENT,
            "log.cleaner.dedupe.buffer.size": 16777216,
            "remote.log.wal.storage.system.enable": True,
            "remote.log.wal.storage.manager.class.name": store.class_name,
            **{f"rsm.wal.config.{key}": value for key, value in store.settings(layout.object_store_directory).items()},
            "remote.wal.agent.replica.port.base": layout.replica_port_base,
            "remote.wal.agent.peer.listener": f"0.0.0.0:{layout.peer_port(one)}",
            "remote.wal.agent.peers": ",".join(peers),
            **agents_tls(layout, one),
            "remote.wal.agent.http.listener": f"${{strimzienv:HOSTNAME}}.{DOMAIN}:{layout.agent_http_port(one)}",
            "remote.wal.agent.http.plaintext.accepted": True,
            "remote.wal.agent.state.directory": str(directory / "remote-wal"),
        }
        return generated(
            one,
            config,
            pool=POOLS[one],
            voters=POOLS,
            listeners=[("PLAIN-9092", layout.client_port(one), layout.client_address(one))],
            log_directory=str(directory),
            home=str(directory / "kafka"),
            providers={
                "strimzienv.class": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
                "strimzienv.param.allowlist.pattern": ".*",
                "strimzidir.class": "org.apache.kafka.common.config.provider.DirectoryConfigProvider",
                "strimzidir.param.allowed.paths": str(directory / "kafka"),
            },
        )

    def _write(self, one: int) -> None:
        """Write what is in the image and what Strimzi mounts."""
        home = self.layout.broker_directory(one) / "kafka"
        (home / "init").mkdir(parents=True)
        (home / "init" / "rack.id").write_text(f"zone-{one}")
        self.layout.server_properties(one).write_text(self.text(one))
        (home / "bin").mkdir()
        shutil.copy(PROGRAM, home / "bin" / "kafka-server-start.sh")
        runtime, settings = self.cluster.runtime, self.cluster.settings
        command = broker_process(self.layout, one, settings, runtime.java, runtime.kafka).spec.command
        java = [word for word in command[len(HOSTS.prefix(one)) : -1] if "jdk.net.hosts.file" not in word]
        stock = home / "bin" / "kafka-server-start.stock.sh"
        stock.write_text(f'#!/bin/sh\nexec {shlex.join(java)} "$1"\n')
        stock.chmod(0o755)

    def _process(self, one: int) -> ManagedProcess:
        directory = self.layout.broker_directory(one)
        program = str(directory / "kafka" / "bin" / "kafka-server-start.sh")
        environment = {
            "STRIMZI_BROKER_ID": str(one),
            "HOSTNAME": pod(one, POOLS[one]),
            "PYTHONPATH": str(ROOT),
        }
        return ManagedProcess(
            ProcessSpec(
                f"pod {one}",
                (*HOSTS.prefix(one), sys.executable, program, str(self.layout.server_properties(one))),
                directory / "stdout.log",
                directory / "pid",
                ROOT,
                environment,
            )
        )

    def start(self) -> None:
        for process in self.processes.values():
            process.start()
        self.cluster.wait_for_brokers(IDS)
        for one in IDS:
            self.wait_for_agent(one)

    def wait_for_agent(self, one: int) -> None:
        wait_until(lambda: agent_is_ready(self.layout, one), f"the agent of pod {one} is ready", PATIENCE_S)

    def agent(self, one: int) -> int | None:
        """The process id of the pod's agent."""
        pid = self.processes[one].pid
        for child in descendants(pid) if pid is not None else ():
            with suppress(OSError):
                if b"--broker-config" in Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0"):
                    return child
        return None

    def log(self, one: int) -> str:
        return self.processes[one].spec.log_path.read_text(errors="replace")

    def end(self) -> None:
        """End all as a node's end would."""
        for process in self.processes.values():
            pid = process.pid
            for one in [pid, *descendants(pid)] if pid is not None else ():
                with suppress(ProcessLookupError):
                    os.kill(one, signal.SIGKILL)


def _name(one: int) -> str:
    return f"{pod(one, POOLS[one])}.{SERVICE}"


@contextmanager
def names() -> Iterator[None]:
    """Write each pod's hosts file: names of pods lead to them, advertised ones to the pod itself."""
    aliases = " ".join(f"wal-{one}.kafka.svc" for one in IDS)
    pods = "".join(f"{HOSTS.address(one)} {_name(one)} {pod(one, POOLS[one])}.{DOMAIN}\n" for one in IDS)
    directories = [Path("/etc/netns") / HOSTS.namespace(one) for one in IDS]
    try:
        for directory in directories:
            directory.mkdir(parents=True)
            (directory / "hosts").write_text(f"127.0.0.1 localhost {aliases}\n{pods}")
        yield
    finally:
        for directory in directories:
            shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    with hosts_where_allowed(HOSTS) as are_there:
        if not are_there:
            pytest.skip("this machine allows no network namespaces")
        with names():
            made = Pods(tmp_path / "cluster")
            try:
                made.start()
                yield made
            finally:
                made.end()


def differences(pods: Pods, one: int) -> set[str]:
    """The keys in which the running broker differs from the operator's file, of those that the broker tells."""
    cluster = cluster_of(KafkaClientConfig(pods.layout.bootstrap_servers, {}), PATIENCE_S)
    told = cluster.broker_configurations([one]).get_all()[one]
    wanted = dict(line.split("=", 1) for line in pods.text(one).splitlines() if "=" in line and line[0] != "#")
    return {key for key in wanted.keys() & told.keys() if told[key] and told[key] != wanted[key]}


@pytest.mark.thorough
def test_pods_of_strimzi_replicate_by_links_and_restart_their_agents(pods: Pods) -> None:
    script = Script(pods.cluster, "orders")
    with script:
        script.create_topic(linked=False)
        set_topics(pods.layout.bootstrap_servers, ["orders"], LINKED_AND_KEPT)
        # Transactions end by what brokers ask also themselves, at the address that they advertise.
        script.produce(PLAIN, TRANSACTIONS)
        script.expect_records_to_flow()
        script.expect_links_to_be_used()
        pods.cluster.admin.wait_for_full_isr("orders", timeout_s=PATIENCE_S)

        # What the operator compares at each reconciliation.
        for one in IDS:
            assert "advertised.listeners" in differences(pods, one) <= COMPARED_NOT

        killed = pods.agent(2)
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: pods.agent(2) not in (None, killed), "the agent is started again", PATIENCE_S)
        assert "the agent ended with -9, and is started again" in pods.log(2)
        pods.wait_for_agent(2)
        script.expect_links_to_be_used()
        script.expect_records_to_flow()
        script.expect_promises()

    # A pod is ended: its broker hands over what it leads, while its agent still stands beside it.
    ended = pods.processes[3]
    agent = pods.agent(3)
    ended.send_signal(signal.SIGTERM)
    ended.wait_for_exit(PATIENCE_S)
    assert ended.exit_code == JVM_ON_SIGTERM
    assert agent is not None
    assert not Path(f"/proc/{agent}").exists()
