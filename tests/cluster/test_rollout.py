"""`remote-wal rollout` leads three loaded brokers of stock Kafka to agents, up and back, followed by the letter."""

import dataclasses
import json
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import javaproperties
import pytest
from typer.testing import CliRunner

from cli.main import build_app
from local_cluster.broker_config import AgentsMode, ClusterSettings, hosts_file, replica_host, server_properties
from local_cluster.cluster import LocalCluster
from local_cluster.polling import wait_until
from local_cluster.processes import ManagedProcess
from local_cluster.topic_switch import LINKED_AND_KEPT, set_topics
from tests.cluster.conftest import ClusterFactory
from tests.cluster.script import PATIENCE_S, PLAIN, TRANSACTIONS, Script
from tests.soak.verifiable_clients import VerifiableClients

VERIFIABLE_TOPIC = "verifiable"
POLL_S = 2.0
"""What asking for the replicas may take."""
AGENTS_KEYS = ("remote.wal.", "remote.log.wal.", "rsm.wal.")
OLDER = """
import agent.wiring.kafka_following
import replication.wire.peer_protocol as protocol

agent.wiring.kafka_following.version = lambda _distribution: "0.0.9"
protocol.CAPABILITIES = protocol.PeerCapabilities(0)
from cli.main import main

main()
"""
"""An agent of a release that shares no form of links with this one."""


def stock(cluster: LocalCluster) -> ClusterSettings:
    """One listener for clients and brokers, as clusters have it before they know of agents.

    All but the first broker have the agents' listener already: a restart costs CI more than it tells here, and
    `tests/rollout` follows all steps.
    """
    layout = cluster.layout
    overrides = {}
    for one in layout.broker_ids:
        client, port = f"CLIENT://{layout.client_address(one)}", layout.replica_port(one)
        lines = {
            "listeners": f"{client},CONTROLLER://{layout.controller_address(one)}",
            "advertised.listeners": client,
            "listener.security.protocol.map": "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        }
        agents = (f"WAL://127.0.0.1:{port}", f"WAL://{replica_host(one)}:{port}", "WAL:PLAINTEXT")
        if one > 1:
            lines = {key: f"{line},{more}" for (key, line), more in zip(lines.items(), agents, strict=True)}
        overrides[one] = {**lines, "inter.broker.listener.name": "CLIENT"}
    return ClusterSettings(broker_overrides=overrides)


class Operator:
    """Does what it is told, on the hosts of all brokers."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.agents: dict[int, ManagedProcess] = {}
        self.taken: list[str] = []
        self.under_replicated_s: list[float] = []
        """For how long each restart of a broker took, from SIGTERM until all replicas were in sync."""

    def told(self, command: str, target: str, *options: str) -> tuple[int, dict[str, Any]]:
        given = ["--bootstrap-server", self.cluster.bootstrap_servers, "--port-base"]
        given += [str(self.cluster.layout.replica_port_base), "--replica-host", replica_host(0).replace("0", "{id}")]
        answer = CliRunner().invoke(build_app(), ["rollout", command, "--to", target, "--json", *given, *options])
        return answer.exit_code, json.loads(answer.stdout)

    def follow(self, target: str, until: str | None = None) -> None:
        """Step after step, each proven by its own command, until nothing or that step is left."""
        while True:
            exit_code, told = self.told("next", target)
            assert exit_code == 0, told
            if told["done"] or told["step"]["id"] == until:
                assert told["done"] is (until is None)
                return
            self.take(told["step"])
            proof = CliRunner().invoke(build_app(), shlex.split(told["step"]["proof"])[1:])
            assert proof.exit_code == 0, proof.output
            self.taken.append(told["step"]["id"])

    def take(self, step: Mapping[str, Any]) -> None:
        if step["action"] == "disable-topics":
            command = [*shlex.split(step["do"][0])[1:], "--bootstrap-server", self.cluster.bootstrap_servers]
            assert CliRunner().invoke(build_app(), command).exit_code == 0
            return
        broker_id = int(step["broker"])
        lines = {**self.cluster.files.properties(broker_id), **step["set"]}
        lines = {key: value for key, value in lines.items() if not any(fnmatch(key, one) for one in step["remove"])}
        match step["action"]:
            case "restart-broker":
                self._write(broker_id, "server.properties", lines)
                self._restart(broker_id)
            case "start-agent":
                self._start_agent(broker_id, lines)
            case "upgrade-agent":
                self.agents[broker_id].terminate(30.0)
                self._run_agent(broker_id, self.cluster.agent(broker_id).spec.command[1:-1])
            case "stop-agent":
                self.agents[broker_id].terminate(30.0)

    def downgrade_agent(self, broker_id: int) -> None:
        """It stops, which is told by the broker that depends on it, and comes back as of another release."""
        self.agents[broker_id].terminate(30.0)
        exit_code, told = self.told("check", "enabled")
        assert exit_code == 1
        assert [one["broker"] for one in told["found"] if one["broker"] is not None] == [broker_id], told
        self._run_agent(broker_id, ("-c", OLDER, *self.cluster.agent(broker_id).spec.command[3:-1]))
        assert self.told("check", "enabled", "--wait", "90")[0] == 0

    def _write(self, broker_id: int, name: str, lines: Mapping[str, str]) -> None:
        path = self.cluster.layout.broker_directory(broker_id) / name
        path.write_text(javaproperties.dumps(lines, timestamp=False))

    def restart_plainly(self, broker_id: int) -> float:
        """As it is, and stock still; for how many seconds replicas are out of sync. The first of these times."""
        self._restart(broker_id)
        return self.under_replicated_s[-1]

    def _restart(self, broker_id: int) -> None:
        replicas = self.cluster.admin.replica_summary()
        assert replicas is not None
        assert replicas.under_replicated == 0, "told to restart a broker while replicas were out of sync"
        begun_s = time.monotonic()
        assert self.cluster.broker(broker_id).terminate(60.0)
        if not self.taken and self.under_replicated_s:
            ended_s = time.monotonic()
            self._expect_to_be_held_back()
            begun_s += time.monotonic() - ended_s  # Which an operator would not do meanwhile.
        self.cluster.start_broker(broker_id)
        wait_until(self._is_replicated, f"replicas are in sync after the restart of {broker_id}", PATIENCE_S)
        self.under_replicated_s.append(time.monotonic() - begun_s)

    def _is_replicated(self) -> bool:
        replicas = self.cluster.admin.replica_summary()
        return replicas is not None and replicas.under_replicated == 0

    def _expect_to_be_held_back(self) -> None:
        exit_code, told = self.told("next", "enabled")
        assert (exit_code, told["step"]) == (1, None), told
        assert any("under-replicated" in one["what"] for one in told["waits_for"]), told

    def _start_agent(self, broker_id: int, lines: Mapping[str, str]) -> None:
        """With the keys of a local cluster's agents, and a copy of the file that names the new listener."""
        settings = ClusterSettings(agents=AgentsMode())
        keys = server_properties(self.cluster.layout, broker_id, settings)
        lines = {**lines, **{key: value for key, value in keys.items() if key.startswith(AGENTS_KEYS)}}
        self._write(broker_id, "server.properties", lines)
        self._write(broker_id, "agent.properties", {**lines, "inter.broker.listener.name": "WAL"})
        self.cluster.layout.agent_directory(broker_id).mkdir(exist_ok=True)
        self._run_agent(broker_id, self.cluster.agent(broker_id).spec.command[1:-1])

    def _run_agent(self, broker_id: int, program: Sequence[str]) -> None:
        spec = self.cluster.agent(broker_id).spec
        copy = str(self.cluster.layout.broker_directory(broker_id) / "agent.properties")
        self.agents[broker_id] = ManagedProcess(dataclasses.replace(spec, command=(sys.executable, *program, copy)))
        self.agents[broker_id].start()


@pytest.mark.timeout(900)
@pytest.mark.thorough
def test_agents_are_led_into_a_loaded_cluster_to_a_release_and_out_again(
    make_cluster: ClusterFactory, topic: str, tmp_path: Path
) -> None:
    cluster = make_cluster(start=False)
    cluster.settings = stock(cluster)
    cluster.configure(None)
    for one in cluster.broker_ids:  # where each broker finds the others by the listener that is to come
        cluster.layout.hosts_file(one).write_text(hosts_file(cluster.layout, one, agents=True))
    cluster.start()
    operator, script = Operator(cluster), Script(cluster, topic)
    cluster.admin.create_topic(VERIFIABLE_TOPIC, 3)
    verifiable = VerifiableClients(cluster, cluster.bootstrap_servers, VERIFIABLE_TOPIC, tmp_path / "verifiable")
    with script, verifiable:
        script.create_topic(assignment=[[1, 2, 3], [2, 3, 1], [3, 1, 2]], linked=False)
        script.produce(PLAIN, TRANSACTIONS)
        script.expect_records_to_flow()
        plain_s = operator.restart_plainly(3)
        # Replicas are out of sync while their broker restarts, as they are in any restart, and at no other time.
        with script.without_a_shrinking_isr():
            operator.follow("enabled")
            set_topics(cluster.bootstrap_servers, [topic], LINKED_AND_KEPT)
            script.expect_links_to_be_used()
            script.expect_records_to_flow()

            operator.downgrade_agent(2)
            # Reading for each other within a zone is a setting, beside what a release understands of links.
            agreed = '"capabilities": "SHARED_READS"'
            wait_until(lambda: agreed in script.agent_log(1), "there are no links to it", PATIENCE_S)
            script.expect_inline_bytes()
            script.expect_records_to_flow()
            operator.follow("upgraded")
            script.expect_links_to_be_used()

            operator.follow("removed", until="withdraw:2")
            script.expect_records_to_flow()
        script.expect_promises()
        counted = verifiable.finish()
        assert (verifiable.account.send_errors, counted.faults) == ({}, 0), str(counted)
        assert counted.acknowledged == counted.sent > 0
    # A busy machine takes one restart longer than another. What waits for a time-out, or an agent, takes far longer.
    assert max(operator.under_replicated_s) < 2 * plain_s + POLL_S, operator.under_replicated_s
    brokers = cluster.broker_ids
    assert operator.taken == [
        "advertise:1",
        *(f"{name}:{one}" for name in ("agent", "switch") for one in brokers),
        "upgrade:2",
        "topics",
        *(f"{name}:{one}" for name in ("switch-back", "stop-agent") for one in brokers),
        "withdraw:1",
    ]
    before, after = stock(cluster).broker_overrides[1], cluster.files.properties(1)
    assert {key: after[key] for key in before} == before
    assert not [key for key in after if key.startswith(AGENTS_KEYS)]
