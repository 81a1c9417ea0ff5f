"""The output: committed as a whole, and what is half-written is seen and replaced."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cli.costs.report import exit_code
from cli.exit_code import ExitCode
from retention_job.errors import StateError
from retention_job.page.report import days_before, days_table, merged_days, merged_rows
from retention_job.page.report_data import DayCosts
from retention_job.page.report_output import ReportOutput
from retention_job.spark.file_system import FileSystem
from retention_job.tables.state import RunRecord


@pytest.mark.gate
def test_a_run_is_there_when_all_of_it_is(spark: SparkSession, tmp_path: Path) -> None:
    output = ReportOutput(spark, str(tmp_path))
    output.write("one", {"findings": spark.range(3)}, {"report.html": "<p>ü</p>"}, now_ms=5)

    found = output.table("findings", "one")
    assert found is not None
    assert found.count() == 3
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == "<p>ü</p>"
    assert output.runs() == [{"run_id": "one", "now_ms": 5}]
    assert not (tmp_path / "unfinished" / "one").exists()
    assert spark.read.parquet(str(tmp_path / "findings")).columns == ["id", "run"]


def test_what_a_killed_run_left_is_removed_and_the_run_may_be_made_again(spark: SparkSession, tmp_path: Path) -> None:
    output = ReportOutput(spark, str(tmp_path))
    output.write("one", {"findings": spark.range(1)}, {})
    # Killed while it wrote, and killed between its tables and the commit.
    spark.range(2).write.parquet(str(tmp_path / "unfinished" / "two" / "findings"))
    spark.range(2).write.parquet(str(tmp_path / "findings" / "run=three"))
    assert output.table("findings", "three") is None

    assert output.begin() == ["three", "two"]

    assert sorted(path.name for path in (tmp_path / "findings").iterdir() if path.is_dir()) == ["run=one"]
    output.write("three", {"findings": spark.range(4)}, {})
    found = output.table("findings", "three")
    assert found is not None
    assert found.count() == 4
    assert output.last_run_id() == "three"
    assert output.begin() == []


def test_a_place_that_takes_nothing_is_one_clear_error(spark: SparkSession, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    with pytest.raises(StateError, match="file") as told:
        ReportOutput(spark, str(blocked)).write("one", {"findings": spark.range(1)}, {})
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("root", "name"), [("of 10:00/", "./of 10:00/x"), ("of/10:00", "of/10:00/x"), ("file:/tmp", "file:/tmp/x")]
)
def test_a_colon_in_a_relative_name_is_no_scheme(spark: SparkSession, root: str, name: str) -> None:
    files = FileSystem(spark, root)
    assert files.resolve("x") == name
    assert files.directories("not there") == []


def test_a_damaged_list_of_runs_is_named_and_not_taken_for_an_empty_one(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "COMMITTED.json").write_text("{")
    with pytest.raises(StateError, match=r"COMMITTED\.json"):
        ReportOutput(spark, str(tmp_path)).begin()


def _day(day: int, usd: float, stock: float | None = 9.0, **has_usage: bool) -> DayCosts:
    """`has_usage`: by the broker, as b1."""
    return DayCosts(day, {"put_usd": usd}, stock, 0.5, {int(b[1:]): told for b, told in has_usage.items()})


def test_a_full_run_replaces_days_but_for_those_that_retention_cut() -> None:
    before = [_day(1, 5.0), _day(2, 6.0), _day(3, 7.0)]
    now = [_day(2, 1.0), _day(3, 8.0), _day(4, 2.0)]
    assert merged_days(before, now, is_incremental=False) == [_day(1, 5.0), _day(2, 6.0), _day(3, 8.0), _day(4, 2.0)]


def test_an_incremental_run_adds_to_what_was_counted() -> None:
    merged = merged_days([_day(1, 5.0), _day(2, 6.0, None)], [_day(2, 1.0), _day(3, 2.0)], is_incremental=True)
    assert merged == [_day(1, 5.0), DayCosts(2, {"put_usd": 7.0}, 9.0, 1.0), _day(3, 2.0)]


@pytest.mark.parametrize(
    ("before", "now", "is_complete"),
    [
        ({"b1": False}, {"b1": True}, True),
        ({"b1": False, "b2": True}, {"b2": True}, False),
        ({"b1": False}, {}, False),
        ({"b1": True}, {"b1": False}, False),
        ({"b1": True}, {"b2": False}, False),
    ],
)
def test_a_day_is_complete_when_the_usage_of_all_its_brokers_was_read(
    before: dict[str, bool], now: dict[str, bool], is_complete: bool
) -> None:
    (day,) = merged_days([_day(1, 5.0, **before)], [_day(1, 2.0, **now)], is_incremental=True)
    assert day.is_complete == is_complete


def test_a_day_is_not_added_to_the_report_of_a_run_that_left_no_state(spark: SparkSession, tmp_path: Path) -> None:
    """Killed between the commits of its report and its state: the next run reads the same records again."""
    output = ReportOutput(spark, str(tmp_path))
    first, killed = [_day(1, 5.0, b1=True, b2=False)], [_day(1, 9.0, None)]
    output.write("first", {"cost_days": days_table(spark, first)}, {})
    output.write("killed", {"cost_days": days_table(spark, killed)}, {})
    last = RunRecord("first", 0, 0, {}, "aa", {}, {}, ["first"], [], {}, 0)
    assert days_before(output, last) == first
    assert days_before(output, None) == killed, "a full run replaces days, whichever they are"


_ROWS = "topic_id STRING, day INT, puts DOUBLE, gets DOUBLE, remote_zones INT, topic STRING"
_BEFORE = [("a", 1, 1.0, None, 1, "of a"), ("a", 2, 2.0, 1.0, 2, "of a"), (None, 2, 3.0, None, None, None)]
_NOW = [("a", 2, 5.0, 7.0, 1, None), (None, 2, 1.0, None, None, None), ("b", 3, 1.0, None, 1, "of b")]


@pytest.mark.parametrize(
    ("kept_days", "expected"),
    [
        (
            None,
            [(None, 2, 4.0, None, None, None), ("a", 1, 1.0, None, 1, "of a"), ("a", 2, 7.0, 8.0, 2, "of a"), _NOW[2]],
        ),
        ({1}, [_NOW[1], _BEFORE[0], _NOW[0], _NOW[2]]),
        (set(), [_NOW[1], _NOW[0], _NOW[2]]),
    ],
    ids=["incremental", "full", "full of all"],
)
def test_a_table_has_each_day_once(spark: SparkSession, kept_days: set[int] | None, expected: list[object]) -> None:
    before, now = (spark.createDataFrame(rows, _ROWS) for rows in (_BEFORE, _NOW))
    merged = merged_rows(before, now, ("topic_id", "day"), kept_days)
    assert sorted((tuple(row) for row in merged.collect()), key=lambda row: (row[0] or "", row[1])) == expected


def test_old_findings_are_forgotten_and_the_newest_days_replace_the_others(spark: SparkSession, tmp_path: Path) -> None:
    output = ReportOutput(spark, str(tmp_path))
    for number, name in enumerate(("old", "recent", "newest")):
        output.write(name, {"findings": spark.range(1), "cost_daily": spark.range(1)}, {}, now_ms=number * 1000)
    output.prune("newest", 1000)
    assert [run["run_id"] for run in output.runs()] == ["recent", "newest"]
    left = {table: {path.name for path in (tmp_path / table).glob("run=*")} for table in ("findings", "cost_daily")}
    assert left == {"findings": {"run=recent", "run=newest"}, "cost_daily": {"run=newest"}}
    assert output.begin() == []
    output.prune("newest", 10**12)
    assert output.last_run_id() == "newest", "the newest run stays, however old it is"


@pytest.mark.parametrize(
    ("severities", "code"),
    [
        ([], ExitCode.GOOD),
        (["info"], ExitCode.GOOD),
        (["info", "warning"], ExitCode.FINDINGS),
        (["warning", "critical", "info"], ExitCode.CRITICAL),
        (["unheard of"], ExitCode.CRITICAL),
    ],
)
def test_the_exit_code_is_that_of_the_gravest(severities: list[str], code: ExitCode) -> None:
    assert exit_code(severities) == code
