"""What agents tell of themselves over HTTP, and what follows for a test."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from local_cluster.cluster import LocalCluster

Sample = tuple[str, tuple[tuple[str, str], ...]]
"""A metric's name and labels."""

RECORD_BYTES = "remote_wal_replicated_record_bytes_total"
FAULTS = "remote_wal_faults_total"
UPLOAD_FAILURES = "remote_wal_upload_failures_total"
RESIDENT_BYTES = "process_resident_memory_bytes"
CPU_SECONDS = "process_cpu_seconds_total"

_TIMEOUT_S = 5.0


def read_metrics(cluster: LocalCluster, broker_id: int) -> dict[Sample, float]:
    """Every sample of the agent's /metrics. Raises OSError when the agent does not answer."""
    text = answer_of(cluster, broker_id, "/metrics").decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def describe(cluster: LocalCluster, broker_id: int) -> dict[str, Any]:
    """The agent's /describe. Raises OSError."""
    answer: dict[str, Any] = json.loads(answer_of(cluster, broker_id, "/describe"))
    return answer


def readiness(cluster: LocalCluster, broker_id: int) -> tuple[int, str]:
    """Status and text of the agent's /readyz, ready or not. Raises OSError."""
    try:
        return 200, answer_of(cluster, broker_id, "/readyz").decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


class MovedBytes(NamedTuple):
    """Record bytes that a partition's followers were given by its leader's agent since that began."""

    linked: int
    inline: int

    def since(self, before: "MovedBytes") -> "MovedBytes":
        return MovedBytes(self.linked - before.linked, self.inline - before.inline)


def moved_bytes(cluster: LocalCluster, topic: str) -> dict[int, MovedBytes]:
    """By partition, as the agents tell that lead them now. Raises OSError."""
    told = [
        partition
        for leader in {state.leader for state in cluster.admin.partitions(topic)}
        for partition in describe(cluster, leader)["partitions"]
        if partition["topic"] == topic
    ]
    return {one["partition"]: MovedBytes(one["linked_bytes"], one["inline_bytes"]) for one in told}


class AgentCounters:
    """Counters of all agents since this was made. As in Prometheus, a restarted agent's begin anew at zero.

    Those of an agent that runs and does not answer when this is made count from its first answer on.
    """

    def __init__(self, cluster: LocalCluster, broker_ids: Iterable[int] | None = None) -> None:
        self._cluster = cluster
        self._broker_ids = tuple(broker_ids or cluster.broker_ids)
        self._last = {broker_id: self._read(broker_id) for broker_id in self._broker_ids}
        self._silent = {one for one in self._broker_ids if not self._last[one] and cluster.agent(one).is_alive()}
        self._grown: dict[Sample, float] = {}

    def growth(self, name: str, **labels: str) -> float:
        """By how much the counters of this name have grown together, those alone that have these labels."""
        self._update()
        wanted = set(labels.items())
        return sum(grown for (found, has), grown in self._grown.items() if found == name and wanted <= set(has))

    def grown_labels(self, name: str, label: str) -> dict[str, float]:
        self._update()
        found: dict[str, float] = {}
        for (metric, labels), grown in self._grown.items():
            if metric == name and grown:
                value = dict(labels)[label]
                found[value] = found.get(value, 0) + grown
        return found

    def _update(self) -> None:
        for broker_id in self._broker_ids:
            now = self._read(broker_id)
            if not now:
                continue  # it does not run: its counters stand where they were last seen
            last = now if broker_id in self._silent else self._last[broker_id]
            self._silent.discard(broker_id)
            for sample, value in now.items():
                before = last.get(sample, 0.0)
                self._grown[sample] = self._grown.get(sample, 0.0) + (value - before if value >= before else value)
            self._last[broker_id] = now

    def _read(self, broker_id: int) -> Mapping[Sample, float]:
        try:
            return {
                sample: value
                for sample, value in read_metrics(self._cluster, broker_id).items()
                if sample[0].endswith("_total")
            }
        except OSError:
            return {}


def answer_of(cluster: LocalCluster, broker_id: int, path: str) -> bytes:
    """What the agent's HTTP endpoint has there. Raises OSError."""
    url = f"http://{cluster.layout.agent_http_address(broker_id)}{path}"
    with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:
        body: bytes = answer.read()
        return body
