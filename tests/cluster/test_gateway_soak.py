"""A short soak by the gateways, with all that they can, while agents and brokers are killed.

What is produced and read goes by object storage, logs keep what gateways stored, and a topic's producers are answered
once their records are stored.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from local_cluster.cluster import LocalCluster
from local_cluster.object_store.store_spec import S3Store
from tests.faulty_store import DEFAULT_BUCKET, start_faulty_store
from tests.soak.fault_plan import FaultKind
from tests.soak.run import ByGateway, Soak, SoakOptions, soak_settings

pytestmark = [pytest.mark.thorough, pytest.mark.whole_machine, pytest.mark.timeout(600)]

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
