"""The page: all findings, escaped, and nothing from elsewhere."""

import json
import re
from dataclasses import replace
from html import escape
from html.parser import HTMLParser

import pytest
from prometheus_client.parser import text_string_to_metric_families

from retention_job.page.html_report import html_report, money, plots, svg
from retention_job.page.report_data import Costs, DayCosts, Objects, ReportData, report_json
from retention_job.page.textfile import textfile
from tests.retention_job.page.sample_report import HOSTILE, sample_report

_VOID = {"meta", "br", "path", "use", "line", "rect", "circle", "polygon"}


class _Page(HTMLParser):
    """Remembers tags, and holds that each is closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.references: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.references += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.references += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]

    def handle_endtag(self, tag: str) -> None:
        if tag not in _VOID:
            assert self.open.pop() == tag


@pytest.fixture(scope="module")
def page() -> str:
    return html_report(sample_report())


def test_everybody_is_told_what_kafkas_own_follower_fetching_saves(page: str) -> None:
    data = sample_report()
    directly = html_report(replace(data, costs=replace(data.costs, clients=())))
    for found in (page, directly):
        assert found.count("(KIP-392)") == 1
        assert "A consumer group in 3 zones" in found
        assert "for $840" in found
    assert "KIP-392" not in html_report(replace(data, costs=replace(data.costs, group=None)))


def test_the_page_has_each_finding_with_what_heals_it_escaped(page: str) -> None:
    data = sample_report()
    for finding in data.findings:
        for text in (finding.kind, finding.topic, finding.segment, finding.detail, finding.heal):
            if text is not None:
                assert escape(text, quote=True).replace("&#x27;", "&#39;") in page
    assert HOSTILE not in page
    assert "<b>bold</b>" not in page


def test_every_row_of_a_table_has_a_cell_under_each_heading(page: str) -> None:
    tables = re.findall(r"<table>(.*?)</table>", page, re.DOTALL)
    assert len(tables) > 5
    for table in tables:
        headings = re.findall(r"<th[ >]", table)
        rows = [row for row in re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL) if "<td" in row]
        assert [len(re.findall(r"<td[ >]", row)) for row in rows] == [len(headings)] * len(rows)


def test_the_sums_at_the_top_add_up_and_say_what_they_leave_out(page: str) -> None:
    tiles = dict(
        re.findall(r'<div class="tile"><b(?: class="\w*")?>([^<]*)</b>(with remote WAL|stock Kafka|saved)<', page)
    )
    paid, stock, saved = (float(usd.replace("$", "").replace(",", "")) for usd in tiles)
    assert list(tiles.values()) == ["with remote WAL", "stock Kafka", "saved"]
    assert stock - paid == pytest.approx(saved, abs=1)
    assert "1 of 8 days (2026-11-13) are in no sum: usage records do not tell of every broker there" in page


def test_a_loss_is_not_shown_as_a_gain_and_the_unknown_as_neither() -> None:
    data = sample_report()

    def shown(days: list[DayCosts]) -> str:
        page = html_report(replace(data, costs=replace(data.costs, days=days)))
        (tile,) = re.findall(r'<div class="tile"><b class="(\w*)">[^<]*</b>saved<', page)
        told = re.findall(r'<span class="(\w*)">\$[\d.]+ (?:saved|more paid)</span> against', page)
        assert told == ([tile] if tile else [])
        return str(tile)

    of_day = data.costs.days[1]
    assert shown([of_day]) == "good"
    assert shown([replace(of_day, stock_usd=0.1)]) == "critical"
    assert shown([replace(of_day, stock_usd=None)]) == ""


def test_the_page_tells_what_clients_of_each_zone_pay_by_each_way(page: str) -> None:
    known, partly = re.findall(r"<tr><td>(?:eu-central-1a|&lt;b&gt;az2&lt;/b&gt;)</td>.*?</tr>", page)
    for text in ("$65.60", "$49.20", "$45.10", "$20.50", "820.0 GB", "410.0 GB", "2.5 TB", "1.6 TB"):
        assert f">{text}</td>" in known
    assert "$6.48 to $5.40" in partly, "nobody looked at all answers there"
    assert "36.0 GB to 90.0 GB" in partly
    assert "lies between the two figures" in page


def test_without_a_gateway_the_page_says_nothing_of_clients() -> None:
    data = sample_report()
    page = html_report(replace(data, costs=replace(data.costs, clients=[])))
    assert "Clients by zone" not in page
    assert "come by gateways" not in page


def test_the_page_needs_nothing_from_elsewhere(page: str) -> None:
    parsed = _Page(page)
    assert "script" not in parsed.tags
    assert all(reference.startswith("#") for reference in parsed.references)


def test_a_topic_with_markup_in_its_name_stays_text_in_the_plots() -> None:
    data = sample_report()
    named = replace(data.costs.topics[0], topic="<script>$x$</script>")
    data = replace(data, costs=replace(data.costs, topics=[named, *data.costs.topics[1:]]))
    drawn = svg(plots(data)["cost_by_topic"])
    assert "<script" not in drawn
    assert "&lt;script&gt;" in drawn


def test_what_is_unknown_is_called_so(page: str) -> None:
    row = re.search(r"<tr><td>legacy</td>.*?</tr>", page)
    assert row is not None
    assert row.group().count("unknown") >= 2
    assert "$0</td>" not in row.group()


def test_the_same_report_gives_the_same_page(page: str) -> None:
    assert html_report(sample_report()) == page


def test_a_report_of_an_empty_cluster_is_a_page_as_well() -> None:
    costs = Costs("prices.toml", "2026-10-04", 0.0, 0.0, [], [], [])
    empty = ReportData("r", 0, None, False, 0, [], [], {}, costs, Objects())
    assert plots(empty) == {}
    assert "None." in html_report(empty)
    assert "Nothing to look at." in html_report(empty)
    assert b"remote_wal_report_saved_dollars" not in textfile(empty)


def test_the_textfile_parses_and_holds_the_reports_figures() -> None:
    data = sample_report()
    samples = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(textfile(data).decode())
        for sample in family.samples
    }
    assert samples["remote_wal_report_findings_by_severity", "critical"] == 1
    assert samples["remote_wal_report_findings", "object_without_metadata", "warning"] == 1
    assert samples["remote_wal_report_quarantined_records",] == 3
    assert samples["remote_wal_report_saved_dollars",] == data.costs.saved_usd
    assert samples["remote_wal_report_cost_dollars", "put"] == data.costs.parts["put_usd"]
    assert ("remote_wal_report_topic_saved_dollars", "legacy") not in samples
    ways = {way: samples["remote_wal_report_clients_dollars", *sorted(("eu-central-1a", way))] for way in
            ("direct", "follower_fetching", "gateway")}  # fmt: skip
    assert ways == pytest.approx({"direct": 65.6, "follower_fetching": 49.2, "gateway": 45.1})
    assert samples["remote_wal_report_cost_dollars", "clients_crossing"] == data.costs.parts["clients_crossing_usd"]


def test_json_has_the_sums_and_null_for_what_is_unknown() -> None:
    data = sample_report()
    told = json.loads(json.dumps(report_json(data)))
    assert told["costs"]["saved_usd"] == data.costs.saved_usd
    assert told["costs"]["days"][0]["saved_usd"] is None
    assert told["findings"][0]["kind"] == "deleted_too_early"
    assert told["costs"]["clients"][0]["zone"] == "eu-central-1a"
    assert told["costs"]["group"] == {"zones": 3, "crossed_bytes": 4.2e13, "crossed_usd": 840.0}
    assert told["costs"]["clients"][0]["dollars"]["saved_usd"] == data.costs.clients[0].dollars["saved_usd"]


def test_money_is_short_and_never_rounds_to_nothing() -> None:
    assert [money(usd) for usd in (0, 0.004, 0.000012, 3.456, 1234.5, -7)] == [
        "$0", "$0.004", "$1.2e-05", "$3.46", "$1,234", "-$7.00",
    ]  # fmt: skip
