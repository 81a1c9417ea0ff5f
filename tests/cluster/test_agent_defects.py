"""A part of an agent meets a defect. Relaying goes on, inline, and links come back when the part is well again."""

from http import HTTPStatus

from local_cluster.polling import wait_until
from tests.cluster.agent_views import readiness
from tests.cluster.script import PATIENCE_S, PLAIN, ZSTD, Script

LEADER = 1
FAILURES = "remote_wal_part_failures_total"


def test_a_defect_of_the_write_path_sends_bytes_inline_and_ends_no_relaying(agent_script: Script) -> None:
    # links -> the leader's write path raises, again and again: counted, told, inline, all in sync -> mended: links
    script = agent_script
    script.create_topic(assignment=[[LEADER, 2, 3]])
    script.produce(PLAIN, ZSTD)
    script.expect_records_to_flow()
    script.expect_links_to_be_used()
    pid = script.cluster.agent(LEADER).pid
    with script.without_a_shrinking_isr():
        script.switch(LEADER, "defect-in-pacing")
        script.expect_growth(FAILURES, part="write path")
        wait_until(lambda: "write path failed" in not_ready(script), "/readyz says which part is down", PATIENCE_S)
        script.expect_inline_bytes()
        script.expect_records_to_flow()
        script.clear_switches()
    script.expect_links_to_be_used()
    assert script.cluster.agent(LEADER).pid == pid
    script.expect_promises()


def not_ready(script: Script) -> str:
    """What the leader's agent lacks; empty when it is ready."""
    status, told = readiness(script.cluster, LEADER)
    return "" if status == HTTPStatus.OK else told
