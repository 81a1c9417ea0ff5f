"""What nobody thought of costs money for a while, never data, ISR or an agent: in a storage manager, links, a part.

And a store that is slow beyond any use: producers wait as long as a link may be waited for, and no longer.
"""

from functools import partial
from http import HTTPStatus

from local_cluster.cluster import LocalCluster
from local_cluster.polling import wait_until
from local_cluster.workload.ledger import PayloadPattern
from tests.cluster.agent_views import (
    FAULTS,
    RECORD_BYTES,
    UPLOAD_FAILURES,
    AgentCounters,
    answer_of,
    read_metrics,
    readiness,
)
from tests.cluster.script import PATIENCE_S, PLAIN, ZSTD, Script

LINK_WAIT_MAX_S = 0.5
"""remote.wal.link.wait.max.ms by default."""


def test_defects_of_a_storage_manager_of_links_and_of_the_write_path_cost_links_alone(agent_script: Script) -> None:
    # for each: links -> the defect sets in: counted, inline, all replicas stay in sync -> it ends -> links again
    script = agent_script
    script.create_topic(partitions=3)
    script.produce(PLAIN, ZSTD)
    script.expect_links_to_be_used()
    agents = started(script.cluster)
    with script.without_a_shrinking_isr():
        for switch, metric, reason in (
            ("put-defect", UPLOAD_FAILURES, "defect"),
            ("get-defect", FAULTS, "inline_requested_defect"),
            ("garbled-links", FAULTS, "link_defect_malformed"),
        ):
            script.switch_all(switch, "")
            script.expect_growth(metric, reason=reason)
            expect_inline_until_mended(script)
        script.switch_all("defect-in-pacing", "")
        script.expect_growth("remote_wal_part_failures_total", part="storage")
        for broker_id in script.cluster.broker_ids:
            wait_until(partial(says_what_is_down, script, broker_id), "/readyz says which part is down", PATIENCE_S)
        expect_inline_until_mended(script)
    assert started(script.cluster) == agents, "no process was restarted"
    report = script.expect_promises()
    expect_no_record_in_what_agents_tell(script.cluster, records=report.acknowledged)


def expect_inline_until_mended(script: Script) -> None:
    script.expect_inline_bytes()
    script.expect_records_to_flow()
    script.clear_switches()
    script.expect_links_to_be_used()


def says_what_is_down(script: Script, broker_id: int) -> bool:
    """Now, as the part is restarted again and again."""
    status, told = readiness(script.cluster, broker_id)
    return status != HTTPStatus.OK and "storage failed" in told


def started(cluster: LocalCluster) -> list[float]:
    """When the agents' processes were started."""
    starts = (read_metrics(cluster, one)["process_start_time_seconds", ()] for one in cluster.broker_ids)
    return list(starts)


def expect_no_record_in_what_agents_tell(cluster: LocalCluster, records: int) -> None:
    """Neither the magic that all of the ledger's records begin with, nor the bodies of one producer's."""
    bodies = {PayloadPattern(0, PLAIN.payload_bytes).value(0, sequence)[16:48].decode() for sequence in range(records)}
    for broker_id in cluster.broker_ids:
        told = (cluster.layout.agent_directory(broker_id) / "agent.log").read_text(errors="replace")
        for path in ("/", "/metrics", "/describe", "/objects", "/config", "/readyz"):
            told += answer_of(cluster, broker_id, path).decode()
        assert "what nobody thought of" not in told
        assert "WALK" not in told
        assert not any(told[at : at + 32] in bodies for at in range(len(told) - 31))


def waits(cluster: LocalCluster) -> tuple[float, float]:
    """How many responses were held back for their links, and for how many seconds altogether, by all agents."""
    count = seconds = 0.0
    for broker_id in cluster.broker_ids:
        for (name, labels), value in read_metrics(cluster, broker_id).items():
            if ("stage", "link_wait") in labels:
                count += value if name == "remote_wal_stage_seconds_count" else 0
                seconds += value if name == "remote_wal_stage_seconds_sum" else 0
    return count, seconds


def test_a_store_of_two_seconds_holds_producers_up_for_no_longer_than_a_link_is_waited_for(
    agent_script: Script,
) -> None:
    script = agent_script
    script.create_topic(partitions=3)
    script.produce(PLAIN, ZSTD)
    script.expect_links_to_be_used()
    with script.without_a_shrinking_isr():
        script.switch_all("put-latency-ms", "2000")
        script.switch_all("get-latency-ms", "2000")
        script.expect_growth(FAULTS, reason="link_wait_timeout")
        before, counters = waits(script.cluster), AgentCounters(script.cluster)
        script.expect_records_to_flow(2000)
        count, seconds = (after - earlier for after, earlier in zip(waits(script.cluster), before, strict=True))
        inline, linked = (counters.growth(RECORD_BYTES, path=path) for path in ("inline", "linked"))
        assert inline > 10 * linked, "nothing waits for what is stored two seconds later"
        assert seconds <= 2 * LINK_WAIT_MAX_S * count, "twice, as the machine may be busy"
        script.clear_switches()
    script.expect_promises()
