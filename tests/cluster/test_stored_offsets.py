"""What object storage holds of a log after an upload failed and its agent died."""

from pathlib import Path

from cli.exit_code import ExitCode
from local_cluster.polling import wait_until
from tests.cluster.recovery_commands import drilled_recovery, planned_recovery
from tests.cluster.script import PATIENCE_S, PLAIN, ZSTD, Script
from tests.cluster.stored_log import stored_log


def test_a_hole_that_a_killed_agent_left_is_stored_by_the_next_one(agent_script: Script, tmp_path: Path) -> None:
    # stored [0, a) -> the upload of [a, b) fails, the one behind it is stored and told of, then nothing gets through
    # -> kill -9 -> a recovery would end at a, and says so -> the next agent begins with [a, b) -> all can be restored
    script, cluster = agent_script, agent_script.cluster
    script.create_topic(assignment=[[1, 2, 3]])
    script.produce(PLAIN, ZSTD)
    script.expect_records_to_flow()
    with stored_log(script) as log:
        script.switch(1, "leave-a-hole")
        wait_until(lambda: len(log.ranges(1)) > 1, "something is stored behind the hole", PATIENCE_S)
        script.kill_agent(1)
        [(_, begin), (end, _), *_] = log.ranges(1)
        planned = planned_recovery(cluster, 1, script.topic, exit_code=ExitCode.FINDINGS)
        assert (planned["end_offset"], planned["gap"]) == (begin, {"from_offset": begin, "to_offset": end})

        script.start_agent(1)
        wait_until(lambda: log.ranges(1)[0][1] > end, f"offsets {begin} to {end - 1} are stored", PATIENCE_S)
        assert "missing_offsets_found" in script.agent_log(1)
        script.expect_records_to_flow()
        script.expect_promises()
        log_end = log.end_offset(1)
        log.expect_all_stored(1, log_end)
    planned = planned_recovery(cluster, 1, script.topic)
    assert (planned["status"], planned["end_offset"]) == ("whole", log_end)
    assert drilled_recovery(cluster, 1, script.topic, tmp_path / "drill")["end_offset"] == log_end
