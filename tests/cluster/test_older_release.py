"""An agent of an older release beside two of this one: what both understand is used, on the wire and in the store."""

import io
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from local_cluster.cluster import LocalCluster
from local_cluster.processes import ManagedProcess, ProcessSpec
from tests.cluster.agent_views import answer_of
from tests.cluster.script import PATIENCE_S, PLAIN, TRANSACTIONS, Script

OLDER = "fa721ee36b71704cc8f7d9a5b6743392eb17800b"
"""Before links had digests, neighbours gave ranges, and clients waited for what is stored."""
CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """Its files."""
    found = subprocess.run(
        ["git", "archive", "--format=tar", OLDER], cwd=CHECKOUT, capture_output=True, check=False, timeout=60
    )
    if found.returncode:
        pytest.skip(f"this clone has no commit {OLDER[:12]}")
    with tarfile.open(fileobj=io.BytesIO(found.stdout)) as files:
        files.extractall(tmp_path / "older", filter="data")
    return tmp_path / "older"


def spec_of(cluster: LocalCluster, broker_id: int, checkout: Path) -> ProcessSpec:
    """Of an agent that has these files, and the storage manager among them, instead of the cluster's own."""
    spec, properties = cluster.agent(broker_id).spec, cluster.layout.server_properties(broker_id)
    own = checkout / f"broker-{broker_id}.properties"
    own.write_text(properties.read_text().replace(str(CHECKOUT), str(checkout)))
    command = tuple(str(own) if one == str(properties) else one for one in spec.command)
    # Where a program begins it finds its own modules, before those that are installed.
    return replace(spec, command=command, working_directory=checkout)


def shares_reads(script: Script, broker_id: int) -> bool:
    """Which it does not tell of before it knows how to."""
    return b"remote_wal_shared_ranges_total" in answer_of(script.cluster, broker_id, "/metrics")


def test_an_agent_of_an_older_release_links_both_ways_with_newer_ones(agent_script: Script, older: Path) -> None:
    script, cluster = agent_script, agent_script.cluster
    script.create_topic(assignment=[[1, 2, 3], [2, 3, 1], [3, 1, 2]])
    script.produce(PLAIN, TRANSACTIONS)
    script.expect_links_to_be_used()
    script.stop_agent(2)
    agent = ManagedProcess(spec_of(cluster, 2, older))
    agent.start()
    try:
        cluster.wait_for_agent(2)
        cluster.admin.wait_for_full_isr(script.topic, timeout_s=PATIENCE_S)
        assert [one for one in cluster.broker_ids if shares_reads(script, one)] == [1, 3]
        script.expect_links_to_be_used()
        script.expect_records_to_flow()
    finally:
        agent.terminate(30)
    script.start_agent(2)
    script.expect_promises()
