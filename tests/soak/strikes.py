"""Does to a cluster what a plan of faults says, and undoes it. Notes what ended without being asked to.

In a control, a cluster without agents, faults of agents and of the store do nothing but take their time.
"""

import json
import urllib.request
from dataclasses import asdict
from pathlib import Path

from local_cluster.cluster import LocalCluster
from local_cluster.cluster_admin import ClusterAdminError
from local_cluster.object_store.faults import Fault
from local_cluster.polling import WaitTimeoutError
from local_cluster.processes import ManagedProcess
from tests.soak.fault_plan import FaultKind, PlannedFault

_AGENT_GRACE_S = 60.0
_BROKER_GRACE_S = 60.0
_SETTLED_S = 180.0
_STORE_FAULTS = {
    FaultKind.STORE_SILENT: Fault("hang"),
    FaultKind.STORE_REFUSING: Fault("error"),
    FaultKind.STORE_REFUSING_SOME: Fault(
        "error", ("PUT",), path_part="8.rwal"
    ),  # every 16th: sequences are hexadecimal
    FaultKind.STORE_SLOW: Fault("latency", seconds=1.0),
    FaultKind.STORE_LOSING_ANSWERS: Fault("lose_response", ("PUT",)),
    FaultKind.STORE_CUTTING_BODIES: Fault("cut_body", ("GET",)),
}


class Strikes:
    """The faults of one cluster. Used from one thread."""

    def __init__(self, cluster: LocalCluster, store_url: str, topics: tuple[str, ...]) -> None:
        """`store_url` is an object_store_server's, or empty where there is none."""
        self.findings: list[str] = []
        """What is wrong with the processes themselves."""
        self._cluster = cluster
        self._store_url = store_url
        self._topics = topics
        self._down: set[str] = set()
        self._logged_before: dict[int, int] = {}
        """How long an agent's log was when it was started."""
        self._moves = 0

    def begin(self, fault: PlannedFault) -> None:
        """Strike."""
        if fault.kind.part == "store":
            self._ask_store("POST", json.dumps(asdict(_STORE_FAULTS[fault.kind])).encode())
        elif fault.kind is FaultKind.LEADER_MOVED:
            self._move_leader(fault.broker_id)
        elif process := self._process(fault):
            self._down.add(process.spec.name)
            match fault.kind:
                case FaultKind.AGENT_STOPPED:
                    self._stop_agent(fault.broker_id)
                case FaultKind.BROKER_STOPPED:
                    process.terminate(_BROKER_GRACE_S)
                case FaultKind.AGENT_PAUSED | FaultKind.BROKER_PAUSED:
                    process.pause()
                case _:
                    process.kill()

    def end(self, fault: PlannedFault) -> None:
        """Undo it. Processes are started, and not waited for. Raises ProcessStartError."""
        if fault.kind.part == "store":
            self._ask_store("DELETE")
        elif process := self._process(fault):
            self._down.discard(process.spec.name)
            if fault.kind in (FaultKind.AGENT_PAUSED, FaultKind.BROKER_PAUSED):
                process.resume()
            else:
                self._start(fault.kind.part, fault.broker_id)

    def look(self) -> None:
        """Note the processes that have ended by themselves, and start them again. Raises ProcessStartError."""
        for part in ("broker", "agent") if self._cluster.files.has_agents else ("broker",):
            for broker_id in self._cluster.broker_ids:
                process = self._cluster.broker(broker_id) if part == "broker" else self._cluster.agent(broker_id)
                if process.spec.name not in self._down and not process.is_alive():
                    self.findings.append(f"{process.spec.name} ended by itself, with status {process.exit_code}")
                    self._start(part, broker_id)

    def settle(self) -> None:
        """Wait until everything runs and all replicas are in sync. Raises WaitTimeoutError, ProcessStartError."""
        self.look()
        self._cluster.wait_until_ready(_SETTLED_S)
        for topic in self._topics:
            self._cluster.admin.wait_for_full_isr(topic, timeout_s=_SETTLED_S)

    def _process(self, fault: PlannedFault) -> ManagedProcess | None:
        """What it strikes; None of a leader, and of agents where there are none."""
        if fault.kind.part == "broker":
            return self._cluster.broker(fault.broker_id)
        has_agents = fault.kind.part == "agent" and self._cluster.files.has_agents
        return self._cluster.agent(fault.broker_id) if has_agents else None

    def _start(self, part: str, broker_id: int) -> None:
        if part == "agent":
            self._logged_before[broker_id] = self._agent_log(broker_id).stat().st_size
        (self._cluster.start_broker if part == "broker" else self._cluster.start_agent)(broker_id, wait=False)

    def _agent_log(self, broker_id: int) -> Path:
        return self._cluster.agent(broker_id).spec.log_path

    def _stop_agent(self, broker_id: int) -> None:
        agent = self._cluster.agent(broker_id)
        with self._agent_log(broker_id).open("rb") as log:
            log.seek(self._logged_before.get(broker_id, 0))
            has_begun = b"agent_started" in log.read()
        if not self._cluster.agent(broker_id).terminate(_AGENT_GRACE_S):
            self.findings.append(f"agent {broker_id} did not end within {_AGENT_GRACE_S:g} s of SIGTERM")
        elif agent.exit_code != 0 and has_begun:  # before it relays, it has nothing to finish
            self.findings.append(f"agent {broker_id} ended with status {agent.exit_code} upon SIGTERM")

    def _move_leader(self, broker_id: int) -> None:
        """One partition's, in turn. What the cluster refuses while it is unsettled is no finding."""
        from confluent_kafka import KafkaException
        from kafka.errors import KafkaError

        topic = self._topics[self._moves % len(self._topics)]
        states = self._cluster.admin.partitions(topic)
        if not states:
            return
        partition = states[self._moves // len(self._topics) % len(states)].partition
        self._moves += 1
        try:
            self._cluster.admin.move_leader(topic, partition, broker_id)
        except (ClusterAdminError, WaitTimeoutError, KafkaException, KafkaError):
            return

    def _ask_store(self, method: str, body: bytes | None = None) -> None:
        if self._store_url:
            request = urllib.request.Request(f"{self._store_url}/_faults", data=body, method=method)
            urllib.request.urlopen(request, timeout=10).close()
