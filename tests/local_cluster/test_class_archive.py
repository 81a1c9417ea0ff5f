import stat
from pathlib import Path

from jvm.java import Java
from local_cluster.kafka_distribution import KafkaDistribution
from local_cluster.node_processes import with_class_archive


def _java(directory: Path, script: str) -> Java:
    path = directory / "bin" / "java"
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return Java(path, 17)


def test_kafka_runs_without_an_archive_where_none_can_be_recorded_and_nobody_tries_again(tmp_path: Path) -> None:
    java, kafka = _java(tmp_path, "exit 1"), KafkaDistribution(tmp_path / "libs")
    told: list[str] = []
    assert with_class_archive(java, kafka, told.append) == kafka
    assert with_class_archive(java, kafka, told.append) == kafka
    assert len(told) == 1
    assert not list(tmp_path.glob("recording-*"))


def test_an_archive_that_is_there_is_used_by_this_java_and_these_jars_alone(tmp_path: Path) -> None:
    java, kafka = _java(tmp_path, "exit 1"), KafkaDistribution(tmp_path / "libs")
    with_class_archive(java, kafka, lambda _: None)
    [archive] = tmp_path.glob("classes-*.jsa")
    archive.write_bytes(b"classes")
    found = with_class_archive(java, kafka, lambda _: None)
    assert found.class_archive == archive
    assert f"-XX:SharedArchiveFile={archive}" in found.class_options
    assert found.class_options[-2:] == ("-cp", kafka.class_path)
    (tmp_path / "libs").mkdir()
    (tmp_path / "libs" / "kafka-clients-4.4.0.jar").touch()
    assert with_class_archive(java, kafka, lambda _: None).class_archive is None


def test_where_nothing_can_be_written_kafka_runs_as_it_is(tmp_path: Path) -> None:
    kafka = KafkaDistribution(tmp_path / "absent" / "libs")
    assert with_class_archive(_java(tmp_path, "exit 1"), kafka, lambda _: None) == kafka
