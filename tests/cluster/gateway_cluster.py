"""A running cluster with a zone gateway beside each broker, as tests of gateways share one in a module."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Self

import pytest
from confluent_kafka import Consumer, TopicPartition

from local_cluster.broker_config import ClusterSettings
from local_cluster.cluster import LocalCluster
from local_cluster.zones import ZoneGateways
from tests.cluster.conftest import STORAGE_PLUGINS, BreakableStore
from tests.cluster.quick_agent import QuickAgents

THREE_ZONES: Final = {1: "az1", 2: "az2", 3: "az3"}
BY_OBJECTS: Final = {
    "remote.wal.gateway.produce.enable": "true",
    "remote.wal.gateway.produce.policy": "always",
}
"""Agents' keys: what clients produce goes by object storage, whatever it costs."""
_START_S: Final = 300.0
_STORE: Final = BreakableStore()


def with_gateways(gateways: ZoneGateways, *keys: Mapping[str, str], **options: Any) -> Any:
    """A module's fixture: `gateway_cluster` with these keys of agents and brokers, and options."""

    @pytest.fixture(scope="module")
    def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
        with gateway_cluster(tmp_path_factory, gateways, *keys, **options) as made:
            yield made

    return cluster


@contextmanager
def gateway_cluster(
    directories: pytest.TempPathFactory,
    gateways: ZoneGateways,
    agent_keys: Mapping[str, str] | None = None,
    broker_keys: Mapping[str, str] | None = None,
    *,
    controllers_apart: bool = False,
    tls: bool = False,
    bypass: bool = False,
    heap_mb: int = 384,
) -> Iterator[LocalCluster]:
    """One broker for each that `gateways` names, with the store that has switches. Gone at the end.

    `controllers_apart` is whether their logs stand as on machines of their own, `tls` whether agents speak it to each
    other, `bypass` whether agents get past one that is dead.
    """
    directory = directories.mktemp("gateways")
    apart = {one: {"metadata.log.dir": str(directory / f"controller-{one}")} for one in gateways.zones}
    plugins = {"remote.log.wal.storage.manager.class.path": str(STORAGE_PLUGINS)}
    settings = ClusterSettings(
        QuickAgents(_STORE, {**plugins, **(agent_keys or {})}, gateways=gateways, tls=tls, bypass=bypass),
        {"group.initial.rebalance.delay.ms": "0", **(broker_keys or {})},
        apart if controllers_apart else {},
        heap_mb=heap_mb,
    )
    with LocalCluster.create(directory / "cluster", brokers=len(gateways.zones), settings=settings) as made:
        made.start(_START_S)
        yield made


def consumer_of(bootstrap: str, topic: str) -> Consumer:
    """A consumer of partition 0 from its beginning, without aborted records."""
    settings = {"group.id": "-", "enable.auto.commit": False, "isolation.level": "read_committed"}
    consumer = Consumer({"bootstrap.servers": bootstrap, **settings})
    consumer.assign([TopicPartition(topic, 0, 0)])
    return consumer


class Reader:
    """A consumer in a thread that reads to the partition's end and on while records are produced."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.values: list[bytes] = []
        self._where = bootstrap, topic
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def _read(self) -> None:
        consumer = consumer_of(*self._where)
        while not self._ends.is_set():
            messages = consumer.consume(1000, 0.1)
            self.values += [message.value() or b"" for message in messages if message.error() is None]
        consumer.close()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
