"""Which clusters a broker may join; nothing is started, and what is refused is left as it was."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from local_cluster.broker_config import AgentsMode, ClusterSettings
from local_cluster.cluster import LocalCluster
from local_cluster.joining import with_joined_broker
from local_cluster.layout import LayoutError, load_layout
from local_cluster.security.inter_broker_protocol import InterBrokerProtocol

PLAIN = ClusterSettings(AgentsMode())


@pytest.mark.parametrize(
    ("made", "joining", "reason"),
    [
        (PLAIN.speaking(InterBrokerProtocol("SASL_SSL")), PLAIN, "certificates"),
        (PLAIN, PLAIN.speaking(InterBrokerProtocol("SASL_SSL")), "certificates"),
        (PLAIN, ClusterSettings(), "run with agents"),
        (ClusterSettings(), PLAIN, "run without agents"),
    ],
)
def test_a_broker_does_not_join_those_that_it_would_not_fit(
    tmp_path: Path, made: ClusterSettings, joining: ClusterSettings, reason: str
) -> None:
    LocalCluster.create(tmp_path / "cluster", settings=made)
    before = written(tmp_path)
    with pytest.raises(LayoutError, match=reason):
        with_joined_broker(tmp_path / "cluster", joining)
    assert written(tmp_path) == before


def test_a_broker_joins_by_its_own_files_and_the_others_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[int, ...]] = []
    monkeypatch.setattr(LocalCluster, "start", lambda self, _timeout_s: started.append(self.broker_ids))
    LocalCluster.create(tmp_path / "cluster", settings=PLAIN)
    joined = with_joined_broker(tmp_path / "cluster", replace(PLAIN, heap_mb=256))
    assert started == [(1, 2, 3, 4)]
    assert load_layout(tmp_path / "cluster").broker_ids == (1, 2, 3, 4)
    assert joined.files.properties(4)["process.roles"] == "broker"
    assert "replica-4" in joined.layout.hosts_file(1).read_text()


def written(directory: Path) -> Mapping[Path, Any]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
