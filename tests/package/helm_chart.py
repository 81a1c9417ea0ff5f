"""The chart of `deploy/helm`, rendered by Helm."""

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from local_cluster.object_store.native import go_program
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
    return {one["name"]: one for one in (*pod.get("initContainers", []), *pod["containers"])}


def environment(container: Mapping[str, Any], pod: str, address: str) -> dict[str, str]:
    """The variables as the kubelet sets them."""
    fields = {"metadata.name": pod, "metadata.namespace": NAMESPACE, "status.podIP": address}
    return {
        one["name"]: one["value"] if "value" in one else fields[one["valueFrom"]["fieldRef"]["fieldPath"]]
        for one in container.get("env", [])
    }


def write_configuration(manifests: list[dict[str, Any]], zone: str, ordinal: int, directory: Path) -> Path:
    """Have the pod's own container write what it does at its start; return the server.properties.

    The secrets of the zone's brokers hold their names and the ordinals.
    """
    name = f"{RELEASE}-{zone}"
    stateful_set = of_kind(manifests, "StatefulSet")[name]
    configure = containers(stateful_set)["configure"]
    places: dict[str, Path] = {mount["mountPath"]: directory / mount["name"] for mount in configure["volumeMounts"]}
    for place in places.values():
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
    for file, text in of_kind(manifests, "ConfigMap")[name]["data"].items():
        (places["/etc/kafka-template"] / file).write_text(text)
    volumes = {one["name"]: one for one in stateful_set["spec"]["template"]["spec"]["volumes"]}
    for source in volumes["zone-certificates"]["projected"]["sources"]:
        for item in source["secret"]["items"]:
            file = places["/etc/zone-certificates"] / item["path"]
            file.parent.mkdir(exist_ok=True)
            file.write_text(f"{item['key']} of {source['secret']['name']}\n")
    shell, _, loop, _, *words = configure["command"]
    script = re.findall(r"while sh (\S+) ", loop)
    moved = [
        next((word.replace(at, str(to)) for at, to in places.items() if word.startswith(f"{at}/") or word == at))
        for word in (*script, *words)
    ]
    subprocess.run([shell, *moved], env=environment(configure, f"{name}-{ordinal}", "10.0.0.7"), check=True)
    return places["/etc/kafka"] / "server.properties"
