import dataclasses
import io
from collections import Counter
from typing import Any

import pytest
from rich.console import Console

from demo.measurement import LINKED, Moment
from demo.plan import ALL_TOPICS, WAYS, plan_for
from demo.presentation import show_introduction, show_report
from demo.report import (
    Replicas,
    ZoneBytes,
    cost_per_gb,
    moved_between,
    records_of,
    traffic_between,
)
from local_cluster.agent_metrics import Counters
from local_cluster.object_store.store_spec import OwnStore
from local_cluster.workload.ledger import LedgerReport, ProducerReport
from plugin.prices import Prices
from tests.demo.reports import RECORDS, report


def test_a_gigabyte_costs_its_requests_and_what_still_crosses() -> None:
    zone_bytes = ZoneBytes(with_links=20_000_000, stock=1_000_000_000, metadata=0)
    cost = cost_per_gb(zone_bytes, 500_000_000, requests_usd=0.003, crossing_usd_per_gb=0.02)
    assert cost is not None
    assert cost.remote_wal_requests == pytest.approx(0.006)
    assert cost.remote_wal_zone == pytest.approx(0.0008)
    assert cost.remote_wal == pytest.approx(0.0068)
    assert cost.stock == pytest.approx(0.04)


def series(name: str, value: float, **labels: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {(name, tuple(sorted(labels.items()))): value}


def counted(factor: float) -> Counters:
    return Counters(
        series("remote_wal_peer_bytes_total", 1000 * factor, role="leader", direction="sent")
        | series("remote_wal_peer_bytes_total", 100 * factor, role="leader", direction="received")
        # The same bytes at the other end.
        | series("remote_wal_peer_bytes_total", 1100 * factor, role="follower", direction="received")
        | series("remote_wal_stock_bytes_total", 19_000 * factor, direction="response")
        | series("remote_wal_stock_bytes_total", 1000 * factor, direction="request")
        | series("remote_wal_store_requests_total", 7 * factor, operation="put")
        | series("remote_wal_store_requests_total", 14 * factor, operation="get")
        | series("remote_wal_uploaded_segments_total", 6 * factor)
        | series("remote_wal_appended_bytes_total", 9000 * factor)
    )


def test_a_phase_counts_each_connection_once_and_charges_our_own_topics_to_us() -> None:
    before = Moment(1.0, counted(1), 10, 0.0)
    after = Moment(3.0, counted(3), 60, 0.0)
    traffic = traffic_between(before, after, Prices.load(), OwnStore.LOCAL)
    assert traffic.zone_bytes == ZoneBytes(with_links=2 * 1100 + 50, stock=2 * 20_000 - 2 * 50, metadata=50)
    assert (traffic.objects, traffic.requests) == (12, {"put": 14, "get": 28})
    assert traffic.produced_bytes == 18_000
    assert traffic.link_share is None
    assert traffic.traffic_seconds == 2.0


def test_each_way_has_what_its_own_topic_moved_in_its_phase() -> None:
    before = Moment(1.0, Counters(), 0, 0.0, Counter({("a", LINKED): 5, ("a", "look"): 7}))
    after = Moment(2.0, Counters(), 0, 0.0, Counter({("a", LINKED): 15, ("a", "look"): 7, ("b", LINKED): 100}))
    assert moved_between(before, after, "a") == {LINKED: 10}


def producer(name: str, **counts: int) -> ProducerReport:
    fields = dict.fromkeys((field.name for field in dataclasses.fields(ProducerReport) if field.name != "name"), 0)
    return ProducerReport(name, **{**fields, **counts})


def test_what_acks_1_lost_with_its_leader_breaks_no_promise() -> None:
    ledger = LedgerReport((producer("acks=1", lost=5, duplicates=2, at_wrong_offset=1), producer("zstd")), 0)
    records = records_of(ledger, ["acks=1"], sent=10, acknowledged=10, consumed=10)
    assert (records.lost, records.lost_acks_1, records.duplicates, records.altered) == (0, 5, 0, 0)
    assert report(records).broken_promises == ()


def test_records_of_producer_performance_that_are_not_read_are_lost() -> None:
    records = records_of(LedgerReport((), 0), [], sent=12, acknowledged=10, consumed=7)
    assert records.lost == 3
    assert report(records).broken_promises


@pytest.mark.parametrize("promise", ["lost", "reordered", "duplicates", "altered", "aborted_but_read", "foreign"])
def test_each_broken_promise_has_its_line(promise: str) -> None:
    broken = report(dataclasses.replace(RECORDS, **{promise: 2})).broken_promises
    assert len(broken) == 1
    assert broken[0].startswith("2 records")


@pytest.mark.parametrize("replicas", [Replicas(0, 0), Replicas(1, 5, ("broker 2 differs",))])
def test_replicas_that_differ_or_were_not_compared_break_the_promise(replicas: Replicas) -> None:
    assert len(report(replicas=replicas).broken_promises) == 1


def shown(console_width: int, **changes: Any) -> str:
    console = Console(width=console_width, file=io.StringIO())
    show_introduction(console, OwnStore.LOCAL)
    show_report(console, dataclasses.replace(report(), **changes))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [80, 150])
def test_people_are_shown_the_figures_and_no_line_is_wider_than_the_terminal(width: int) -> None:
    text = shown(width)
    assert max(map(len, text.splitlines())) <= width
    assert "─▶│ agents   brokers │" in text
    assert "  of it requests and their bytes  " in text
    parts = ("10.0 MB", "2,000 MB", "0.5 %", "$0.0400", "$0.0058", "identical", "3.0 MB went inline")
    for part in (*parts, "acks=all by agents", "99.0 %", "0.3 MB held_up"):
        assert part in text, part
    assert "every promise held" in text


def test_the_account_of_followers_bytes_adds_up_and_has_no_bytes_of_others() -> None:
    lines = [" ".join(line.split()) for line in shown(80).splitlines()]

    def figures(title: str) -> list[str]:
        return next(line for line in lines if line.startswith(title)).removeprefix(title).split()

    # What agents pack for clients would exceed what followers get inline.
    assert figures("followers got, in two copies") == ["2,000", "MB"] * 3
    assert figures("as links") == ["1,900", "MB"] * 3
    assert figures("the share of links") == ["95.0", "%"] * 3
    assert figures("inline, packed on the way") == ["100", "MB"] * 3
    assert figures("crossed zones, all told") == ["10.0", "MB"] * 3
    assert not any("18.0 MB" in line for line in lines)
    picture = next(line for line in lines if "─▶│ agents" in line)
    assert "links, packed: 10.0 MB" in picture


def test_every_plan_covers_both_acks_all_codecs_and_transactions() -> None:
    for store in OwnStore:
        for quick in (False, True):
            plan = plan_for(store, quick=quick)
            assert [run.way for run in plan.paced] == [run.way for run in plan.saturated] == list(WAYS)
            producers = plan.ledger_producers()
            assert {producer.codec for producer in producers} == {"none", "gzip", "snappy", "lz4", "zstd"}
            assert {producer.acks for producer in producers} == {"1", "all"}
            assert any(producer.transaction for producer in producers)
    assert len(ALL_TOPICS) == 2 + len(WAYS)
