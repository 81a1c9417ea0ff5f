"""The manifests in deploy/spark: commands exist, Kubernetes takes the one, the image has what the other names."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pyspark
import pytest
import yaml

from retention_job.spark.session import DRIVER
from tests.command_lines import is_command
from tests.package.bare_environment import ROOT
from tests.package.test_helm import VERSIONS

HERE = ROOT / "deploy" / "spark"


def manifest(name: str) -> Any:
    return yaml.safe_load((HERE / name).read_text())


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_takes_the_cron_job(version: str) -> None:
    kubernetes_validate.validate(manifest("cronjob.yaml"), version, strict=True)


def test_the_operator_takes_the_application() -> None:
    custom = json.loads(Path(__file__).with_name("custom_resources.json").read_text())
    application = manifest("sparkapplication.yaml")
    jsonschema.validate(application, {**custom[application["kind"]], "definitions": custom["definitions"]})


def test_every_command_exists_with_its_options_and_one_run_is_at_a_time() -> None:
    job, application = manifest("cronjob.yaml")["spec"], manifest("sparkapplication.yaml")["spec"]
    [container] = job["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    assert is_command("", container["args"])
    assert is_command("", application["template"]["arguments"])
    assert {job["concurrencyPolicy"], application["concurrencyPolicy"]} == {"Forbid"}


def test_the_drivers_memory_is_the_default_everywhere_and_at_most_one_gigabyte() -> None:
    driver = manifest("sparkapplication.yaml")["spec"]["template"]["driver"]
    memory, java = driver["memory"], driver["javaOptions"]
    assert [memory, java] == list(DRIVER.values())
    assert int(memory.removesuffix("m")) + int(driver["memoryOverhead"].removesuffix("m")) <= 1024
    assert f'--driver-memory {memory} --driver-java-options "{java}" ' in (ROOT / "docs/spark.md").read_text()


def test_the_application_runs_what_the_image_has() -> None:
    template, dockerfile = manifest("sparkapplication.yaml")["spec"]["template"], (HERE / "Dockerfile").read_text()
    assert f"FROM apache/spark:{template['sparkVersion']}-" in dockerfile
    [zipped] = template["deps"]["pyFiles"]
    assert f"deploy spark-zip {zipped.removeprefix('local://')}" in dockerfile
    assert template["mainApplicationFile"] == zipped.replace("remote-wal.zip", "spark_submit.py")
    assert (
        template["image"]
        == manifest("cronjob.yaml")["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]["image"]
    )


def test_what_reads_the_outputs_place_is_of_the_hadoop_that_spark_has() -> None:
    [jar] = (Path(pyspark.__file__).parent / "jars").glob("hadoop-client-api-*.jar")
    release = jar.stem.removeprefix("hadoop-client-api-")
    template = manifest("sparkapplication.yaml")["spec"]["template"]
    assert any(one.startswith("--output=s3a://") for one in template["arguments"])
    assert template["deps"]["packages"] == [f"org.apache.hadoop:hadoop-aws:{release}"]
