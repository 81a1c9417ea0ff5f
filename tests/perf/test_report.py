"""The ladder's arithmetic: a rung is held against stock of the same round and the same pair of clusters."""

import json
from pathlib import Path

import pytest

from local_cluster.agent_metrics import Counters, parse_metrics
from local_cluster.cluster_admin import LINKED
from local_cluster.object_store.store_spec import OwnStore
from metadata_topic.settings.topic_settings import TopicSettings
from perf.clusters import Usage
from perf.ladder.report import agent_rows, compare, line_of, print_tables, write_json
from perf.ladder.turns import CROSSED, STOCK, Clients, Comparison, Measured, Rung, Workload

RATE = Workload("rate", 1, {"MB/s": Comparison.RATIO}, lambda _tools, _topic, _scale: {})
DELAY = Workload("delay", 1, {"p50 ms": Comparison.ADDED_MS}, lambda _tools, _topic, _scale: {})


LINKS = Rung("links", OwnStore.LOCAL)


def measured(workload: Workload, rung: str, number: int, value: float, store: OwnStore = OwnStore.LOCAL) -> Measured:
    figure = next(iter(workload.compared))
    return Measured(workload.name, Rung(rung, store), number, {figure: value}, Usage(1.0))


def by_agents(number: int, figures: Counters, rung: Rung = LINKS) -> Measured:
    usage = Usage(3.0, 2.0, {1: figures})
    return Measured("rate", rung, number, {"MB/s": 9.0}, usage)


def test_each_rung_is_held_against_the_stock_cluster_beside_its_own() -> None:
    runs = [
        measured(DELAY, STOCK, 0, 3.0),
        measured(DELAY, "links", 0, 17.0),
        measured(DELAY, STOCK, 0, 5.0, OwnStore.S3_NATIVE),
        measured(DELAY, "links-s3", 0, 25.0, OwnStore.S3_NATIVE),
    ]
    assert {row["rung"]: row["compared"] for row in compare([DELAY], runs)} == {"links": 14.0, "links-s3": 20.0}


def test_rungs_of_other_agents_are_held_against_the_stock_cluster_beside_them() -> None:
    runs = [
        Measured("delay", Rung(name, OwnStore.LOCAL, clients=clients), 0, {"p50 ms": value}, Usage(1.0))
        for name, clients, value in (
            (STOCK, Clients.DIRECT, 1.0), ("links", Clients.DIRECT, 12.0), ("held", Clients.HELD, 16.0),
            (STOCK, Clients.GATEWAY, 2.0), ("gateway", Clients.GATEWAY, 15.0),
        )
    ]  # fmt: skip
    compared = {row["rung"]: row["compared"] for row in compare([DELAY], runs)}
    assert compared == {"links": 11.0, "held": 15.0, "gateway": 13.0}


def test_bytes_across_zones_are_compared_where_they_were_counted() -> None:
    runs = [
        Measured("delay", rung, 0, {"p50 ms": 1.0, **({CROSSED: crossed} if crossed else {})}, Usage(1.0))
        for rung, crossed in (
            (Rung(STOCK, OwnStore.LOCAL), 80.0), (LINKS, 2.0), (Rung("links-s3", OwnStore.S3_NATIVE), None)
        )
    ]  # fmt: skip
    assert [(row["rung"], row["compared"]) for row in compare([DELAY], runs) if row["figure"] == CROSSED] == [
        ("links", 0.025)
    ]


METRICS = """\
# TYPE process_cpu_seconds_total counter
process_cpu_seconds_total 1.5
# TYPE remote_wal_replicated_record_bytes_total counter
remote_wal_replicated_record_bytes_total{path="linked"} 900.0
remote_wal_replicated_record_bytes_total{path="inline"} 100.0
# TYPE remote_wal_peer_bytes_total counter
remote_wal_peer_bytes_total{role="leader",direction="sent"} 40.0
remote_wal_peer_bytes_total{role="leader",direction="received"} 10.0
remote_wal_peer_bytes_total{role="follower",direction="sent"} 10.0
# TYPE remote_wal_topic_record_bytes_total counter
remote_wal_topic_record_bytes_total{topic="orders",path="linked"} 99.0
remote_wal_topic_record_bytes_total{topic="orders",path="inline"} 1.0
# TYPE remote_wal_faults_total counter
remote_wal_faults_total{reason="link_wait_timeout"} 3.0
remote_wal_faults_total{reason="peer_idle"} 0.0
# TYPE remote_wal_stage_seconds histogram
remote_wal_stage_seconds_bucket{stage="fetched",le="0.002"} 0.0
remote_wal_stage_seconds_bucket{stage="fetched",le="0.004"} 4.0
remote_wal_stage_seconds_bucket{stage="fetched",le="+Inf"} 4.0
remote_wal_stage_seconds_count{stage="fetched"} 4.0
remote_wal_stage_seconds_bucket{stage="uploaded",le="0.005"} 0.0
remote_wal_stage_seconds_bucket{stage="uploaded",le="0.01"} 4.0
remote_wal_stage_seconds_bucket{stage="uploaded",le="+Inf"} 4.0
remote_wal_stage_seconds_count{stage="uploaded"} 4.0
remote_wal_stage_seconds_sum{stage="uploaded"} 0.03
# TYPE remote_wal_led_partitions gauge
remote_wal_led_partitions 7.0
"""


def test_figures_of_two_readings_give_what_happened_in_between_and_count_each_connection_once() -> None:
    figures = parse_metrics(METRICS)
    assert figures.zone_bytes == 50.0
    assert figures.stages_ms()["uploaded"]["p50"] == 7.5
    nothing = figures.subtract(figures)
    assert (nothing.cpu_s, nothing.linked_bytes, nothing.zone_bytes) == (0.0, 0.0, 0.0)
    assert (figures + figures).inline_bytes == 200.0


def test_agents_are_held_against_the_brokers_beside_them_and_links_against_their_own_topics() -> None:
    figures = parse_metrics(METRICS)
    runs = [by_agents(number, figures) for number in range(2)]
    (row,) = agent_rows(runs)
    assert row["cpu_of_brokers"] == 0.75
    assert row["linked_share"] == 0.99
    assert row["put_and_get_ms"] == 10.5


def failed(rung: str, number: int, reason: str = "5 records were not acknowledged") -> Measured:
    return Measured("rate", Rung(rung, OwnStore.LOCAL), number, {}, Usage(90.0), reason)


def test_a_load_that_was_not_kept_up_with_is_told_in_its_line_and_row() -> None:
    runs = [measured(RATE, STOCK, 0, 10.0), failed("links", 0)]
    assert line_of(runs[1]) == "rate, links, round 1: not kept up with: 5 records were not acknowledged"
    (row,) = compare([RATE], runs)
    assert (row["stock"], row["value"], row["compared"], row["compared_min"]) == (10.0, None, None, None)
    assert row["not_kept_up_with"] == ["links, round 1: 5 records were not acknowledged"]


def test_rounds_that_were_kept_up_with_on_both_sides_are_compared_each_with_its_own() -> None:
    runs = [
        measured(RATE, STOCK, 0, 10.0),
        measured(RATE, "links", 0, 9.0),
        failed(STOCK, 1),
        measured(RATE, "links", 1, 3.0),
        measured(RATE, STOCK, 2, 10.0),
        failed("links", 2),
        measured(RATE, STOCK, 3, 100.0),
        measured(RATE, "links", 3, 90.0),
    ]
    (row,) = compare([RATE], runs)
    assert row["compared"] == row["compared_min"] == row["compared_max"] == 0.9
    assert [told[:16] for told in row["not_kept_up_with"]] == ["stock, round 2: ", "links, round 3: "]


@pytest.mark.parametrize(("inline", "is_void"), [("1.0", False), ("2.0", True)])
def test_where_links_are_wanted_for_every_byte_a_row_with_too_much_inline_is_void(
    inline: str, is_void: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    more_inline = METRICS.replace('path="inline"} 1.0', f'path="inline"}} {inline}')
    counted = parse_metrics(more_inline)
    runs = [measured(RATE, STOCK, 0, 10.0)]
    runs += [
        by_agents(0, counted, Rung(name, OwnStore.LOCAL, settings))
        for name, settings in (("links", LINKED), ("cost", TopicSettings(enable=True)))
    ]
    told = {
        row["rung"]: (row["void"], agents["void"])
        for row, agents in zip(compare([RATE], runs), agent_rows(runs), strict=True)
    }
    assert told == {"links": (is_void, is_void), "cost": (False, False)}
    assert ["void" in line_of(run) for run in runs] == [False, is_void, False]
    print_tables([RATE], runs)
    assert capsys.readouterr().out.count("void") == 2 * is_void


def test_the_tables_show_every_comparison_and_what_the_agents_did(capsys: pytest.CaptureFixture[str]) -> None:
    counted = parse_metrics(METRICS)
    print_tables([RATE], [measured(RATE, STOCK, 0, 10.0), by_agents(0, counted)])
    shown = capsys.readouterr().out
    for figure in ("0.90x", "0.50", "5.00%", "uploaded 7.5/10", "link_wait_timeout"):
        assert figure in shown


def test_json_is_written_for_a_run_that_was_cut_short(tmp_path: Path) -> None:
    runs = [measured(RATE, STOCK, 0, 10.0), measured(RATE, "links", 0, 9.0)]
    write_json(tmp_path / "ladder.json", [RATE, DELAY], runs, rounds=3)
    written = json.loads((tmp_path / "ladder.json").read_text())
    assert written["rounds"] == [
        {"workload": "rate", "rung": "links" if number else STOCK, "round": 0, "seconds": 1.0, "MB/s": value}
        for number, value in enumerate((10.0, 9.0))
    ]
    assert Counters().stages_ms() == {}
