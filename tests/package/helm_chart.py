"""The chart of `deploy/helm`, rendered by Helm."""

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from local_cluster.go_programs import go_program
from tests.package.bare_environment import ROOT

CHART = ROOT / "deploy" / "helm"
NAMESPACE, RELEASE = "streams", "kafka"
KUBERNETES = "1.32.0"
CLUSTER_ID = "cmVtb3RlLXdhbC10cnktMQ"
ZONES = ("az1", "az2", "az3")
VALUES: dict[str, Any] = {
    "clusterId": CLUSTER_ID,
    "zones": [
        {
            "name": zone,
            "topologyZone": f"us-east-1{letter}",
            "firstId": 10 * number,
            "replicas": 1,
            "bucket": f"b-{zone}",
        }
        for number, (zone, letter) in enumerate(zip(ZONES, "abc", strict=True))
    ],
    "store": {"settings": {"region": "us-east-1"}},
}


def helm() -> Path:
    """The program: this machine's, or compiled once. Raises GoProgramMissingError."""
    found = shutil.which("helm")
    return Path(found) if found else go_program("helm.sh/helm/v3/cmd/helm", "v3.22.0")


def values(**more: object) -> dict[str, Any]:
    """What a release needs, and these."""
    return {**VALUES, **more}


def run_helm(*words: str, told: Mapping[str, Any]) -> subprocess.CompletedProcess[str]:
    # A program that was compiled without its release's flags takes Kubernetes for 1.20.
    command = [str(helm()), *words, "--kube-version", KUBERNETES, "--namespace", NAMESPACE, "--values", "-"]
    return subprocess.run(command, input=json.dumps(told), capture_output=True, text=True, check=False)


def rendered(told: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The manifests of a release with these values."""
    done = run_helm("template", RELEASE, str(CHART), told=told)
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def of_kind(manifests: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    """The manifests of a kind by their names."""
    return {one["metadata"]["name"]: one for one in manifests if one["kind"] == kind}


def containers(stateful_set: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """All containers of a pod in the order of their starts, by their names."""
    pod = stateful_set["spec"]["template"]["spec"]
    return {one["name"]: one for one in (*pod["initContainers"], *pod["containers"])}


def environment(container: Mapping[str, Any], pod: str, address: str) -> dict[str, str]:
    """The variables as the kubelet sets them."""
    fields = {"metadata.name": pod, "metadata.namespace": NAMESPACE, "status.podIP": address}
    return {
        one["name"]: one["value"] if "value" in one else fields[one["valueFrom"]["fieldRef"]["fieldPath"]]
        for one in container.get("env", [])
    }


def write_configuration(
    manifests: list[dict[str, Any]], zone: str, ordinal: int, directory: Path, certificates: Path | None = None
) -> Path:
    """Have the pod's own init container write its server.properties; return that."""
    name = f"{RELEASE}-{zone}"
    for file, text in of_kind(manifests, "ConfigMap")[name]["data"].items():
        (directory / file).write_text(text)
    configure = containers(of_kind(manifests, "StatefulSet")[name])["configure"]
    places = {mount["mountPath"]: directory for mount in configure["volumeMounts"]}
    written = directory / "written"
    written.mkdir(exist_ok=True)
    places["/etc/kafka"] = written
    if certificates is None:
        certificates = directory / "certificates"
        certificates.mkdir(exist_ok=True)
        for file in ("tls.key", "tls.crt", "ca.crt"):
            (certificates / file).touch()
    words = [
        str(certificates)
        if word == "/etc/remote-wal"
        else (str(places[word.rpartition("/")[0]] / Path(word).name) if "/" in word else word)
        for word in configure["command"]
    ]
    subprocess.run(words, env=environment(configure, f"{name}-{ordinal}", "10.0.0.7"), check=True)
    return written / "server.properties"
