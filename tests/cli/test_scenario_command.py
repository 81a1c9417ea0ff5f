"""`remote-wal scenario`: what a workload would cost."""

import dataclasses
import json
import math
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cli.main import build_app, is_own_error
from retention_job.cost.scenarios import ScenarioError, Workload


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(build_app(), ["scenario", *arguments])


def test_the_kips_table_is_printed_as_json_and_nothing_else() -> None:
    found = invoke("kip-1176", "--json")
    assert found.exit_code == 0
    told = json.loads(found.stdout)
    assert math.floor(told["baseline"]["total"]) == round(told["baseline"]["total"]) == 2478
    assert math.floor(told["remote_wal"]["total"]) == round(told["remote_wal"]["total"]) == 1424


def test_parameters_and_prices_are_set_on_the_command_line(tmp_path: Path) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text(
        Path("plugin/prices.toml").read_text().replace("put_per_1000 = 0.00113", "put_per_1000 = 0.00226")
    )
    usual = json.loads(invoke("today", "--json").stdout)
    options = (
        "--set",
        "interval_ms=80",
        "--set",
        "zones=5",
        "--set",
        "replication_factor=5",
        "--set",
        "remote_followers=4",
        "--prices",
        str(prices),
        "--json",
    )
    changed = json.loads(invoke("today", *options).stdout)
    # Half the objects (a round of producers takes 40 ms), read by twice as many, at twice the price of a PUT.
    assert changed["remote_wal"]["put_requests"] == pytest.approx(usual["remote_wal"]["put_requests"], rel=1e-4)
    assert changed["remote_wal"]["get_requests"] == pytest.approx(usual["remote_wal"]["get_requests"], abs=0.01)
    assert changed["overridden_parameters"] == ["interval_ms", "zones", "replication_factor", "remote_followers"]


def test_the_text_tells_of_the_parameters_and_what_the_percentage_contains() -> None:
    shown = " ".join(invoke("today", "--set", "rate_mb_s=10", "--set", "interval_ms=50").stdout.split())
    for text in (
        "prices (but with your rate_mb_s, interval_ms). 3 brokers",
        "10 MB/s to each",
        "an object each 50 ms",
        "object storage and replication across zones. Clients'",
        "Where links would hold such producers back",
    ):
        assert text in shown
    assert "30 MB/s" not in shown
    assert "without get requests and metadata" in " ".join(invoke("kip-1176").stdout.split())
    assert "22.9 % more paid" in invoke("small-recovery").stdout


@pytest.mark.parametrize(
    ("set_", "told"),
    [
        ("acks=all", "no parameter has this name; producers_wait=true stands for acks=all, and false for acks=1; "),
        ("rate=10", "no parameter has this name (is rate_mb_s meant?); `remote-wal scenario` lists all"),
        ("fast", "not parameter=value, such as rate_mb_s=10; `remote-wal scenario` lists all"),
    ],
)
def test_a_parameter_that_does_not_exist_is_answered_by_the_one_that_does(set_: str, told: str) -> None:
    assert told in str(invoke("today", "--set", set_).exception)


def test_parameters_are_listed_with_their_meaning() -> None:
    told = json.loads(invoke("--json").stdout)["parameters"]
    assert told.keys() == {field.name for field in dataclasses.fields(Workload)} | {"prices"}
    assert all(told.values())
    assert "producers_wait" in invoke().stdout


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("kip-1177",), ScenarioError),
        (("today", "--set", "colour=red"), ScenarioError),
        (("today", "--set", "zones=3", "--set", "zones=4"), ScenarioError),
        (("kip-1176", "--prices", "plugin/prices.toml"), ScenarioError),
    ],
)
def test_errors_are_ours_and_so_one_line(arguments: tuple[str, ...], error: type[Exception]) -> None:
    found = invoke(*arguments)
    assert isinstance(found.exception, error)
    assert is_own_error(found.exception)
    assert "\n" not in str(found.exception)
