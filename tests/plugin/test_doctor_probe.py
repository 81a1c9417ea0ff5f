"""What doctor's probe does is taken by every backend."""

from doctor.facts import ClockReading, Store
from doctor.store_probe import probe
from plugin.remote_wal_storage_manager import StorageContext
from plugin.store_loop import ask
from plugin.wall_clock import wall_ms
from tests.plugin.storage_backends import Backend


def test_the_probe_passes_sees_the_other_cluster_and_leaves_nothing(backend: Backend) -> None:
    there = "shared/another-cluster/1/0000000000aa/000000000000.rwal"
    ask(backend.store().put_if_absent(there, [b"x"]))
    manager = backend.unwritten(prefix="shared")
    store = probe(manager, StorageContext(backend.cluster_id, 1), "1f", wall_ms)
    assert isinstance(store, Store)
    assert (store.failures, store.refuses_overwriting) == ({}, True)
    assert store.other_clusters == frozenset({"another-cluster"})
    assert isinstance(store.clock, ClockReading)
    assert abs(store.clock.skew_ms) < 5000
    assert [
        listed.key for listed in ask(backend.store().list_page(f"shared/{backend.cluster_id}/", None)).objects
    ] == []
    ask(backend.store().delete(there))
