"""`remote-wal report` without a cluster: scenarios, and wrong commands."""

import json
import math
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cli.main import OWN_ROOMS, build_app, is_own_error
from cli.report_job import run_id_of
from cli.report_sources import Inventories, report_sources
from plugin.prices import PriceError
from retention_job.cost.cost_tables import StoreSections
from retention_job.cost.scenario_model import ScenarioError
from retention_job.settings import InventoryFile, KafkaSource, StoreListing


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(build_app(), ["report", *arguments])


def test_the_kips_table_is_printed_as_json_and_nothing_else() -> None:
    found = invoke("--scenario", "kip-1176", "--json", "-")
    assert found.exit_code == 0
    told = json.loads(found.stdout)
    assert math.floor(told["baseline"]["total"]) == round(told["baseline"]["total"]) == 2478
    assert math.floor(told["remote_wal"]["total"]) == round(told["remote_wal"]["total"]) == 1424


def test_parameters_and_prices_are_set_on_the_command_line(tmp_path: Path) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text(
        Path("plugin/prices.toml").read_text().replace("put_per_1000 = 0.00113", "put_per_1000 = 0.00226")
    )
    usual = json.loads(invoke("--scenario", "today", "--json", "-").stdout)
    target = tmp_path / "scenario.json"
    options = ("--set", "interval_ms=50", "--set", "readers=4", "--prices", str(prices), "--json", str(target))
    assert invoke("--scenario", "today", *options).exit_code == 0
    changed = json.loads(target.read_text())
    # Half the objects, read by twice as many, at twice the price of a PUT.
    assert changed["remote_wal"]["put_requests"] == pytest.approx(usual["remote_wal"]["put_requests"], rel=1e-4)
    assert changed["remote_wal"]["get_requests"] == pytest.approx(usual["remote_wal"]["get_requests"], abs=0.01)
    assert changed["overridden_parameters"] == ["interval_ms", "readers"]


def test_scenarios_are_listed_and_shown_to_people() -> None:
    listed = invoke("--scenario", "list")
    assert "kip-1176" in listed.stdout
    assert "today-acks-1" in listed.stdout
    shown = invoke("--scenario", "kip-1176")
    assert "2,478.07" in shown.stdout
    assert "1,424.28" in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 100


def test_without_cluster_and_scenario_the_command_is_wrong() -> None:
    assert invoke().exit_code == 2
    assert invoke("--bootstrap-server", "127.0.0.1:1", "--set", "readers=4").exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--scenario", "kip-1177"), ScenarioError),
        (("--scenario", "today", "--set", "colour=red"), ScenarioError),
    ],
)
def test_errors_are_ours_and_so_one_line(arguments: tuple[str, ...], error: type[Exception]) -> None:
    found = invoke(*arguments)
    assert isinstance(found.exception, error)
    assert is_own_error(found.exception)
    assert "\n" not in str(found.exception)


def test_a_missing_price_ends_the_command(tmp_path: Path) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text(Path("plugin/prices.toml").read_text().replace("instance_hour = 0.904", ""))
    found = invoke("--scenario", "today", "--prices", str(prices))
    assert isinstance(found.exception, PriceError)
    assert "broker.instance_hour" in str(found.exception)


def test_runs_are_named_by_their_time() -> None:
    assert run_id_of(1_763_700_000_123) == "20251121T044000123Z"
    assert run_id_of(1_763_700_000_123) < run_id_of(1_763_700_000_124)


def test_the_script_for_spark_submit_runs_from_a_zip_and_hides_no_room(tmp_path: Path) -> None:
    packages = tmp_path / "remote-wal.zip"
    with zipfile.ZipFile(packages, "w") as zipped:
        for room in sorted(OWN_ROOMS):
            for file in Path(room).rglob("*.*"):
                if "__pycache__" not in file.parts:
                    zipped.write(file)
    script = Path("cli/spark_submit.py").resolve()
    check = (
        "import runpy, sys\n"
        f"sys.path.insert(0, {str(script.parent)!r})\n"
        f"sys.argv = ['remote-wal', 'report', '--scenario', 'today', '--json', '-']\n"
        "try:\n"
        f"    runpy.run_path({str(script)!r}, run_name='__main__')\n"
        "except SystemExit as end:\n"
        "    assert not end.code, end.code\n"
        "import agent.settings.agent_settings\n"
        f"assert agent.__file__.startswith({str(packages)!r}), agent.__file__\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(packages)}
    done = subprocess.run(
        [sys.executable, "-c", check],
        check=False,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["remote_wal"]["total"] > 0


@pytest.mark.parametrize("archives", [True, False])
def test_the_archive_is_listed_where_the_brokers_agent_archives(tmp_path: Path, archives: bool) -> None:
    broker_config = tmp_path / "server.properties"
    broker_config.write_text(
        f"node.id=1\nprocess.roles=broker\nlog.dirs={tmp_path / 'log'}\nlisteners=PLAINTEXT://:9092\n"
        f"remote.wal.archive.enable={str(archives).lower()}\nremote.wal.archive.delete.grace.ms=5000\n"
        "rsm.wal.archive.config.bucket=cold\n"
    )
    sources, sections = report_sources(KafkaSource("b:1"), "cluster", broker_config, Inventories(), "state", False)
    assert sections == StoreSections("s3_express", "s3_standard")
    assert sources.life_times.archive_delete_grace_ms == 5000
    listing = StoreListing({"bucket": "cold"}, "cluster", "plugin.s3.S3WalStorageManager", None, "s3_standard")
    assert sources.archive == (listing if archives else None)
    given = Inventories(archive=(InventoryFile("s3a://cold-inventory", "cluster"),))
    assert report_sources(KafkaSource("b:1"), "cluster", broker_config, given, "state", False)[0].archive == given[1]
