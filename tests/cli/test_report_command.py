"""`remote-wal report` without a cluster."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.costs.report_job import _kafka_source, report_sources, run_id_of
from cli.main import OWN_PACKAGES, build_app
from kafka_cluster.errors import ClientPropertyError
from plugin.loading import ARCHIVE_IMPL_PREFIX, StorageSpec
from retention_job.settings import KafkaSource, LifeTimes, StoreListing, StoreSections


def test_without_a_cluster_the_command_is_wrong() -> None:
    assert CliRunner().invoke(build_app(), ["report"]).exit_code == 2


def test_runs_are_named_by_their_time() -> None:
    assert run_id_of(1_763_700_000_123) == "20251121T044000123Z"
    assert run_id_of(1_763_700_000_123) < run_id_of(1_763_700_000_124)


def test_the_script_for_spark_submit_runs_from_a_zip_and_hides_no_package(tmp_path: Path) -> None:
    packages = tmp_path / "remote-wal.zip"
    with zipfile.ZipFile(packages, "w") as zipped:
        for package in sorted(OWN_PACKAGES):
            for file in Path(package).rglob("*.*"):
                if "__pycache__" not in file.parts:
                    zipped.write(file)
    script = Path("cli/spark_submit.py").resolve()
    check = (
        "import runpy, sys\n"
        f"sys.path.insert(0, {str(script.parent)!r})\n"
        f"sys.argv = ['remote-wal', 'scenario', 'today', '--json']\n"
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
        f"remote.wal.archive.enable={str(archives).lower()}\nremote.wal.uncommitted.ttl.ms=5000\nreplica.lag.time.max.ms=45000\n"
        "rsm.wal.archive.config.bucket=cold\n"
    )
    sources, sections = report_sources(KafkaSource("b:1"), "cluster", broker_config, "state", False)
    assert sections == StoreSections("s3_express", "s3_standard")
    assert sources.life_times == LifeTimes(90_000, 5000)
    listing = StoreListing(
        StorageSpec("plugin.s3.S3WalStorageManager", None, {"bucket": "cold"}, ARCHIVE_IMPL_PREFIX), "cluster"
    )
    assert sources.archive == (listing if archives else None)


def test_a_login_that_sparks_client_would_ignore_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=SASL_SSL\nsasl.username=me\nlog_level=3\n")
    with pytest.raises(ClientPropertyError, match=r"sasl\.username.*Spark's client has no such setting"):
        _kafka_source("a:1", file)
    file.write_text("security.protocol=SASL_SSL\nsasl.jaas.config=x\nconfig.providers.f.class=y\nlog_level=3\n")
    assert _kafka_source("a:1", file).client_properties["sasl.jaas.config"] == "x"
