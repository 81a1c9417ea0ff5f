"""A real Kafka cluster on this machine, with or without agents.

Its directory holds everything: layout, configuration, data, logs, and the pid files by which a later program finds the
processes. Only `stop`, `kill_all`, or leaving the `with` block ends them.

Agents are started before brokers, because a broker's replica fetchers dial its agent; an agent waits for its broker.
They are ended in the reverse order.
"""

import dataclasses
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

import javaproperties

from agent.http.http_asking import ask_agent_page
from jvm.ivy import Progress
from local_cluster.broker_config import AgentsMode, ClusterSettings, write_configuration
from local_cluster.cluster_admin import ClusterAdmin
from local_cluster.kafka_distribution import KafkaDistribution
from local_cluster.kafka_tools import KafkaTools
from local_cluster.layout import ClusterLayout, LayoutError, load_layout, save_layout
from local_cluster.node_processes import (
    KafkaRuntime,
    agent_process,
    broker_process,
    format_log_directory,
    known_broker_process,
)
from local_cluster.polling import WaitTimeoutError, wait_until
from local_cluster.processes import STOP_GRACE_S, ManagedProcess, ProcessStartError

START_TIMEOUT_S = 120.0


class LocalCluster:
    """The cluster of one directory: starts, stops and observes its processes. Not thread-safe, except `admin`."""

    def __init__(
        self, layout: ClusterLayout, settings: ClusterSettings | None = None, progress: Progress | None = None
    ) -> None:
        self.layout = layout
        self.settings = settings or ClusterSettings()
        self.admin = ClusterAdmin(layout.bootstrap_servers)
        self._tell: Progress = progress or (lambda _line: None)
        self.runtime = KafkaRuntime(self.settings.tiered_storage, self._tell)
        self._versions: dict[int, str] = {}
        self.changed_by_hand: dict[int, list[str]] = {}
        """The keys that somebody changed in a broker's server.properties, which `configure` left as they are."""
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
        """Make a new cluster in an empty or absent directory; nothing is started. Raises LayoutError."""
        if directory.exists() and any(directory.iterdir()):
            raise LayoutError(f"{directory} is not empty: a new cluster needs a directory of its own")
        network = settings.hosts.network if settings is not None and settings.hosts is not None else ""
        layout = ClusterLayout.plan(directory, brokers, network=network)
        save_layout(layout)
        cluster = cls(layout, settings, progress)
        cluster.configure(cluster.settings.agents)
        return cluster

    @classmethod
    def open(
        cls, directory: Path, *, settings: ClusterSettings | None = None, progress: Progress | None = None
    ) -> Self:
        """Return the cluster of `directory`, running or not. Raises LayoutError.

        `settings` count from the next `configure` or `start` on; without them the files stay as they are.
        """
        cluster = cls(load_layout(directory), settings, progress)
        if settings is not None:
            cluster.configure(settings.agents)
        return cluster

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill_all()

    @property
    def bootstrap_servers(self) -> str:
        return self.layout.bootstrap_servers

    @property
    def broker_ids(self) -> tuple[int, ...]:
        return self.layout.broker_ids

    @property
    def tools(self) -> KafkaTools:
        """Kafka's own command-line tools, run against this cluster."""
        return self.runtime.tools(self.bootstrap_servers)

    def configure(self, agents: AgentsMode | None) -> None:
        """Switch agents on, or off with None. Data stay; the change takes effect at the next start."""
        self.settings = dataclasses.replace(self.settings, agents=agents)
        self.changed_by_hand = write_configuration(self.layout, self.settings)
        # The store's credentials may have changed with the settings.
        for broker_id, agent in list(self._agents.items()):
            if not agent.is_alive():
                self._agents[broker_id] = agent_process(self.layout, broker_id, self.settings)

    def use_kafka(self, version: str, *broker_ids: int) -> None:
        """Use this version of Kafka for these brokers, from their next start on; their logs stay as they are.

        A cluster that is opened again runs the usual version. Raises KafkaDistributionError.
        """
        self.runtime.of(version)
        self._versions |= dict.fromkeys(broker_ids, version)

    def _kafka_of(self, broker_id: int) -> KafkaDistribution:
        return self.runtime.of(self._versions.get(broker_id, self.runtime.version))

    def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Start all processes that do not run, and wait until they are ready; on failure, end those that were started.

        Raises ProcessStartError with the end of the failed process's log, WaitTimeoutError.
        """
        self.format()
        idle = [
            (nodes, broker_id)
            for nodes in (self._brokers, self._agents)
            for broker_id, process in nodes.items()
            if not process.is_alive()
        ]
        try:
            if self.layout.has_agents:
                self._tell("starting agents")
                for broker_id in self.broker_ids:
                    self.start_agent(broker_id, wait=False)
            self._tell("starting brokers")
            for broker_id in self.broker_ids:
                self.start_broker(broker_id, wait=False)
            self._let_clients_in(timeout_s)
            self.wait_until_ready(timeout_s)
        except BaseException:
            for nodes, broker_id in idle:
                nodes[broker_id].kill()
            raise

    def format(self) -> None:
        """Format the log directories that are new, in parallel. Raises ProcessStartError."""
        java = self.runtime.java
        new = {
            broker_id: self._kafka_of(broker_id)
            for broker_id in self.broker_ids
            if any(not (path / "meta.properties").exists() for path in self.layout.log_directories(broker_id))
        }

        def format_one(broker_id: int) -> None:
            format_log_directory(self.layout, broker_id, self.settings, java, new[broker_id])

        if new:
            self._tell("formatting log directories")
            with ThreadPoolExecutor(len(new)) as pool:
                list(pool.map(format_one, new))

    def _let_clients_in(self, timeout_s: float) -> None:
        """Authorise the agents, which are clients too: with an authorizer nothing is ready before that."""
        spoken = self.settings.inter_broker
        if spoken is None or not spoken.clients_may:
            return
        self.wait_for_brokers(self.broker_ids, timeout_s)
        self._tell("allowing clients what they need")
        one = self.broker_ids[0]
        login = self.layout.broker_directory(one) / "admin.properties"
        login.write_text(javaproperties.dumps(spoken.client_properties(self.layout, one), timestamp=False))
        controllers = ",".join(map(self.layout.controller_address, self.broker_ids))
        options = ["--bootstrap-controller", controllers, "--command-config", str(login)]
        options += ["--add", "--allow-principal", "User:ANONYMOUS"]
        tools, tool = self.tools, "org.apache.kafka.tools.AclCommand"
        with ThreadPoolExecutor(len(spoken.clients_may)) as pool:  # each call starts a JVM
            list(pool.map(lambda allowed: tools.run(tool, [*options, *allowed]), spoken.clients_may))

    def wait_until_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until every broker is registered and every agent is ready.

        Raises ProcessStartError if a process has ended meanwhile, WaitTimeoutError.
        """
        self.wait_for_brokers(self.broker_ids, timeout_s)
        if self.layout.has_agents:
            for broker_id in self.broker_ids:
                self.wait_for_agent(broker_id, timeout_s)

    def wait_for_brokers(self, broker_ids: Iterable[int], timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until these brokers are registered. Raises ProcessStartError, WaitTimeoutError."""
        wanted = frozenset(broker_ids)

        def registered() -> bool:
            for broker_id in wanted:
                _require_alive(self._brokers[broker_id], self.layout.broker_log(broker_id))
            missing = wanted - self.admin.registered_brokers(2.0)
            self._tell(f"waiting for the brokers to register: {sorted(missing)} have not")
            return not missing

        wait_until(registered, f"brokers {sorted(wanted)} are registered", timeout_s)

    def wait_for_agent(self, broker_id: int, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until the agent's /readyz responds 200. Raises ProcessStartError, WaitTimeoutError."""
        agent = self._agents[broker_id]

        def ready() -> bool:
            _require_alive(agent, agent.spec.log_path)
            self._tell(f"waiting for the agents: that of broker {broker_id}")
            return agent_is_ready(self.layout, broker_id)

        try:
            wait_until(ready, f"agent {broker_id} is ready", timeout_s)
        except WaitTimeoutError as error:
            raise WaitTimeoutError(f"{error}; its log ends with\n{agent.log_tail()}") from None

    def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """End all processes in order: brokers first, then agents; those that do not end in time are killed."""
        for processes in (self._brokers, self._agents):
            for process in processes.values():
                process.request_exit()
            with ThreadPoolExecutor(len(processes)) as pool:
                list(pool.map(lambda process: process.finish_exit(grace_s), processes.values()))

    def kill_all(self) -> None:
        """Kill all processes of the cluster at once, as a power failure would."""
        for process in [*self._brokers.values(), *self._agents.values()]:
            process.kill()

    def start_broker(self, broker_id: int, *, wait: bool = True) -> None:
        """Start a broker. Raises ProcessStartError, WaitTimeoutError."""
        if not self._brokers[broker_id].is_alive():
            java, kafka = self.runtime.java, self._kafka_of(broker_id)
            self._brokers[broker_id] = broker_process(self.layout, broker_id, self.settings, java, kafka)
            self._brokers[broker_id].start()
        if wait:
            self.wait_for_brokers([broker_id])

    def start_agent(self, broker_id: int, *, wait: bool = True, timeout_s: float = START_TIMEOUT_S) -> None:
        """Start an agent. Raises ProcessStartError, WaitTimeoutError."""
        if not self._agents[broker_id].is_alive():
            self._agents[broker_id].start()
        if wait:
            self.wait_for_agent(broker_id, timeout_s)

    def broker(self, broker_id: int) -> ManagedProcess:
        """Return the broker's process, to observe, pause or end it."""
        return self._brokers[broker_id]

    def agent(self, broker_id: int) -> ManagedProcess:
        """Return the agent's process, to observe, pause or end it."""
        return self._agents[broker_id]


def agent_is_ready(layout: ClusterLayout, broker_id: int) -> bool:
    """Return whether the agent's /readyz responds 200 now."""
    try:
        ask_agent_page(str(layout.agent_http_address(broker_id)), "/readyz", 2)
    except OSError:
        return False
    return True


def _require_alive(process: ManagedProcess, log_path: Path) -> None:
    if not process.is_alive():
        log = log_path.read_text(errors="replace").splitlines()[-15:] if log_path.is_file() else []
        telling = "\n".join(log) or process.log_tail()
        raise ProcessStartError(f"{process.spec.name} has ended; its log ends with\n{telling}")
