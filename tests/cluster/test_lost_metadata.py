"""The metadata topic is deleted under running agents: no object is lost with it, and a rebuild makes all known."""

import shutil
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from cli.exit_code import ExitCode
from kafka_cluster.client_config import KafkaClientConfig
from kafka_cluster.cluster import KafkaCluster
from local_cluster.broker_config import ClusterSettings
from local_cluster.cluster import LocalCluster
from local_cluster.polling import wait_until
from metadata_topic.records.states import DELETING, FINISHED
from metadata_topic.topic.topic import METADATA_TOPIC, MetadataTopicSettings, ensure_topics
from metadata_topic.topic.topic_session import read_metadata
from plugin.format.object_keys import ObjectKeyFactory
from plugin.segment_metadata import CombinedSegmentId
from tests.cluster.agent_views import FAULTS, AgentCounters, describe, read_metrics
from tests.cluster.conftest import cluster_of
from tests.cluster.quick_agent import QuickAgents, quick
from tests.cluster.recovery_commands import run_command
from tests.cluster.replica_moves import delete_topic
from tests.cluster.script import PATIENCE_S, PLAIN, Script


def lose_metadata_topic(cluster: LocalCluster) -> None:
    """It is deleted and made anew under running agents. Until all of them doubt it."""
    delete_topic(cluster.admin, METADATA_TOPIC)
    wait_until(lambda: not cluster.admin.partitions(METADATA_TOPIC), "the topic is gone", PATIENCE_S)
    client = KafkaClientConfig(cluster.bootstrap_servers)
    ensure_topics(KafkaCluster(client, "test", 30.0), MetadataTopicSettings())
    wait_until(lambda: all(in_doubt(cluster)), "all agents doubt the topic", PATIENCE_S)


def rebuild(cluster: LocalCluster, *options: str) -> dict[str, Any]:
    """What `remote-wal metadata rebuild` tells, which may name what earlier tests took away."""
    return run_command(cluster, "metadata rebuild", 1, *options, exit_code=(ExitCode.GOOD, ExitCode.FINDINGS))


def in_doubt(cluster: LocalCluster) -> list[bool]:
    """Of each agent, whether it doubts the topic."""
    name = "remote_wal_metadata_topic_in_doubt"
    return [any(value for (found, _), value in read_metrics(cluster, one).items() if found == name)
            for one in cluster.broker_ids]  # fmt: skip


CHECKOUT = Path(__file__).parents[2]
HASTY = {
    # What nobody knows goes within seconds, if anything lets it.
    "remote.wal.uncommitted.ttl.ms": "1000",
    **quick(orphans_interval_s=1),
    **quick(delete_grace_times=0, expiration_interval_s=0.5, cluster_interval_s=1, snapshot_interval_s=2),
}


cluster = cluster_of(lambda _: ClusterSettings(QuickAgents(overrides=HASTY)))


def stored(cluster: LocalCluster) -> set[CombinedSegmentId]:
    root = cluster.layout.object_store_directory
    keys = ObjectKeyFactory("", cluster.layout.cluster_id)
    found = (keys.parse(str(path.relative_to(root))) for path in root.rglob("*.rwal"))
    return {segment_id for segment_id in found if segment_id is not None}


def metric(cluster: LocalCluster, broker_id: int, name: str, **labels: str) -> float:
    wanted = set(labels.items())
    samples = read_metrics(cluster, broker_id).items()
    return sum(value for (found, has), value in samples if found == name and wanted <= set(has))


def restart_without_state(script: Script, broker_id: int, lock_file: str | None) -> None:
    """The state directory is lost; `lock_file` is what it holds in its place."""
    script.stop_agent(broker_id)
    directory = script.cluster.layout.agent_directory(broker_id)
    for name in ("agent.lock", "metadata-topic.json"):
        (directory / name).unlink(missing_ok=True)
    if lock_file is not None:
        (directory / "agent.lock").write_text(lock_file)
    script.cluster.start_agent(broker_id, wait=False)
    wait_until(lambda: is_answering(script.cluster, broker_id), f"agent {broker_id} answers", PATIENCE_S)


def is_answering(cluster: LocalCluster, broker_id: int) -> bool:
    with suppress(OSError):
        return bool(describe(cluster, broker_id))
    return False


def uploads_of(cluster: LocalCluster, broker_id: int) -> float:
    return metric(cluster, broker_id, "remote_wal_uploaded_segments_total")


def is_missed(cluster: LocalCluster, counters: AgentCounters) -> bool:
    """Delete what is stored by now, behind the agents' backs; whether a follower has asked for any of it."""
    for path in cluster.layout.object_store_directory.rglob("*.rwal"):
        path.unlink(missing_ok=True)
    return counters.growth(FAULTS, reason="hydration_not_found") > 0


def has_saved_a_snapshot(cluster: LocalCluster, broker_id: int) -> bool:
    return metric(cluster, broker_id, "remote_wal_metadata_snapshots_total", outcome="saved") > 0


def listings(cluster: LocalCluster, broker_id: int) -> float:
    return metric(cluster, broker_id, "remote_wal_store_requests_total", operation="list")


def told_by_the_topic(cluster: LocalCluster) -> set[CombinedSegmentId]:
    """Objects whose upload's end the topic tells. Some of those before it was deleted may be among them: whose records
    were on their way then go to the new one.
    """
    store = read_metadata(KafkaClientConfig(cluster.bootstrap_servers))[0]
    return {one for one in stored(cluster) if store.state_of(one) in (FINISHED, DELETING)}


def has_listed(cluster: LocalCluster, broker_id: int, beyond: float) -> bool:
    return listings(cluster, broker_id) > beyond


def test_a_metadata_topic_that_was_deleted_costs_no_object_and_is_rebuilt(cluster: LocalCluster, topic: str) -> None:
    with Script(cluster, topic) as script:
        script.create_topic()
        script.produce(PLAIN)
        script.expect_links_to_be_used()
        for one in cluster.broker_ids:
            wait_until(partial(has_saved_a_snapshot, cluster, one), "a snapshot", PATIENCE_S)

        # When the topic is deleted and made anew, every agent tells, and goes on.
        before = stored(cluster)
        lose_metadata_topic(cluster)
        script.expect_links_to_be_used()
        # Agents that come back meanwhile know it too, also without anything of their own.
        script.stop_agent(3)
        (cluster.layout.agent_directory(3) / "metadata-topic.json").unlink(missing_ok=True)
        for snapshots in cluster.layout.object_store_directory.rglob("metadata-snapshots/3"):
            shutil.rmtree(snapshots)
        script.start_agent(3)
        wait_until(lambda: all(in_doubt(cluster)), "the agent that came back doubts it", PATIENCE_S)
        script.expect_records_to_flow()
        rounds = {one: listings(cluster, one) for one in (1, 2, 3)}
        for one, listed in rounds.items():
            wait_until(
                partial(has_listed, cluster, one, listed + 2),
                "objects were compared with the metadata",
                PATIENCE_S,
            )
        assert before <= stored(cluster)

        # Then a rebuild tells the topic of all, and the doubts end.
        untold = before - told_by_the_topic(cluster)
        assert untold
        planned = rebuild(cluster)
        assert planned["written"] is None
        assert planned["segments"] >= len(untold)
        written = rebuild(cluster, "--write")
        assert written["written"] > len(untold)
        assert written["unreadable"] == written["lost"] == []
        wait_until(lambda: not any(in_doubt(cluster)), "nobody doubts the topic", PATIENCE_S)
        assert before <= told_by_the_topic(cluster)
        script.expect_links_to_be_used()

        # An agent whose clock was ahead once, and whose state directory is lost, uploads on under a number that counts.
        ahead = int(time.time() * 1000) + 3_600_000
        restart_without_state(script, 3, f"{ahead}\n")
        cluster.wait_for_agent(3)  # and is registered
        assert describe(cluster, 3)["incarnation"] > ahead
        restart_without_state(script, 3, None)
        wait_until(lambda: "agent_fenced" in script.agent_log(3), "it is told at once", PATIENCE_S)
        wait_until(lambda: describe(cluster, 3)["incarnation"] > ahead + 1, "a newer number is taken", PATIENCE_S)
        uploaded = uploads_of(cluster, 3)
        wait_until(lambda: uploads_of(cluster, 3) > uploaded, "it uploads under it", PATIENCE_S)
        assert before <= stored(cluster)

        # Objects that somebody deletes while links to them are under way: inline, and told as what to page for.
        counters = AgentCounters(cluster)
        wait_until(lambda: is_missed(cluster, counters), "a follower misses an object", PATIENCE_S, interval_s=0.01)
        script.expect_records_to_flow()
        told = "remote_wal_orphans"
        wait_until(
            lambda: sum(metric(cluster, one, told, kind="lost") for one in cluster.broker_ids) > 0,
            "agents tell of lost segments",
            PATIENCE_S,
        )
        script.expect_promises()
