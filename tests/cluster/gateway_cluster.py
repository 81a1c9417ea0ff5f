"""A running cluster with a zone gateway beside each broker, as tests of gateways share one in a module."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import pytest

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
    store: BreakableStore = _STORE,
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
        QuickAgents(store, {**plugins, **(agent_keys or {})}, gateways=gateways, tls=tls, bypass=bypass),
        {"group.initial.rebalance.delay.ms": "0", **(broker_keys or {})},
        apart if controllers_apart else {},
        heap_mb=heap_mb,
    )
    with LocalCluster.create(directory / "cluster", brokers=len(gateways.zones), settings=settings) as made:
        made.start(_START_S)
        yield made
