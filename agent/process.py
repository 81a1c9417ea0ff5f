"""The agent process: relaying begins first and ends last, and survives all that stands beside it."""

import asyncio
import gc
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import structlog
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

from agent.defects import Parts
from agent.descriptors import DescriptorWatch, raise_limit
from agent.first_start import formatted_directory, wait_for_format
from agent.http_endpoint import HttpEndpoint
from agent.http_listener import check_http_listener
from agent.identity import AgentIdentity, AgentLock
from agent.kafka_client import client_config
from agent.relaying import Relaying, make_relaying
from agent.service_manager import ListeningSockets, ServiceManager
from agent.settings import AgentSettings
from agent.watchdog import Watchdog
from kafka_log.meta_properties import MetaProperties
from kafka_log.server_properties import BrokerProperties
from plugin.prices import DEFAULT_PRICES_FILE, Prices
from plugin.wall_clock import wall_ms
from replication.follower.tier_reader import ArchiveReads
from rlm.write_path.combine_task import Clocks

if TYPE_CHECKING:
    from agent.storage_system import StorageSystem, Surroundings

log = structlog.get_logger(__name__)

_GC_THRESHOLDS = (20_000, 20, 50)
"""The hot path makes many objects and few cycles, so it need not be looked through as often as by default."""
_SWITCH_INTERVAL_S = 0.0005
"""How long a thread may hold the interpreter while another waits: the event loop must not wait the default 5 ms."""
_HTTP_ENDPOINT, _DESCRIPTORS, _STORAGE_SYSTEM, _WATCHDOG = "http endpoint", "descriptors", "storage system", "watchdog"
_NOT_FORMATTED = "log directories are not formatted yet"
_CLOSING_S = 5.0
"""For what a stop does beside uploading and publishing."""


@dataclass(frozen=True, slots=True)
class Supervision:
    """What the process has from who started it."""

    manager: ServiceManager
    handed: ListeningSockets

    @classmethod
    def of_this_process(cls) -> Self:
        return cls(ServiceManager(os.environ, os.getpid()), ListeningSockets.handed_over(os.environ, os.getpid()))


class Agent:
    """One broker's agent. Create it in the event loop."""

    def __init__(
        self,
        broker: BrokerProperties,
        settings: AgentSettings,
        lock: AgentLock,
        supervision: Supervision | None = None,
    ) -> None:
        """Raises AgentSettingsError, PriceError or OSError when files do not tell enough."""
        self._settings = settings
        self._broker = broker
        self._lock = lock
        self._supervision = supervision or Supervision(ServiceManager({}, 0), ListeningSockets([]))
        self._registry = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self._registry)
        self._parts = Parts(self._registry)
        self._descriptors = DescriptorWatch(self._registry)
        self._client = client_config(broker, settings)
        self._prices = Prices.load(settings.link.prices_file or DEFAULT_PRICES_FILE)
        self._http = HttpEndpoint(self._registry, self.describe, self.not_ready, self.objects, self.degraded)
        self._http_listener = self._supervision.handed.take("http", settings.http.listener)
        check_http_listener(self._http_listener, settings, "the socket that was handed over")
        self._begun: tuple[AgentIdentity, Relaying] | None = None
        self._system: StorageSystem | None = None
        self._is_stopping = False

    async def run(self, stop: asyncio.Event) -> None:
        """Relay until `stop` is set; then finish what is under way, within the shutdown time, and relay until the end.

        Raises OSError when relaying cannot begin, MalformedFileError when a log directory's identity cannot be read.
        """
        watchdog = Watchdog(self._settings.process.watchdog_timeout_s, self._supervision.manager, sys.stderr)
        self._parts.start(_WATCHDOG, watchdog.run)
        self._parts.start(_DESCRIPTORS, self._descriptors.run)
        formatted = formatted_directory(self._broker.log_dirs)
        if formatted is not None:
            await self._relay(formatted, stop, waited=False)
        elif (formatted := await self._wait_for_format(stop)) is not None:
            await self._relay(formatted, stop, waited=True)
        for part in (_DESCRIPTORS, _HTTP_ENDPOINT):
            await self._parts.stop(part)
        if self._begun is not None:
            await self._begun[1].stop()
        await self._parts.stop(_WATCHDOG)
        log.info("agent_stopped", broker=self._broker.node_id)

    async def _wait_for_format(self, stop: asyncio.Event) -> MetaProperties | None:
        """None when the agent is stopped meanwhile. Who starts the broker after the agent must not wait for it."""
        self._serve_http()
        self._supervision.manager.tell("READY=1", f"STATUS={_NOT_FORMATTED}")
        waiting = asyncio.create_task(wait_for_format(self._broker.log_dirs))
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait((waiting, stopped), return_when=asyncio.FIRST_COMPLETED)
        for task in (waiting, stopped):
            task.cancel()
        await asyncio.gather(waiting, stopped, return_exceptions=True)
        return None if waiting.cancelled() else waiting.result()

    async def _relay(self, formatted: MetaProperties, stop: asyncio.Event, waited: bool) -> None:
        broker, manager = self._broker, self._supervision.manager
        incarnation = self._lock.next_incarnation(wall_ms)
        identity = AgentIdentity(formatted.cluster_id, broker.node_id, incarnation, broker.rack, wall_ms())
        relaying = make_relaying(
            broker, self._settings, identity, self._client, self._prices, self._registry, self._archive_storage
        )
        await relaying.start(self._supervision.handed)
        self._begun = identity, relaying
        self._supervision.handed.close_rest()
        manager.tell("READY=1", "STATUS=relaying")
        log.info("agent_started", broker=identity.broker_id, incarnation=identity.incarnation)
        if not waited:
            self._serve_http()
        if self._settings.storage.system_enable:
            self._parts.start(_STORAGE_SYSTEM, partial(self._begin_storage_system, identity, relaying))
        await stop.wait()
        self._is_stopping = True
        manager.tell("STOPPING=1", "STATUS=uploading and publishing what is left; relaying")
        log.info("agent_stopping", broker=identity.broker_id)
        await self._drain()

    def _serve_http(self) -> None:
        self._parts.start(_HTTP_ENDPOINT, lambda: self._http.run(self._http_listener))

    async def _drain(self) -> None:
        """Upload and publish what is left. Neither a defect nor a part that hangs keeps the process from its end."""
        timeout_s = 2 * self._settings.process.shutdown_timeout_s + _CLOSING_S
        try:
            async with asyncio.timeout(timeout_s):
                await self._parts.stop(_STORAGE_SYSTEM)
                if self._system is not None:
                    await self._system.stop()
        except Exception as error:
            log.error("stopped_halfway", error=str(error) or type(error).__name__, exc_info=error)

    async def _begin_storage_system(self, identity: AgentIdentity, relaying: Relaying) -> None:
        """What it takes to import is imported while replication is relayed already."""
        system_type, surroundings_type = await asyncio.to_thread(_import_storage_system)
        surroundings = surroundings_type(
            self._broker,
            self._settings,
            identity,
            self._client,
            self._prices,
            self._registry,
            relaying,
            self._parts,
            Clocks(time.monotonic, wall_ms),
            lambda above: self._lock.next_incarnation(wall_ms, above),
        )
        self._system = system_type(surroundings)
        self._system.start()

    def _archive_storage(self) -> ArchiveReads | None:
        rooms = self._system.rooms if self._system is not None else None
        return rooms.archive_storage if rooms is not None else None

    # What it tells of itself; called on other threads, so it only reads snapshots.

    def describe(self) -> dict[str, Any]:
        """The state as JSON; little of it before relaying begins."""
        if self._begun is None:
            return {"broker_id": self._broker.node_id, "partitions": []}
        identity, relaying = self._begun
        rooms = self._system.rooms if self._system is not None else None
        traffic = dict(relaying.metrics.traffic)
        partitions = []
        for partition, status in rooms.write_path.status().items() if rooms is not None else ():
            moved = traffic.get(partition)
            partitions.append(
                asdict(status)
                | {
                    "linked_bytes": moved.linked_bytes if moved else 0,
                    "inline_bytes": moved.inline_bytes if moved else 0,
                }
            )
        return {
            "broker_id": identity.broker_id,
            "incarnation": (self._system or identity).incarnation,
            "cluster_id": identity.cluster_id,
            "storage_ready": relaying.storage.is_there,
            "hydration_paused": relaying.hydration.segments.breaker.is_open,
            "archive_reads_paused": relaying.hydration.archive.breaker.is_open,
            "bypassed_agents": relaying.follower.bypassed,
            "requests": asdict(relaying.storage.request_counts),
            "metadata_pending": self._system.publisher.pending if self._system is not None else 0,
            "metadata_stalled": self._system.publication.stalled_because if self._system is not None else None,
            "enabled_topics": rooms.kafka.enabled_topics if rooms is not None else [],
            "partitions": partitions,
            "gaps": rooms.led_gaps.describe() if rooms is not None else [],
        }

    def objects(self) -> dict[str, Any]:
        """What `remote-wal describe --objects` shows."""
        rooms = self._system.rooms if self._system is not None else None
        return rooms.objects() if rooms is not None else {"objects": [], "totals": []}

    def not_ready(self) -> list[str]:
        """What is missing for the agent to do all of its work."""
        reasons = [f"{part} failed and begins anew: {defect}" for part, defect in sorted(self._parts.down.items())]
        if self._is_stopping:
            reasons.append("stopping")
        if self._begun is None:
            reasons.append(_NOT_FORMATTED)
        elif self._settings.storage.system_enable:
            reasons += self._system.missing if self._system is not None else ["starting"]
        return reasons

    def degraded(self) -> list[str]:
        """What is not well, here or with others, or waits for a person, while the agent is ready itself."""
        rooms = self._system.rooms if self._system is not None else None
        bypassed = self._begun[1].follower.bypassed if self._begun is not None else []
        told = [*(rooms.degraded if rooms is not None else ()), self._descriptors.shortage]
        return [
            *(f"the agent of broker {one} is dead, and bypassed inline" for one in bypassed),
            *(reason for reason in told if reason),
        ]


def _import_storage_system() -> "tuple[type[StorageSystem], type[Surroundings]]":
    from agent.storage_system import StorageSystem, Surroundings

    return StorageSystem, Surroundings


def run_agent(broker: BrokerProperties, settings: AgentSettings) -> None:
    """Run until SIGTERM or SIGINT; blocks."""
    import uvloop

    raise_limit()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    gc.set_threshold(*_GC_THRESHOLDS)
    supervision = Supervision.of_this_process()
    lock = AgentLock(Path(settings.process.state_directory))
    try:
        uvloop.run(_run(broker, settings, lock, supervision))
    finally:
        lock.release()


async def _run(broker: BrokerProperties, settings: AgentSettings, lock: AgentLock, supervision: Supervision) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await Agent(broker, settings, lock, supervision).run(stop)
    # Who comes next begins when this process is gone: threads that wait for a store or for Kafka must not keep it.
    sys.stderr.flush()
    os._exit(0)
