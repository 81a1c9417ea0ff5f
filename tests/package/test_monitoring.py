"""The alerts and the board in deploy/: they can be read, they name what agents tell, and each alert is explained."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client import CollectorRegistry, ProcessCollector

from tests.package.bare_environment import ROOT

RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
BOARD: dict[str, Any] = json.loads((ROOT / "deploy" / "grafana" / "remote-wal.json").read_text())
RUNBOOKS = (ROOT / "docs" / "runbooks.md").read_text()
OF_PROMETHEUS = {"job", "instance", "le"}
OF_NODE_EXPORTER = {
    "node_systemd_unit_state": {"name", "state", "type"},
    "node_systemd_timer_last_trigger_seconds": {"name"},
}


def told() -> dict[str, set[str]]:
    """The metrics that agents tell, as samples, with their labels."""
    metrics: dict[str, set[str]] = {"up": set()}
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| ([^|]*)\|", (ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE)
    for name, kind, labels in rows:
        names = [f"{name}_{part}" for part in ("bucket", "sum", "count")] if kind == "histogram" else [name]
        metrics |= dict.fromkeys(names, {label.strip() for label in labels.split(",")} - {""})
    process = ProcessCollector(registry=CollectorRegistry())
    metrics |= {sample.name: set() for family in process.collect() for sample in family.samples}
    of_report = (ROOT / "docs" / "report.md").read_text()
    assert "remote_wal_report_findings_by_severity" in of_report
    return metrics | {"remote_wal_report_findings_by_severity": {"severity"}} | OF_NODE_EXPORTER


def expressions() -> Iterator[tuple[str, str]]:
    for rule in RULES:
        yield rule["alert"], rule["expr"]
    for panel in BOARD["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], _filled(target["expr"])
    for annotation in BOARD["annotations"]["list"]:
        yield annotation["name"], _filled(annotation["expr"])


def _filled(expression: str) -> str:
    return expression.replace("$__rate_interval", "5m").replace("$__range", "3h").replace("$instance", "kafka-1")


def selectors(expression: Any) -> Iterator[Any]:
    if isinstance(expression, promql_parser.VectorSelector):
        yield expression
    for part in ("lhs", "rhs", "expr", "vector_selector", "param"):
        inner = getattr(expression, part, None)
        if inner is not None:
            yield from selectors(inner)
    for argument in getattr(expression, "args", ()):
        yield from selectors(argument)


@pytest.mark.parametrize(("name", "expression"), [*expressions()])
def test_what_is_asked_for_is_told_by_that_name_with_those_labels(name: str, expression: str) -> None:
    known = told()
    found = list(selectors(promql_parser.parse(expression)))
    assert found, name
    for one in found:
        assert one.name in known, name
        labels = {matcher.name for matcher in one.matchers.matchers}
        assert labels <= known[one.name] | OF_PROMETHEUS, name


def test_the_board_is_chosen_by_cluster_and_then_by_agent() -> None:
    queries = {one["name"]: one["query"]["query"] for one in BOARD["templating"]["list"] if one["type"] == "query"}
    assert queries == {
        "cluster": "label_values(remote_wal_agent_info, cluster)",
        "instance": 'label_values(remote_wal_agent_info{cluster=~"$cluster"}, instance)',
    }
    assert told()["remote_wal_agent_info"] == {"cluster", "zone", "broker"}


def test_each_alert_has_a_severity_and_a_runbook_of_its_own() -> None:
    headings = re.findall(r"^### (\w+)$", RUNBOOKS, re.MULTILINE)
    assert sorted(headings) == sorted(rule["alert"] for rule in RULES)
    for rule in RULES:
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["runbook"] == f"docs/runbooks.md#{rule['alert'].lower()}"


def test_the_board_leads_to_runbooks_that_are_there() -> None:
    urls = [link["url"] for panel in BOARD["panels"] for link in panel.get("links", ())]
    assert len(urls) > 10
    headings = {f"${{docs}}/runbooks/#{name.lower()}" for name in re.findall(r"^### (\w+)$", RUNBOOKS, re.MULTILINE)}
    assert set(urls) <= headings
    assert "docs" in {one["name"] for one in BOARD["templating"]["list"]}


def test_dollars_of_the_board_are_those_of_the_chosen_time() -> None:
    [saved] = [panel for panel in BOARD["panels"] if panel["title"].startswith("Saved")]
    [target] = saved["targets"]
    assert target["expr"].count("increase(") == target["expr"].count("[$__range]") == 2


def test_no_range_of_the_board_is_shorter_than_its_steps() -> None:
    """Grafana asks in steps that grow with the time shown: a fixed range would miss what happens between two."""
    text = json.dumps(BOARD)
    assert set(re.findall(r"\[([^\]\s]*?)\]\)", text)) == {"$__rate_interval", "$__range"}


def test_bytes_are_decimal_and_a_share_is_drawn_from_0_to_1() -> None:
    drawn = [p["fieldConfig"]["defaults"] for p in BOARD["panels"] if p["type"] == "timeseries"]
    assert "bytes" not in {one["unit"] for one in drawn}
    assert {(one.get("min"), one.get("max")) for one in drawn if one["unit"] == "percentunit"} == {(0, 1)}


def test_reasons_that_alerts_look_for_are_counted() -> None:
    behaviour = (ROOT / "docs" / "runbooks.md").read_text()
    reasons = [
        reason
        for _, expression in expressions()
        for told_by in re.findall(r'reason=~?"([^"]*)"', expression)
        for reason in told_by.split("|")
    ]
    assert len(reasons) > 5
    assert [reason for reason in reasons if reason.removesuffix(".*") not in behaviour] == []


def test_panels_of_the_board_do_not_lie_upon_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells


def test_prometheus_and_grafana_of_the_compose_file_find_them() -> None:
    compose = yaml.safe_load((ROOT / "deploy" / "container" / "compose.yaml").read_text())
    mounts = {
        name: [str(volume).split(":")[0] for volume in compose["services"][name]["volumes"]]
        for name in ("prometheus", "grafana")
    }
    directory = ROOT / "deploy" / "container"
    found = {(directory / Path(mount)).resolve() for mounted in mounts.values() for mount in mounted if "/" in mount}
    assert {ROOT / "deploy" / "prometheus", ROOT / "deploy" / "grafana"} <= found


def test_checks_that_did_not_run_or_failed_are_looked_for_by_their_units_names() -> None:
    units = {path.name for path in (ROOT / "deploy" / "systemd").iterdir()}
    found = [
        matcher
        for rule in RULES
        for one in selectors(promql_parser.parse(rule["expr"]))
        for matcher in one.matchers.matchers
        if one.name in OF_NODE_EXPORTER and matcher.name == "name"
    ]
    matched = {unit for unit in units for matcher in found if re.fullmatch(matcher.value, unit)}
    assert matched == {unit for unit in units if re.fullmatch(r"remote-wal-(verify|drill)[.](service|timer)", unit)}
    assert len(matched) == 4


@pytest.mark.parametrize("timer", ["remote-wal-verify.timer", "remote-wal-drill.timer"])
def test_a_timer_that_was_enabled_today_is_not_overdue(timer: str) -> None:
    """Its last run is told as 0 until there is one, which is 1970."""
    [rule] = [rule for rule in RULES if rule["alert"] == "RemoteWalCheckOverdue"]
    last = re.escape(f'node_systemd_timer_last_trigger_seconds{{name="{timer}"}}')
    assert re.search(rf"\({last} > 0\)|and {last} offset 3d$", rule["expr"], re.MULTILINE)
