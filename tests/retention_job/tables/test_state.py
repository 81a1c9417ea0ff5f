"""A run counts when it is whole; what a killed one left is recognised and removed."""

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from metadata_topic.records.topic_doubt import NOT_ASKED
from metadata_topic.settings.topic_settings import TopicSettings
from metadata_topic.settings.wal_retention import ALL_AS_BEFORE, AgentsRetention, WalRetention
from metadata_topic.topic.topic import METADATA_TOPIC
from retention_job.errors import StateError
from retention_job.sources.kafka import Cluster, Offsets, Topic
from retention_job.spark.file_system import FileSystem
from retention_job.tables.state import RunRecord, RunState, plan_reading

RETENTION = {"bb": 5, "cc": None}
FIRST = RunRecord(
    "first", 1000, 900, {0: 10, 1: 20}, "aa", RETENTION, {"first": 1000}, ["first"], ["segments"], {0: 3}, 1000
)


@pytest.fixture
def state(spark: SparkSession, tmp_path: Path) -> RunState:
    return RunState(FileSystem(spark, str(tmp_path)))


def made(tmp_path: Path, run_id: str) -> Path:
    table = tmp_path / "runs" / run_id / "segments"
    table.mkdir(parents=True)
    (table / "part-0.parquet").write_bytes(b"half")
    return table


def test_what_was_committed_is_read_again(state: RunState, tmp_path: Path) -> None:
    assert state.last() is None
    made(tmp_path, "first")
    state.commit(FIRST)
    assert state.last() == FIRST
    later = replace(FIRST, run_id="second", entry_runs={"second": 2000}, layers=["second"])
    state.begin("second", FIRST)
    made(tmp_path, "second")
    state.commit(later)
    assert state.last() == later
    assert [found.name for found in (tmp_path / "runs").iterdir()] == ["second"]


def test_a_run_that_never_ended_is_removed_and_finished_ones_stay(state: RunState, tmp_path: Path) -> None:
    first = made(tmp_path, "first")
    state.commit(FIRST)
    made(tmp_path, "killed")
    assert state.begin("second", state.last()) == ["killed"]
    assert first.is_dir()
    assert not (tmp_path / "runs" / "killed").exists()


@pytest.mark.gate
@pytest.mark.parametrize("second_begins_late", [True, False])
def test_of_two_runs_at_once_one_counts_and_the_other_says_so(
    spark: SparkSession, tmp_path: Path, second_begins_late: bool
) -> None:
    one, other = (RunState(FileSystem(spark, str(tmp_path))) for _ in range(2))
    made(tmp_path, "first")
    one.commit(FIRST)
    runs = {name: replace(FIRST, run_id=name, entry_runs={name: 2000}, layers=[name]) for name in ("second", "third")}
    one.begin("second", one.last())
    if second_begins_late:
        made(tmp_path, "second")
        assert other.begin("third", other.last()) == ["second"]
        made(tmp_path, "third")
        with pytest.raises(StateError, match="another run removed it"):
            one.commit(runs["second"])
        other.commit(runs["third"])
        assert other.last() == runs["third"]
    else:
        other.begin("third", other.last())
        made(tmp_path, "second")
        made(tmp_path, "third")
        one.commit(runs["second"])
        with pytest.raises(StateError, match="run second finished meanwhile"):
            other.commit(runs["third"])
        assert other.last() == runs["second"]


@pytest.mark.gate
def test_a_damaged_state_is_told_and_not_gone_on_from(state: RunState, tmp_path: Path) -> None:
    (tmp_path / "CURRENT.json").write_text("{")
    with pytest.raises(StateError, match="remove it"):
        state.last()


def test_the_state_of_another_format_is_no_state(state: RunState, tmp_path: Path) -> None:
    (tmp_path / "CURRENT.json").write_text('{"version": 99}')
    assert state.last() is None


def cluster(
    earliest: int = 0,
    latest: int = 100,
    retention_ms: int = 5000,
    topic: bytes = b"m" * 16,
    agents: AgentsRetention = ALL_AS_BEFORE,
) -> Cluster:
    config = {"retention.ms": str(retention_ms)}
    orders = Topic(b"o" * 16, "orders", (0,), 3, TopicSettings(enable=True), config, agents)
    metadata = Topic(topic, METADATA_TOPIC, (0,), 3, TopicSettings(), {})
    return Cluster(frozenset({1}), (orders, metadata), {METADATA_TOPIC: Offsets({0: earliest}, {0: latest})})


LAST = replace(FIRST, offsets={0: 50}, topic_id=(b"m" * 16).hex(), retention=cluster().retentions)


def test_an_incremental_run_goes_on_where_the_last_one_ended() -> None:
    plan = plan_reading(cluster(), LAST, 2000, {(0, 3): 70}, is_incremental=True)
    assert (plan.is_incremental, plan.starting_offsets, plan.ending_offsets) == (True, {0: 50}, {0: 100})
    assert (plan.records, plan.changed_topics, plan.whole_ms) == (50, frozenset(), 2000)


def test_topics_whose_retention_changed_are_judged_again_and_nothing_else_is_read_again() -> None:
    changed = cluster(agents=AgentsRetention((WalRetention(4000),)))
    gone = replace(changed, topics=changed.topics[1:])
    for now in (changed, gone):
        plan = plan_reading(now, LAST, 2000, NOT_ASKED, is_incremental=True)
        assert (plan.records, plan.changed_topics) == (50, frozenset({(b"o" * 16).hex()}))


@pytest.mark.parametrize(
    ("now", "last", "epoch_end", "reason"),
    [
        (cluster(), None, 100, "no finished run"),
        (cluster(earliest=51), LAST, 100, "no longer holds"),
        (cluster(latest=49), LAST, 49, "lost its end"),
        (cluster(), LAST, 49, "lost its end"),  # and has grown beyond what was read
        (cluster(topic=b"n" * 16), LAST, 100, "another one"),
        (cluster(), replace(LAST, full_ms=2000 - 7 * 86_400_000), 100, "a week old"),
    ],
)
def test_it_reads_everything_where_older_tables_may_be_wrong(
    now: Cluster, last: RunRecord | None, epoch_end: int, reason: str
) -> None:
    plan = plan_reading(now, last, 2000, {(0, 3): epoch_end}, is_incremental=True)
    assert not plan.is_incremental
    assert plan.starting_offsets == now.offsets[METADATA_TOPIC].earliest
    assert reason in (plan.full_because or "")


@pytest.mark.parametrize("is_incremental", [True, False])
def test_what_the_topic_lost_stays_lost_for_the_runs_behind_it(is_incremental: bool) -> None:
    plan = plan_reading(cluster(), LAST, 2000, {(0, 3): 49}, is_incremental=is_incremental)
    assert plan.whole_ms == LAST.now_ms
    after = replace(LAST, now_ms=2000, whole_ms=plan.whole_ms)
    assert plan_reading(cluster(), after, 3000, {(0, 3): 70}, is_incremental=is_incremental).whole_ms == LAST.now_ms
