"""The agent process: relaying begins first and ends last, and survives failures of everything else."""

import asyncio
import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.registry import Collector

from agent.agent_state import NOT_FORMATTED, AgentState
from agent.configuration import Configuration
from agent.defects import BackOff, Supervisor
from agent.descriptors import DescriptorWatch, end_core_dumps, raise_limit
from agent.http.http_access import http_access
from agent.http.http_endpoint import Health, HttpEndpoint, Page, json_page
from agent.http.status import status_of, summary
from agent.http.status_page import status_page
from agent.identity import AgentIdentity, AgentLock
from agent.metrics.paused import Paused
from agent.metrics.savings import SavingsCollector
from agent.release import DISTRIBUTION, agent_info, tell_release
from agent.service_manager import ListeningSockets, ServiceManager, Watchdog
from agent.settings.agent_settings import AgentSettings
from agent.settings.http_listener import check_http_listener
from agent.settings.setting_types import AgentSettingsError
from agent.settings.shown_configuration import shown_configuration
from agent.tls.certificates import CertificateWatch, certificate_stores
from agent.wiring.relaying import Relaying
from kafka_log.broker_files.meta_properties import MetaProperties, formatted_directory
from kafka_log.broker_files.server_properties import BrokerProperties
from kafka_log.errors import BrokerPropertiesError
from plugin.errors import StoreError
from plugin.store_loop import use_loop
from plugin.wall_clock import Clocks, wall_ms
from replication.follower.tiers import ArchiveReads

if TYPE_CHECKING:
    from agent.wiring.storage_system import StorageSystem

log = structlog.get_logger(__name__)

_GC_THRESHOLDS = (20_000, 20, 50)
"""The hot path makes many objects and few cycles, so collections may be rarer than by default."""
_SWITCH_INTERVAL_S = 0.0005
"""How long a thread may hold the interpreter while another waits; the default of 5 ms is too long for the event
loop.
"""
_STORAGE_SYSTEM, _WATCHDOG = "storage system", "watchdog"
_LOOK_AGAIN_S = 0.2
CLOSING_S = 5.0
"""Time for the rest of a stop, besides uploading and publishing."""


class Agent:
    """One broker's agent. Create it in the event loop."""

    def __init__(
        self,
        broker: BrokerProperties,
        settings: AgentSettings,
        lock: AgentLock,
        manager: ServiceManager | None = None,
        sockets: ListeningSockets | None = None,
        back_off: BackOff | None = None,
    ) -> None:
        """Raises AgentSettingsError, PriceError or OSError when files are wrong or incomplete."""
        self._configuration = Configuration.load(broker, settings)
        self._lock = lock
        self._manager = manager or ServiceManager({}, 0)
        self._sockets = sockets or ListeningSockets([])
        self.registry = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.registry)
        self.state = AgentState(
            broker.node_id,
            settings.storage.system_enable,
            Supervisor(self.registry, back_off),
            DescriptorWatch(self.registry),
            CertificateWatch(self.registry, certificate_stores(broker, settings), wall_ms),
        )
        state, release, clocks = self.state, version(DISTRIBUTION), Clocks(time.monotonic, wall_ms)
        self.http = HttpEndpoint(
            self.registry,
            {
                "/describe": json_page(state.describe),
                "/objects": json_page(state.objects),
                "/status": json_page(lambda: summary(status_of(state, clocks), release)),
                "/": Page("text/html; charset=utf-8", lambda: status_page(status_of(state, clocks), release)),
                "/config": json_page(lambda: shown_configuration(broker, settings)),
            },
            Health(state.not_ready, state.degraded),
            http_access(settings.http),
        )
        self._http_listener = self._sockets.take("http", settings.http.listener)
        check_http_listener(self._http_listener, settings.http)

    async def run(self, stop: asyncio.Event) -> None:
        """Relay until `stop` is set. Then finish work under way within the shutdown time, still relaying, and end.

        Raises OSError when relaying cannot begin, MalformedFileError when a log directory's identity cannot be read.
        """
        supervisor, timeout_s = self.state.supervisor, self._configuration.settings.process.watchdog_timeout_s
        supervisor.start(_WATCHDOG, Watchdog(timeout_s, self._manager, sys.stderr).run)
        supervisor.start("descriptors", self.state.descriptors.run)
        supervisor.start("certificates", self.state.certificates.run)
        supervisor.start("release", partial(tell_release, self.registry))
        formatted = formatted_directory(self._configuration.broker.log_dirs)
        if formatted is not None:
            await self._relay(formatted, stop, waited=False)
        elif (formatted := await self._wait_for_format(stop)) is not None:
            await self._relay(formatted, stop, waited=True)
        await supervisor.stop_all(but=_WATCHDOG)
        if self.state.relaying is not None:
            await self.state.relaying.stop()
        await supervisor.stop(_WATCHDOG)
        log.info("agent_stopped", broker=self._configuration.broker.node_id)

    async def _wait_for_format(self, stop: asyncio.Event) -> MetaProperties | None:
        """Wait; None when the agent is stopped meanwhile.

        The service counts as ready, so that the broker can be started.
        """
        self._serve_http()
        self._manager.tell("READY=1", f"STATUS={NOT_FORMATTED}")
        waiting = asyncio.create_task(wait_for_format(self._configuration.broker.log_dirs))
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait((waiting, stopped), return_when=asyncio.FIRST_COMPLETED)
        for task in (waiting, stopped):
            task.cancel()
        await asyncio.gather(waiting, stopped, return_exceptions=True)
        return None if waiting.cancelled() else waiting.result()

    async def _relay(self, formatted: MetaProperties, stop: asyncio.Event, waited: bool) -> None:
        broker, manager, state = self._configuration.broker, self._manager, self.state
        incarnation = self._lock.next_incarnation(wall_ms)
        identity = AgentIdentity(formatted.cluster_id, broker.node_id, incarnation, broker.rack, wall_ms())
        relaying = Relaying(self._configuration, identity, self.registry, self._archive_storage, time.monotonic)
        await relaying.start(self._sockets)
        for name, run in relaying.runs.items():
            state.supervisor.start(name, run)
        state.identity, state.relaying = identity, relaying
        self.registry.register(SavingsCollector(relaying.savings.dollars, is_shadow=relaying.shadow is not None))
        self.registry.register(Paused(relaying.hydration.tiers, relaying.pauses))
        agent_info(self.registry).labels(identity.cluster_id, identity.rack or "", str(identity.broker_id)).set(1)
        self._sockets.close_rest()
        manager.tell("READY=1", "STATUS=relaying" if relaying.shadow is None else "STATUS=in shadow")
        mode = self._configuration.settings.process.mode
        log.info("agent_started", broker=identity.broker_id, incarnation=identity.incarnation, mode=mode)
        if not waited:
            self._serve_http()
        if self._configuration.settings.storage.system_enable:
            state.supervisor.start(_STORAGE_SYSTEM, partial(self._begin_storage_system, identity, relaying))
        await stop.wait()
        state.is_stopping = True
        manager.tell("STOPPING=1", "STATUS=uploading and publishing what is left; relaying")
        log.info("agent_stopping", broker=identity.broker_id)
        await self._drain()

    def _serve_http(self) -> None:
        self.state.supervisor.start("http endpoint", lambda: self.http.run(self._http_listener))

    async def _begin_storage_system(self, identity: AgentIdentity, relaying: Relaying) -> None:
        """Begin it. Its slow imports run while replication is relayed already."""
        system_type = await asyncio.to_thread(_import_storage_system)
        clocks, state = Clocks(time.monotonic, wall_ms), self.state
        state.system = system_type(self._configuration, identity, relaying, state.supervisor, clocks, self._lock)
        state.system.start()

    async def _drain(self) -> None:
        """Upload and publish what is left. Neither a defect nor a hanging part prevents the end of the process."""
        timeout_s = 2 * self._configuration.settings.process.shutdown_timeout_s + CLOSING_S
        try:
            async with asyncio.timeout(timeout_s):
                await self.state.supervisor.stop(_STORAGE_SYSTEM)
                if self.state.system is not None:
                    await self.state.system.stop()
        except Exception as error:
            log.error("stopped_halfway", error=str(error) or type(error).__name__, exc_info=error)

    def _archive_storage(self) -> ArchiveReads | None:
        run = self.state.storage_run
        return run.archive_storage if run is not None else None


def _import_storage_system() -> "type[StorageSystem]":
    from agent.wiring.storage_system import StorageSystem

    return StorageSystem


async def wait_for_format(log_dirs: Sequence[Path]) -> MetaProperties:
    """Wait until a log directory is formatted, and return its identity. Logs once that it waits."""
    log.warning(
        "log_directories_not_formatted",
        directories=[str(directory) for directory in log_dirs],
        consequence="nothing is relayed; the agent waits",
        hint="format them with kafka-storage.sh",
    )
    while True:
        if (found := formatted_directory(log_dirs)) is not None:
            log.info("log_directories_formatted", cluster_id=found.cluster_id)
            return found
        await asyncio.sleep(_LOOK_AGAIN_S)


def run_agent(
    broker: BrokerProperties,
    settings: AgentSettings,
    read_again: Callable[[], BrokerProperties],
    drain_log: Callable[[], object],
    lost_lines: Collector,
) -> None:
    """Run the agent until SIGTERM or SIGINT; blocks. At SIGHUP the broker's file is read and checked again."""
    import uvloop

    raise_limit()
    end_core_dumps()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    gc.set_threshold(*_GC_THRESHOLDS)
    lock = AgentLock(Path(settings.process.state_directory))

    async def run() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        use_loop(loop)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        sockets = ListeningSockets.handed_over(os.environ, os.getpid())
        agent = Agent(broker, settings, lock, ServiceManager(os.environ, os.getpid()), sockets)
        agent.registry.register(lost_lines)

        def look_again() -> None:
            agent.state.certificates.look()
            tell_changes(broker, read_again)

        loop.add_signal_handler(signal.SIGHUP, loop.run_in_executor, None, look_again)
        await agent.run(stop)
        # The next agent starts when this process is gone: threads that wait for a store or Kafka must not delay that.
        drain_log()
        os._exit(0)

    try:
        uvloop.run(run())
    finally:
        lock.release()


def tell_changes(began_with: BrokerProperties, read_again: Callable[[], BrokerProperties]) -> None:
    """Log which keys of the file have changed, never their values. Never raises, because the agent runs on unchanged.

    Settings are read once, when the agent starts. Certificates and passwords of Kafka clients are read for each
    connection anyway, and topics' settings come from the cluster.
    """
    try:
        before, now = began_with.raw, read_again().raw
    except (AgentSettingsError, BrokerPropertiesError, StoreError, OSError) as error:
        log.error("configuration_wrong", error=str(error), consequence="the agent goes on, and would not start anew")
        return
    if changed := sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key)):
        log.warning("configuration_changed", keys=changed, consequence="they count once the agent is restarted")
    else:
        log.info("configuration_unchanged")
