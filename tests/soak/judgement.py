"""What must hold once the faults are over and nobody writes: replicas, objects, metadata, and the agents' own words."""

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.produce.router_channel import KEEP_S
from gateway.router_uploads import SWEEP_EACH_S
from kafka_cluster.client_config import KafkaClientConfig
from local_cluster.cluster import LocalCluster
from local_cluster.polling import WaitTimeoutError, wait_until
from local_cluster.workload.replica_comparison import ReplicaReadError, compare_replicas
from metadata_topic.records.states import FINISHED
from metadata_topic.topic.topic_session import read_metadata
from plugin.format.adoption_note import split_note
from plugin.remote_wal_storage_manager import blobs_of
from plugin.router_object_id import ROUTER_KIND, RouterObjectId
from plugin.store_loop import ask_each
from plugin.wall_clock import wall_ms
from tests.soak.stored_offsets import StoredOffsets, find_stored_offsets, open_storage

_STORED_S = 120.0
_REPLICAS_S = 60.0
_ORPHANS_S = 120.0
_SPARE_MS = 60_000
"""Wanted is what was appended within the topic's retention, but for this much, in which the judgement is made."""
_ROUTER_OBJECT_MS = int((KEEP_S + SWEEP_EACH_S) * 1000) + 60_000
"""How long an object of a gateway that died may be there."""
_PUT_OF_ROUTER = re.compile(r'"operation": "put", "key": "[^"]*?(router/[^"]*)"')
_CHANNELS_S = 60.0
_COMMAND_S = 600.0
_SHOWN = 8

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RouterChannels:
    """What is known of gateways and their objects at rest."""

    living: Mapping[int, int]
    """Incarnations by gateway."""
    failed: Container[str] = ()
    """Names of objects of whose uploads an attempt failed."""
    named: frozenset[str] = frozenset()
    """Names of those that segments name which the metadata tells of."""
    calm_ms: tuple[int, int] | None = None
    """With adoption, from when to when objects were begun while no client came or went: whose connection ends is not
    told what becomes of its records, which are left to a sweep unless a log wants them. None: there is no adoption.
    """

    def leaked(self, names: Iterable[str], now_ms: int) -> list[str]:
        """Of the listed objects those that should be gone."""
        return [name for name in names if self._is_leaked(name, now_ms)]

    def missed(self, names: Iterable[str]) -> list[str]:
        """What should be there and is not listed."""
        return sorted(self.named - {*names})

    def _is_leaked(self, name: str, now_ms: int) -> bool:
        one = RouterObjectId.parse(name)
        if one is None:
            return True
        if name in self.named:
            return False
        if self.living.get(one.gateway_id) == one.incarnation and name not in self.failed and self._is_calm(one):
            return True
        return now_ms - one.begun_until_ms > _ROUTER_OBJECT_MS

    def _is_calm(self, one: RouterObjectId) -> bool:
        if self.calm_ms is None:
            return True
        return self.calm_ms[0] <= one.begun_ms and one.begun_until_ms <= self.calm_ms[1]


class Judge:
    """Looks at a cluster at rest. Each question gives what is wrong, one line each."""

    def __init__(self, cluster: LocalCluster, topics: tuple[str, ...], tell: Tell) -> None:
        self.figures: dict[str, object] = {}
        self._cluster = cluster
        self._topics = topics
        self._tell = tell

    def replicas(self) -> Iterator[str]:
        self._tell("comparing the replicas byte by byte")
        compared_bytes = 0
        for topic in self._topics:
            comparison = _again_when_files_go(lambda: compare_replicas(self._cluster, topic, _REPLICAS_S))  # noqa: B023
            compared_bytes += comparison.compared_bytes
            if not comparison.identical:
                yield f"replicas of {topic}: {comparison}"
        self.figures["replica_bytes_compared"] = compared_bytes

    def all_is_stored(self) -> Iterator[str]:
        """Agents that believe that something is left to upload."""
        self._tell("waiting for the last uploads")
        try:
            wait_until(lambda: not self._unstored(), "all is stored and published", _STORED_S, interval_s=0.5)
        except WaitTimeoutError:
            yield f"not stored within {_STORED_S:g} s: {_some(self._unstored())}"

    def stored_offsets(self, now_ms: int, retention_ms: int) -> Iterator[str]:
        """Wanted offsets that no object holds."""
        self._tell("holding the objects against the wanted offsets")
        stored: StoredOffsets = find_stored_offsets(
            self._cluster, self._topics, appended_since_ms=now_ms - retention_ms + _SPARE_MS
        )
        self.figures["wanted_offsets"] = stored.wanted_offsets
        self.figures["missing_offsets"] = sum(one.end - one.first for one in stored.missing)
        if not stored.wanted_offsets:
            yield "no offsets were wanted, so nothing was shown"
        if stored.missing:
            yield f"wanted and in no object: {_some([str(one) for one in stored.missing])}"
        if stored.lost_objects:
            yield f"finished in the metadata and not in the store: {_some(list(stored.lost_objects))}"

    def objects(self, environment: Mapping[str, str]) -> Iterator[str]:
        """What `remote-wal verify` finds when it reads all objects and holds them against a broker's logs."""
        self._tell("reading all objects back")
        broker_id = self._cluster.broker_ids[0]
        replicas = [str(path) for path in self._cluster.layout.log_directories(broker_id)]
        arguments = [part for path in replicas for part in ("--replica-log-dir", path)]
        arguments += [part for topic in self._topics for part in ("--topic", topic)]
        arguments += ["--bootstrap-server", self._cluster.bootstrap_servers]
        document, complaint = ask(self._cluster, "verify", broker_id, environment, *arguments)
        if document is None:
            yield f"verify: {complaint}"
            return
        self.figures["objects"] = document["objects"]
        self.figures["object_bytes_read"] = document["bytes_read"]
        self.figures["batches_compared_with_a_replica"] = document["batches_compared_with_a_replica"]
        wrong = [f"{one['kind']} {one['subject']}: {one['detail']}" for one in document["findings"] if one["error"]]
        if wrong or not document["sound"]:
            yield f"verify: {_some(wrong)}"

    def orphans(self, environment: Mapping[str, str]) -> Iterator[str]:
        """Disagreements between the store's listing and the metadata that the agents do not heal."""
        self._tell("waiting for the agents to heal orphans")
        found: list[str] = []

        def are_healed() -> bool:
            found[:] = self._disagreements(environment)
            return not found

        try:
            wait_until(are_healed, "store and metadata agree", _ORPHANS_S, interval_s=2.0)
        except WaitTimeoutError:
            yield f"orphans after {_ORPHANS_S:g} s: {_some(found)}"

    def router_channels(self, calm_ms: tuple[int, int] | None) -> Iterator[str]:
        """Objects of RouterChannels that nobody waits for any more and that are there all the same, and those that are
        not there though a segment names them. `calm_ms` as `RouterChannels` has it.

        No client produces now, so a living gateway has deleted all of its own that no log wants. What a dead one left
        goes after a time, and so does what took effect after its deletion, of which an attempt had failed.
        """
        self._tell("looking for what is left in the router channels")
        wrong: list[str] = []

        def are_right() -> bool:
            wrong[:] = self._router_faults(calm_ms)
            return not wrong

        try:
            wait_until(are_right, "the router channels hold what is wanted", _CHANNELS_S, interval_s=1.0)
        except WaitTimeoutError:
            yield f"router channels: {_some(wrong)}"
        if calm_ms is not None and not self.figures["router_objects_named"]:
            yield "no log has adopted anything, so nothing was shown of that"

    def _router_faults(self, calm_ms: tuple[int, int] | None) -> list[str]:
        living = {
            broker_id: int(describe(self._cluster, broker_id)["incarnation"]) for broker_id in self._cluster.broker_ids
        }
        storage = open_storage(self._cluster)
        try:
            listed = [blob.name for blob in ask_each(blobs_of(storage, "list", ROUTER_KIND).list_blobs(ROUTER_KIND))]
        finally:
            storage.close()
        store, _ = read_metadata(KafkaClientConfig(self._cluster.bootstrap_servers))
        notes = (split_note(one.custom_metadata)[1] for one in store.published_segments(FINISHED))
        named = frozenset(source.blob_name for note in notes if note is not None for source in note.sources)
        known = RouterChannels(living, self._attempts_failed(), named, calm_ms)
        self.figures["router_objects_named"] = len(named)
        self.figures["router_objects_left_to_a_sweep"] = len({*listed} - named)
        faults = [f"left: {name}" for name in known.leaked(listed, wall_ms())]
        return faults + [f"missed: {name}" for name in known.missed(listed)]

    def _attempts_failed(self) -> set[str]:
        """Names of objects of router channels of whose uploads an attempt failed, by the agents' logs."""
        logs = (self._cluster.agent(broker_id).spec.log_path for broker_id in self._cluster.broker_ids)
        said = (line for path in logs for line in path.read_text(errors="replace").splitlines())
        return {
            found[1] for line in said if "storage_attempt_failed" in line and (found := _PUT_OF_ROUTER.search(line))
        }

    def defects(self) -> Iterator[str]:
        for broker_id in self._cluster.broker_ids:
            log = self._cluster.agent(broker_id).spec.log_path
            if not log.exists():
                continue
            errors = re.findall(r"Traceback \(most recent call last\).*?\n(?=\w)([^\n]*)", log.read_text(), re.DOTALL)
            if errors:
                yield f"agent {broker_id} logged {len(errors)} tracebacks, the last one of {errors[-1][:200]}"

    def _unstored(self) -> list[str]:
        left = []
        for broker_id in self._cluster.broker_ids:
            try:
                answer = describe(self._cluster, broker_id)
            except OSError as error:
                return [f"agent {broker_id} does not answer: {error}"]
            left += [
                f"{led['topic']}-{led['partition']} at {led['uploaded_offset']} of {led['log_end_offset']}"
                for led in answer["partitions"]
                if led["topic"] in self._topics and led["uploaded_offset"] != led["log_end_offset"]
            ]
            if answer["metadata_pending"]:
                left.append(f"agent {broker_id} has {answer['metadata_pending']} records to publish")
        return left

    def _disagreements(self, environment: Mapping[str, str]) -> list[str]:
        found = []
        for broker_id in self._cluster.broker_ids:
            document, complaint = ask(self._cluster, "orphans", broker_id, environment)
            if document is None:
                return [complaint]
            found += [f"{one['kind']} {one['segment']}" for one in document["disagreements"]]
        return found


def describe(cluster: LocalCluster, broker_id: int) -> dict[str, Any]:
    """What an agent tells of itself. Raises OSError."""
    url = f"http://{cluster.layout.agent_http_address(broker_id)}/describe"
    with urllib.request.urlopen(url, timeout=5) as answer:
        told: dict[str, Any] = json.load(answer)
    return told


def ask(
    cluster: LocalCluster, command: str, broker_id: int, environment: Mapping[str, str], *arguments: str
) -> tuple[dict[str, Any] | None, str]:
    """What one of the product's commands answers in JSON, or what it complains of."""
    properties = str(cluster.layout.server_properties(broker_id))
    asked = [sys.executable, "-m", "cli.main", command, "--json", "--broker-config", properties, *arguments]
    try:
        ended = subprocess.run(
            asked, capture_output=True, text=True, timeout=_COMMAND_S, check=False, env={**os.environ, **environment}
        )
        return json.loads(ended.stdout), ""
    except subprocess.TimeoutExpired as error:
        return None, str(error)
    except ValueError:
        return None, f"{command} ended with {ended.returncode}: {(ended.stderr or ended.stdout).strip()[-500:]}"


def _again_when_files_go(compare: Callable[[], Any]) -> Any:
    """Retention removes segments while they are compared, each some time after the last."""
    for _ in range(3):
        try:
            return compare()
        except (FileNotFoundError, ReplicaReadError):
            continue
    return compare()


def _some(lines: list[str]) -> str:
    more = f"; and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
    return "; ".join(lines[:_SHOWN]) + more
