"""Does to a cluster what a plan of faults says, and undoes it. Notes what ended without being asked to.

In a control, a cluster without agents, faults of agents and of the store do nothing but take their time.
"""

import json
import shutil
import urllib.request
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from kafka_cluster.client_config import KafkaClientConfig
from kafka_cluster.cluster import KafkaCluster
from kafka_cluster.errors import KafkaClusterError
from local_cluster.cluster import LocalCluster
from local_cluster.cluster_admin import REQUEST_TIMEOUT_S, ClusterAdminError
from local_cluster.object_store.store_spec import S3Store
from local_cluster.polling import WaitTimeoutError, wait_until
from local_cluster.processes import ManagedProcess, ProcessStartError
from tests.cluster.replica_moves import move_leader
from tests.faulty_store import Fault
from tests.soak.changed_topics import SINGLE, ChangedTopics
from tests.soak.fault_plan import FaultKind, PlannedFault
from tests.soak.judgement import ask, describe

_AGENT_GRACE_S = 60.0
_BROKER_GRACE_S = 60.0
_SETTLED_S = 600.0
_RECOVERIES = 5
"""How often a recovery is tried that says that it could not be made."""
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

    def __init__(
        self, cluster: LocalCluster, store: S3Store | None, topics: tuple[str, ...], changed: ChangedTopics
    ) -> None:
        """`store` is an object_store_server's, or None where there is none. Leaders of `topics` are moved."""
        self.findings: list[str] = []
        """What is wrong with the processes themselves, and with recoveries."""
        self.recovered: Counter[str] = Counter()
        """How many logs, by what `recover` says of them."""
        self.given_up = 0
        """Acknowledged records that were on a lost disk alone, and not uploaded yet."""
        self._cluster = cluster
        self._store_url = store.endpoint_url if store is not None else ""
        self._environment = store.environment() if store is not None else {}
        self._topics = topics
        self._changed = changed
        self._uploaded = 0
        """Of the log without a second replica on the lost disk."""
        self._down: set[str] = set()
        self._logged_before: dict[int, int] = {}
        """How long an agent's log was when it was started."""
        self._moves = 0

    def begin(self, fault: PlannedFault) -> None:
        if fault.kind.part == "store":
            self._ask_store("POST", json.dumps(asdict(_STORE_FAULTS[fault.kind])).encode())
        elif fault.kind is FaultKind.LEADER_MOVED:
            self._move_leader(fault.broker_id)
        elif fault.kind is FaultKind.DISK_LOST:
            self._lose_disk(fault.broker_id)
        elif fault.kind is FaultKind.RECORDS_DELETED:
            self._changed.delete_records()
        elif fault.kind is FaultKind.TOPIC_REMADE:
            self._changed.delete_topic()
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
        """Undo it. Processes are started, and not waited for, unless a disk was lost. Raises ProcessStartError,
        WaitTimeoutError.
        """
        if fault.kind.part == "store":
            self._ask_store("DELETE")
        elif fault.kind is FaultKind.DISK_LOST:
            self._recover(fault.broker_id)
        elif fault.kind is FaultKind.TOPIC_REMADE:
            self._changed.make_topic_again()
        elif process := self._process(fault):
            self._down.discard(process.spec.name)
            if fault.kind in (FaultKind.AGENT_PAUSED, FaultKind.BROKER_PAUSED):
                process.resume()
            else:
                self._start(fault.kind.part, fault.broker_id)

    def look(self) -> None:
        """Note the processes that have ended by themselves, and start them again. Raises ProcessStartError."""
        for part in ("broker", "agent") if self._cluster.layout.has_agents else ("broker",):
            for broker_id in self._cluster.broker_ids:
                process = self._cluster.broker(broker_id) if part == "broker" else self._cluster.agent(broker_id)
                if process.spec.name not in self._down and not process.is_alive():
                    self.findings.append(f"{process.spec.name} ended by itself, with status {process.exit_code}")
                    self._start(part, broker_id)

    def settle(self) -> None:
        """Wait until everything runs and all replicas are in sync. Raises WaitTimeoutError, ProcessStartError."""
        self.look()
        self._cluster.wait_until_ready(_SETTLED_S)
        for topic in (*self._topics, SINGLE):
            self._cluster.admin.wait_for_full_isr(topic, timeout_s=_SETTLED_S)

    def _lose_disk(self, broker_id: int) -> None:
        """While all replicas are in sync: the last one would have to be recovered otherwise."""
        self.settle()
        wait_until(self._all_in_sync, "all topics are in sync", _SETTLED_S)
        if self._cluster.layout.has_agents:
            led = describe(self._cluster, broker_id)["partitions"]
            self._uploaded = max((one["uploaded_offset"] for one in led if one["topic"] == SINGLE), default=0)
        for process in (self._cluster.broker(broker_id), self._cluster.agent(broker_id)):
            self._down.add(process.spec.name)
            process.kill()
        for path in self._cluster.layout.log_directories(broker_id):
            shutil.rmtree(path)

    def _all_in_sync(self) -> bool:
        client = KafkaClientConfig(self._cluster.bootstrap_servers, {"log_level": 0})
        try:
            topics = KafkaCluster(client, "soak", REQUEST_TIMEOUT_S).listing().topics
        except KafkaClusterError:
            return False
        return not any(one.is_lagging for topic in topics.values() for one in topic.partitions)

    def _recover(self, broker_id: int) -> None:
        """With agents as the product's documents say; what is stored is there again. Without them all is copied."""
        ends = {}
        if self._cluster.layout.has_agents:
            for _ in range(_RECOVERIES):
                document, complaint = ask(self._cluster, "recover", broker_id, self._environment)
                if document is not None and "logs" in document:
                    break
            else:
                raise ProcessStartError(f"broker {broker_id} is not recovered: {complaint or document}")
            self.recovered.update(log["status"] for log in document["logs"])
            for what in ("unreadable_objects", "lost_objects"):
                if found := document[what]:
                    self.findings.append(f"recovery of broker {broker_id}: {what}: {str(found)[:300]}")
            ends = {log["log"]: log["end_offset"] for log in document["logs"]}
        else:
            self._cluster.format()
        name = f"{SINGLE}-{self._changed.partition_at(broker_id)}"
        end = ends.get(name, 0)
        if end < self._uploaded:
            self.findings.append(f"{name} is recovered to {end}, and was uploaded to {self._uploaded}")
        self.given_up += self._changed.lose_single(broker_id, end)
        for part in ("agent", "broker") if self._cluster.layout.has_agents else ("broker",):
            self._start(part, broker_id)
        self._down -= {self._cluster.broker(broker_id).spec.name, self._cluster.agent(broker_id).spec.name}
        self.settle()

    def _process(self, fault: PlannedFault) -> ManagedProcess | None:
        """What it strikes; None of a leader, and of agents where there are none."""
        if fault.kind.part == "broker":
            return self._cluster.broker(fault.broker_id)
        has_agents = fault.kind.part == "agent" and self._cluster.layout.has_agents
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
            move_leader(self._cluster.admin, topic, partition, broker_id)
        except (ClusterAdminError, WaitTimeoutError, KafkaException, KafkaError):
            return

    def _ask_store(self, method: str, body: bytes | None = None) -> None:
        if self._store_url:
            request = urllib.request.Request(f"{self._store_url}/_faults", data=body, method=method)
            urllib.request.urlopen(request, timeout=_SETTLED_S).close()
