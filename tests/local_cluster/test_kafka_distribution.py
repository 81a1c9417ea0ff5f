import os
import stat
from pathlib import Path

import pytest

from jvm.ivy import proxy_options
from jvm.java import Java
from local_cluster import kafka_distribution
from local_cluster.kafka_distribution import (
    KAFKA_HOME_VARIABLE,
    KAFKA_VERSIONS,
    VERSION_VARIABLE,
    KafkaDistributionError,
    kafka_home,
    resolve_kafka,
)
from local_cluster.node_processes import KafkaRuntime
from local_cluster.object_store.native import GoProgramMissingError, go_program
from retention_job.spark.session import ConnectorError, connector_jars

FETCHES = """#!/bin/sh
for argument; do case $argument in *artifact*) directory=${argument%%/\\[*} ;; esac; done
echo "found org.apache.kafka#kafka-clients;4.3.0 in public"
mkdir -p "$directory" && : > "$directory/kafka-clients-4.3.0.jar"
"""
FAILS = """#!/bin/sh
echo "		module not found: org.apache.kafka#kafka_2.13;4.3.0"
for argument; do case $argument in *artifact*) directory=${argument%%/\\[*} ;; esac; done
mkdir -p "$directory" && : > "$directory/half.jar"
exit 1
"""


def _java(directory: Path, script: str) -> Java:
    path = directory / "java"
    path.write_text(script)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return Java(path, 17)


def test_jars_are_fetched_once(tmp_path: Path) -> None:
    told: list[str] = []
    java = _java(tmp_path, FETCHES)
    first = resolve_kafka(java, home=tmp_path / "home", progress=told.append)
    assert [jar.name for jar in first.libs.iterdir()] == ["kafka-clients-4.3.0.jar"]
    assert "found org.apache.kafka#kafka-clients;4.3.0" in told
    java.executable.unlink()
    assert resolve_kafka(java, home=tmp_path / "home") == first


def test_a_failed_fetch_leaves_no_half_directory_and_names_the_cause(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with pytest.raises(KafkaDistributionError, match="module not found: org"):
        resolve_kafka(_java(tmp_path, FAILS), home=home)
    assert not (home / "libs").exists()
    assert not list(home.glob("resolving-*"))
    assert resolve_kafka(_java(tmp_path, FETCHES), home=home).libs == home / "libs"


def test_a_directory_without_kafka_is_refused(tmp_path: Path) -> None:
    (tmp_path / "libs").mkdir()
    with pytest.raises(KafkaDistributionError, match=KAFKA_HOME_VARIABLE):
        resolve_kafka(home=tmp_path)


def test_the_tiered_storage_jars_are_part_of_the_class_path_only_when_asked_for(tmp_path: Path) -> None:
    java = _java(tmp_path, FETCHES)
    plain = resolve_kafka(java, home=tmp_path / "home")
    tiered = resolve_kafka(java, home=tmp_path / "home", tiered_storage=True)
    assert plain.class_path == f"{plain.libs}/*"
    assert tiered.class_path == os.pathsep.join([f"{plain.libs}/*", f"{tmp_path / 'home' / 'tiered'}/*"])


def test_the_newest_kafka_is_the_default_and_with_tiered_storage_the_newest_that_has_a_tier_for_tests() -> None:
    newest = os.environ.get(VERSION_VARIABLE, KAFKA_VERSIONS[-1])
    assert KafkaRuntime(tiered_storage=False, tell=print).version == newest
    assert KafkaRuntime(tiered_storage=True, tell=print).version in (newest, "4.3.1")


def test_the_variable_decides_where_the_jars_are(tmp_path: Path) -> None:
    assert kafka_home({KAFKA_HOME_VARIABLE: str(tmp_path)}) == tmp_path
    assert kafka_home({}).name == kafka_distribution.KAFKA_VERSION
    assert kafka_home({KAFKA_HOME_VARIABLE: str(tmp_path)}, "3.9.1") == kafka_home({}, "3.9.1")
    assert kafka_home({}, "3.9.1").name == "3.9.1"


def test_a_user_without_a_home_directory_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(_uid: int) -> None:
        raise KeyError("uid not found")

    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", nobody)
    monkeypatch.setenv(KAFKA_HOME_VARIABLE, "~/kafka")
    with pytest.raises(KafkaDistributionError, match=f"set HOME; or set {KAFKA_HOME_VARIABLE}"):
        resolve_kafka()
    monkeypatch.setenv("REMOTE_WAL_SPARK_CONNECTOR_HOME", "~/spark")
    with pytest.raises(ConnectorError, match="set HOME"):
        connector_jars(Java(Path("java"), 17))
    monkeypatch.setattr("local_cluster.kafka_distribution.__file__", "/nowhere/kafka_distribution.py")
    with pytest.raises(GoProgramMissingError, match="set HOME"):
        go_program("example.com/program", "v1", {})


def test_java_is_told_of_the_proxy() -> None:
    options = list(proxy_options({"https_proxy": "http://user:word@proxy.local:3128"}))
    assert options == ["-Dhttps.proxyHost=proxy.local", "-Dhttps.proxyPort=3128"]
