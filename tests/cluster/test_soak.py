"""A short soak: Kafka's own verifiable clients, while agents and brokers are killed and paused.

Brokers log in to each other under TLS, and an authorizer tells them from clients: what others test without is so here.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from local_cluster.broker_config import AgentsMode, ClusterSettings
from local_cluster.cluster import LocalCluster
from local_cluster.security.listeners import InterBrokerProtocol
from plugin.segment_metadata import CombinedSegmentId
from plugin.store_loop import ask_each
from tests.cluster.conftest import cluster_of
from tests.soak.fault_plan import PROCESS_FAULTS
from tests.soak.load import TOPICS
from tests.soak.run import Soak, SoakOptions
from tests.soak.stored_offsets import find_stored_offsets, open_storage

pytestmark = pytest.mark.whole_machine

SEED = 11
FAULTS_S = 30.0


secured = cluster_of(lambda _: ClusterSettings(AgentsMode()).with_protocol(InterBrokerProtocol.SASL_SSL))


def test_what_kafkas_verifiable_clients_wrote_survives_random_kills_and_pauses(
    secured: LocalCluster, tmp_path: Path
) -> None:
    # each of the four once at least, some together -> nothing lost, doubled or reordered, replicas are equal, the store
    # holds all that is wanted
    options = SoakOptions(FAULTS_S, SEED, PROCESS_FAULTS, longest_fault_s=6.0, reads_objects_back=False, copies=False)
    report = Soak(options, secured, None, print).run(tmp_path)
    assert report.findings == []
    assert report.faults.keys() == {kind.value for kind in PROCESS_FAULTS}
    assert report.records is not None
    assert all(producer.acknowledged for producer in report.records.ledger.producers)
    assert report.figures["linked_bytes_since_last_start"]

    # The judge is not blind: without one object, its offsets are missing.
    with without_the_newest_object(secured) as lost:
        found = find_stored_offsets(secured, TOPICS)
    assert found.missing
    assert found.lost_objects == (str(lost),)


@contextmanager
def without_the_newest_object(cluster: LocalCluster) -> Iterator[CombinedSegmentId]:
    storage = open_storage(cluster)
    try:
        newest = max(ask_each(storage.list_log_segments()), key=lambda stored: stored.last_modified_ms)
    finally:
        storage.close()
    path = cluster.layout.object_store_directory / newest.key
    hidden = path.with_name(f".{path.name}")  # no listing tells of it
    path.rename(hidden)
    try:
        yield newest.combined_segment_id
    finally:
        hidden.rename(path)
