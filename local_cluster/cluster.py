"""A real Kafka cluster on this machine, with or without agents.

Its directory holds everything: layout, configuration, data, logs, and the pid files by which a later
program finds the processes. Nothing ends them but `stop`, `kill_all`, or leaving the `with` block.

Agents are started before brokers, because a broker's replica fetchers dial its agent; an agent waits for
its broker. The order of the ends is the reverse.
"""

import contextlib
import dataclasses
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

import javaproperties

from jvm.ivy import Progress
from jvm.java import Java, find_java
from local_cluster.broker_config import AgentsMode, ClusterSettings, write_configuration
from local_cluster.class_archive import with_class_archive
from local_cluster.cluster_admin import ClusterAdmin
from local_cluster.cluster_status import AgentStatus, BrokerStatus, ClusterStatus
from local_cluster.kafka_distribution import KafkaDistribution, resolve_kafka
from local_cluster.kafka_tools import KafkaTools
from local_cluster.layout import ClusterLayout, LayoutError
from local_cluster.node_processes import (
    agent_process,
    broker_process,
    format_log_directory,
    known_broker_process,
)
from local_cluster.polling import WaitTimeoutError, wait_until
from local_cluster.processes import ManagedProcess, ProcessStartError

START_TIMEOUT_S = 120.0
STOP_GRACE_S = 15.0


class LocalCluster:
    """The cluster of one directory. Not thread safe, but for `admin`."""

    def __init__(
        self, layout: ClusterLayout, settings: ClusterSettings | None = None, progress: Progress | None = None
    ) -> None:
        self.layout = layout
        self.settings = settings or ClusterSettings()
        self.admin = ClusterAdmin(layout.bootstrap_servers)
        self._tell: Progress = progress or (lambda _line: None)
        self._runtime: tuple[Java, KafkaDistribution] | None = None
        self._brokers = {broker_id: known_broker_process(layout, broker_id) for broker_id in layout.broker_ids}
        self._agents = {broker_id: agent_process(layout, broker_id, self.settings) for broker_id in layout.broker_ids}

    @classmethod
    def create(
        cls,
        directory: Path,
        *,
        brokers: int = 3,
        settings: ClusterSettings | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """A new cluster in an empty or absent directory; nothing is started. Raises LayoutError."""
        if directory.exists() and any(directory.iterdir()):
            raise LayoutError(f"{directory} is not empty: a new cluster needs a directory of its own")
        layout = ClusterLayout.plan(directory, brokers)
        layout.save()
        cluster = cls(layout, settings, progress)
        cluster._write_configuration()
        return cluster

    @classmethod
    def open(
        cls, directory: Path, *, settings: ClusterSettings | None = None, progress: Progress | None = None
    ) -> Self:
        """The cluster that stands in `directory`, running or not. Raises LayoutError.

        `settings` count from the next `configure` or `start` on; without them the files stay as they are.
        """
        cluster = cls(ClusterLayout.load(directory), settings, progress)
        if settings is not None:
            cluster._write_configuration()
        return cluster

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill_all()

    @property
    def bootstrap_servers(self) -> str:
        return self.layout.bootstrap_servers

    @property
    def broker_ids(self) -> tuple[int, ...]:
        return self.layout.broker_ids

    @property
    def java(self) -> Java:
        """Raises JavaNotFoundError."""
        return self._resolved()[0]

    @property
    def kafka(self) -> KafkaDistribution:
        """Kafka's jars, fetched on the first use. Raises KafkaDistributionError."""
        return self._resolved()[1]

    @property
    def tools(self) -> KafkaTools:
        """Kafka's own tools, run against this cluster."""
        java, kafka = self._resolved()
        return KafkaTools(java, kafka, self.bootstrap_servers)

    @property
    def tools_as_shipped(self) -> KafkaTools:
        """The same with the JVM options of Kafka's own scripts."""
        java, kafka = self._resolved()
        return KafkaTools(java, kafka, self.bootstrap_servers, jvm_as_shipped=True)

    @property
    def has_agents(self) -> bool:
        """Whether the configuration on disk puts agents between the brokers."""
        return any(self._properties(broker_id).get(_AGENT_SWITCH) == "true" for broker_id in self.broker_ids)

    def configure(self, agents: AgentsMode | None) -> None:
        """Switch agents on or off ("listeners put back"). Data stay; it counts from the next start on."""
        self.settings = dataclasses.replace(self.settings, agents=agents)
        self._write_configuration()

    def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Start all that is not running, and wait until it is ready; if that fails, end what was started.

        Raises ProcessStartError with the end of the log of what failed, WaitTimeoutError.
        """
        self._resolved()
        self.format()
        with contextlib.ExitStack() as undo:
            if self.has_agents:
                self._tell("starting agents")
                for broker_id in self.broker_ids:
                    self._launch(self._agents[broker_id], undo)
            self._tell("starting brokers")
            for broker_id in self.broker_ids:
                self._launch(self._prepared_broker(broker_id), undo)
            self.wait_until_ready(timeout_s)
            undo.pop_all()

    def format(self) -> None:
        """Format the log directories that are new, side by side. Raises ProcessStartError."""
        new = [
            broker_id
            for broker_id in self.broker_ids
            if any(not (path / "meta.properties").exists() for path in self.log_directories(broker_id))
        ]
        if not new:
            return
        self._tell("formatting log directories")
        java, kafka = self._resolved()
        with ThreadPoolExecutor(len(new)) as pool:
            list(pool.map(lambda broker_id: format_log_directory(self.layout, broker_id, java, kafka), new))

    def wait_until_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until every broker is registered and every agent says it is ready.

        Raises ProcessStartError when a process has ended meanwhile, WaitTimeoutError.
        """
        self._tell("waiting for the brokers to register")
        self.wait_for_brokers(self.broker_ids, timeout_s)
        if self.has_agents:
            self._tell("waiting for the agents")
            for broker_id in self.broker_ids:
                self.wait_for_agent(broker_id, timeout_s)

    def wait_for_brokers(self, broker_ids: Iterable[int], timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until these brokers are registered. Raises ProcessStartError, WaitTimeoutError."""
        wanted = frozenset(broker_ids)

        def registered() -> bool:
            for broker_id in wanted:
                self._require_alive(self._brokers[broker_id], self._kafka_log(broker_id))
            return wanted <= self.admin.registered_brokers(2.0)

        wait_until(registered, f"brokers {sorted(wanted)} are registered", timeout_s)

    def wait_for_agent(self, broker_id: int, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until the agent's /readyz answers 200. Raises ProcessStartError, WaitTimeoutError."""
        agent = self._agents[broker_id]

        def ready() -> bool:
            self._require_alive(agent, agent.spec.log_path)
            return self.agent_is_ready(broker_id)

        try:
            wait_until(ready, f"agent {broker_id} is ready", timeout_s)
        except WaitTimeoutError as error:
            raise WaitTimeoutError(f"{error}; its log ends with\n{agent.log_tail()}") from None

    def agent_is_ready(self, broker_id: int) -> bool:
        """Whether the agent's /readyz answers 200 now."""
        url = f"http://{self.layout.agent_http_address(broker_id)}/readyz"
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """End everything in order: brokers first, then agents; what does not end in time is killed."""
        for processes in (self._brokers, self._agents):
            for process in processes.values():
                process.request_exit()
            with ThreadPoolExecutor(len(processes)) as pool:
                list(pool.map(lambda process: process.finish_exit(grace_s), processes.values()))

    def kill_all(self) -> None:
        """End everything at once, as a power failure would."""
        for process in [*self._brokers.values(), *self._agents.values()]:
            process.kill()

    def destroy(self) -> None:
        """End everything and remove the directory."""
        self.kill_all()
        shutil.rmtree(self.layout.directory, ignore_errors=True)

    def start_broker(self, broker_id: int, *, wait: bool = True, timeout_s: float = START_TIMEOUT_S) -> None:
        """Raises ProcessStartError, WaitTimeoutError."""
        self._launch(self._prepared_broker(broker_id))
        if wait:
            self.wait_for_brokers([broker_id], timeout_s)

    def stop_broker(self, broker_id: int, grace_s: float = 60.0) -> bool:
        """A controlled shutdown: leaders move away first. False when it had to be killed."""
        return self._brokers[broker_id].terminate(grace_s)

    def kill_broker(self, broker_id: int) -> None:
        """SIGKILL."""
        self._brokers[broker_id].kill()

    def pause_broker(self, broker_id: int) -> None:
        """SIGSTOP."""
        self._brokers[broker_id].pause()

    def resume_broker(self, broker_id: int) -> None:
        """SIGCONT."""
        self._brokers[broker_id].resume()

    def start_agent(self, broker_id: int, *, wait: bool = True, timeout_s: float = START_TIMEOUT_S) -> None:
        """Raises ProcessStartError, WaitTimeoutError."""
        self._launch(self._agents[broker_id])
        if wait:
            self.wait_for_agent(broker_id, timeout_s)

    def stop_agent(self, broker_id: int, grace_s: float = STOP_GRACE_S) -> bool:
        """SIGTERM. False when it had to be killed."""
        return self._agents[broker_id].terminate(grace_s)

    def kill_agent(self, broker_id: int) -> None:
        """SIGKILL."""
        self._agents[broker_id].kill()

    def pause_agent(self, broker_id: int) -> None:
        """SIGSTOP."""
        self._agents[broker_id].pause()

    def resume_agent(self, broker_id: int) -> None:
        """SIGCONT."""
        self._agents[broker_id].resume()

    def broker(self, broker_id: int) -> ManagedProcess:
        return self._brokers[broker_id]

    def agent(self, broker_id: int) -> ManagedProcess:
        return self._agents[broker_id]

    def log_directories(self, broker_id: int) -> tuple[Path, ...]:
        """The broker's log.dirs, as its server.properties has them."""
        value = self._properties(broker_id)["log.dirs"]
        return tuple(Path(part.strip()) for part in value.split(",") if part.strip())

    def partition_directory(self, broker_id: int, topic: str, partition: int) -> Path | None:
        """Where the broker keeps its replica; None when it has none."""
        for directory in self.log_directories(broker_id):
            if (found := directory / f"{topic}-{partition}").is_dir():
                return found
        return None

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int = 3,
        config: Mapping[str, str] | None = None,
        *,
        assignment: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """See `ClusterAdmin.create_topic`."""
        self.admin.create_topic(name, partitions, replication_factor, config, assignment=assignment)

    def in_sync_replicas(self, topic: str) -> dict[int, tuple[int, ...]]:
        """Broker ids in sync, by partition."""
        return self.admin.in_sync_replicas(topic)

    def leader_of(self, topic: str, partition: int = 0) -> int | None:
        """The leader's broker id; None when the partition has none now."""
        return self.admin.leader_of(topic, partition)

    def status(self) -> ClusterStatus:
        """What runs, where, and how many replicas are behind."""
        registered: frozenset[int] = frozenset()
        if any(process.is_alive() for process in self._brokers.values()):
            registered = self.admin.registered_brokers(5.0)
        layout = self.layout
        brokers = tuple(
            BrokerStatus(
                broker_id,
                self._brokers[broker_id].pid,
                broker_id in registered,
                layout.client_address(broker_id),
                f"127.0.0.1:{layout.replica_port(broker_id)}",
            )
            for broker_id in self.broker_ids
        )
        agents = tuple(
            AgentStatus(
                broker_id,
                self._agents[broker_id].pid,
                self.agent_is_ready(broker_id),
                layout.peer_address(broker_id),
                layout.agent_http_address(broker_id),
            )
            for broker_id in (self.broker_ids if self.has_agents else ())
        )
        summary = self.admin.replica_summary() if registered else None
        return ClusterStatus(
            str(layout.directory), layout.cluster_id, layout.bootstrap_servers, brokers, agents, summary
        )

    def _write_configuration(self) -> None:
        write_configuration(self.layout, self.settings)
        # The store's credentials may have changed with the settings.
        for broker_id, agent in list(self._agents.items()):
            if not agent.is_alive():
                self._agents[broker_id] = agent_process(self.layout, broker_id, self.settings)

    def _resolved(self) -> tuple[Java, KafkaDistribution]:
        if self._runtime is None:
            java = find_java()
            kafka = resolve_kafka(java, tiered_storage=self.settings.tiered_storage, progress=self._tell)
            self._runtime = (java, with_class_archive(java, kafka, self._tell))
        return self._runtime

    def _prepared_broker(self, broker_id: int) -> ManagedProcess:
        if not self._brokers[broker_id].is_alive():
            java, kafka = self._resolved()
            self._brokers[broker_id] = broker_process(self.layout, broker_id, self.settings, java, kafka)
        return self._brokers[broker_id]

    @staticmethod
    def _launch(process: ManagedProcess, undo: contextlib.ExitStack | None = None) -> None:
        if process.is_alive():
            return
        process.start()
        if undo is not None:
            undo.callback(process.kill)

    def _kafka_log(self, broker_id: int) -> Path:
        return self.layout.broker_directory(broker_id) / "kafka.log"

    def _properties(self, broker_id: int) -> dict[str, str]:
        with self.layout.server_properties(broker_id).open() as file:
            return dict(javaproperties.load(file))

    @staticmethod
    def _require_alive(process: ManagedProcess, log_path: Path) -> None:
        if process.is_alive():
            return
        log = log_path.read_text(errors="replace").splitlines()[-15:] if log_path.is_file() else []
        telling = "\n".join(log) or process.log_tail()
        raise ProcessStartError(f"{process.spec.name} has ended; its log ends with\n{telling}")


_AGENT_SWITCH = "remote.log.wal.storage.system.enable"
