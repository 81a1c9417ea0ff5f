"""Short soaks: Kafka's own verifiable clients, while agents and brokers are killed and paused."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from local_cluster.broker_config import AgentsMode, ClusterSettings
from local_cluster.cluster import LocalCluster
from local_cluster.object_store.store_spec import S3Store
from plugin.segment_metadata import CombinedSegmentId
from plugin.store_loop import ask_each
from tests.cluster import secured as of_secured
from tests.cluster.conftest import cluster_of
from tests.faulty_store import DEFAULT_BUCKET, start_faulty_store
from tests.soak.fault_plan import PROCESS_FAULTS, FaultKind
from tests.soak.load import TOPICS
from tests.soak.run import ByGateway, Soak, SoakOptions, soak_settings
from tests.soak.stored_offsets import find_stored_offsets, open_storage

pytestmark = [pytest.mark.whole_machine, pytest.mark.timeout(600)]

SEED = 11
FAULTS_S = 30.0


secured = cluster_of(lambda _: of_secured.secured(ClusterSettings(AgentsMode())))


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


KINDS = (FaultKind.AGENT_KILLED, FaultKind.BROKER_KILLED, FaultKind.AGENT_STOPPED)
OPTIONS = SoakOptions(25.0, 11, KINDS, longest_fault_s=6.0, reads_objects_back=False, gateway=ByGateway.OBJECTS)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[S3Store]:
    server, url = start_faulty_store(tmp_path / "store", "--bucket", DEFAULT_BUCKET)
    yield S3Store(url, DEFAULT_BUCKET)
    server.kill()


def test_what_goes_by_gateways_survives_random_kills_and_none_of_their_objects_is_left_or_missed(
    store: S3Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in store.environment().items():
        monkeypatch.setenv(key, value)  # the judge reads the store in this process
    with LocalCluster.create(tmp_path / "cluster", settings=soak_settings(OPTIONS, store)) as cluster:
        cluster.start()
        report = Soak(OPTIONS, cluster, store, print).run(tmp_path / "clients")
    assert report.findings == []
    assert report.faults.keys() == {kind.value for kind in KINDS}
    assert report.records is not None
    assert all(producer.acknowledged for producer in report.records.ledger.producers)
    assert report.figures["router_objects_named"]
    assert report.figures["copier_runs"]
