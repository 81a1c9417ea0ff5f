"""`remote-wal orphans` on a host that has lost a disk."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from cli.recovery.recovery_sources import BrokersCluster, open_metadata, open_stores
from kafka_cluster.cluster import KafkaCluster
from kafka_cluster.responses import ClusterListing
from metadata_topic.topic import topic_session


def test_the_cluster_tells_its_id_and_lost_log_directories_do_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "server.properties"
    (tmp_path / "store").mkdir()
    file.write_text(
        f"node.id=1\nlog.dirs={tmp_path}/lost\nlisteners=CLIENT://127.0.0.1:1,WAL://127.0.0.1:19901\n"
        "advertised.listeners=CLIENT://127.0.0.1:1,WAL://127.0.0.1:19901\ninter.broker.listener.name=WAL\n"
        f"listener.security.protocol.map=CLIENT:PLAINTEXT,WAL:PLAINTEXT\nrsm.wal.config.directory={tmp_path}/store\n"
        "remote.log.wal.storage.manager.class.name=plugin.local_directory.LocalWalStorageManager\n"
        f"remote.wal.agent.state.directory={tmp_path}/state\n"
    )
    asked: list[str] = []
    monkeypatch.setattr(KafkaCluster, "listing", lambda _: ClusterListing("cluster-1", {}, {}))
    monkeypatch.setattr(
        topic_session, "TopicSession", lambda *given, newest: nullcontext(SimpleNamespace(store=given[4]))
    )
    monkeypatch.setattr(topic_session, "newest_snapshot", lambda _blobs, cluster_id: asked.append(cluster_id))
    with open_stores(BrokersCluster(file)) as stores, open_metadata(stores, may_doubt=True) as topic:
        assert not topic.store.topic.doubts
    assert asked == ["cluster-1"]
