"""Pods of the chart, played on this machine: what the kubelet does with a rendered manifest, and nothing more.

A pod is a network namespace with a hosts file. Each container is a process there with mounts of its own, which starts
by the manifest's command, arguments and variables. Images are played by directories: Kafka's scripts start this
machine's Kafka, `/opt/remote-wal` is this checkout. Secrets and the store are the test's. Not played: users, limits,
the scheduler, and controllers: the test says when a pod starts and ends.
"""

import base64
import json
import os
import re
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from jvm.java import QUICK_JVM_OPTIONS
from local_cluster.node_processes import KafkaRuntime, logging_options
from local_cluster.polling import wait_until
from local_cluster.processes import ManagedProcess, ProcessSpec, descendants
from local_cluster.security.authority import Authority
from local_cluster.zones import ZoneHosts
from tests.cluster.script import PATIENCE_S
from tests.package.bare_environment import ROOT
from tests.package.helm_chart import NAMESPACE, RELEASE, containers, environment, of_kind

STORE = "/var/objects"
"""Where all agents find the store, in a directory that a node would mount."""
_COVERED = ("/etc", "/opt", "/run", "/var")
"""Where containers have mounts: they write in copies of these directories, which end with the container."""
_UNCHECKED = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""As kubelets do not check certificates."""
_UNCHECKED.check_hostname, _UNCHECKED.verify_mode = False, ssl.CERT_NONE
_ENTRYPOINT = re.compile(r'^ENTRYPOINT \["(.*)"\]$', re.MULTILINE)


@dataclass(slots=True)
class Node:
    """What all pods share: addresses, images, secrets, and what is rendered now."""

    directory: Path
    hosts: ZoneHosts
    numbers: Mapping[str, int]
    """The namespace of each pod that may ever be."""
    manifests: list[dict[str, Any]]
    rights: Path
    """What a token is mounted with."""
    variables: Mapping[str, str]
    """What all containers get, such as the API server's address."""
    secrets: dict[str, Path] = field(default_factory=dict)

    def prepare(self) -> None:
        """Write images, the store and the secrets that cert-manager would make."""
        (self.directory / "objects").mkdir(parents=True)
        self._write_kafka(self.directory / "kafka" / "bin")
        self._write_agent(self.directory / "remote-wal")
        authority = Authority.kept(self.directory / "authority")
        for one in of_kind(self.manifests, "Certificate").values():
            first, *others = one["spec"]["dnsNames"]
            files = authority.tls_for(first, one["spec"]["ipAddresses"], also=others)
            secret = self.directory / "secrets" / one["spec"]["secretName"]
            secret.mkdir(parents=True)
            for name, file in (
                ("tls.crt", files.certificate_file),
                ("tls.key", files.key_file),
                ("ca.crt", files.ca_file),
            ):
                shutil.copy(file, secret / name)
            self.secrets[secret.name] = secret
        for name, one in of_kind(self.manifests, "Secret").items():
            self.secrets[name] = self.directory / "secrets" / name
            self.secrets[name].mkdir()
            for key, value in one["data"].items():
                (self.secrets[name] / key).write_bytes(base64.b64decode(value))

    def _write_kafka(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        runtime = KafkaRuntime(False, print)
        java = [str(runtime.java.executable), *QUICK_JVM_OPTIONS, "-XX:+ExitOnOutOfMemoryError"]
        kafka = list(runtime.kafka.class_options)
        logging = shlex.join(logging_options(Path("LOG"))).replace("LOG", '"$LOG_DIR/kafka.log"')
        for name, words in (
            ("kafka-storage.sh", f"{shlex.join([*java, *kafka])} kafka.tools.StorageTool"),
            ("kafka-server-start.sh", f"{shlex.join(java)} $KAFKA_HEAP_OPTS {logging} {shlex.join(kafka)} kafka.Kafka"),
        ):
            (directory / name).write_text(f'#!/bin/sh\nexec {words} "$@"\n')
            (directory / name).chmod(0o755)

    def _write_agent(self, directory: Path) -> None:
        (directory / "bin").mkdir(parents=True)
        (directory / "bin" / "python").symlink_to(Path(sys.executable).resolve())
        (directory / "lib").symlink_to(Path(sys.prefix) / "lib")
        if (made := Path(sys.prefix) / "pyvenv.cfg").exists():
            shutil.copy(made, directory)
        command = directory / "bin" / "remote-wal"
        command.write_text('#!/bin/sh\nexec /opt/remote-wal/bin/python -m cli.main "$@"\n')
        command.chmod(0o755)

    @contextmanager
    def names(self) -> Iterator[None]:
        """Lead the names of pods to them, in every namespace."""
        domain = f"{RELEASE}.{NAMESPACE}.svc"
        pods = [
            f"{self.hosts.address(one)} {pod}.{domain} {pod}.{domain}.cluster.local"
            for pod, one in self.numbers.items()
        ]
        bootstrap = f"{self.hosts.address(next(iter(self.numbers.values())))} {RELEASE}-bootstrap.{NAMESPACE}.svc"
        text = "\n".join(["127.0.0.1 localhost", *pods, bootstrap]) + "\n"
        directories = [Path("/etc/netns") / self.hosts.namespace(one) for one in self.hosts.broker_ids]
        try:
            for directory in directories:
                directory.mkdir(parents=True)
                (directory / "hosts").write_text(text)
            yield
        finally:
            for directory in directories:
                shutil.rmtree(directory, ignore_errors=True)


class Pod:
    """One pod of a StatefulSet, or of another `kind` of the pod's name. Its volumes for claims outlive it."""

    def __init__(self, node: Node, name: str, kind: str = "StatefulSet") -> None:
        self.node = node
        self.name = name
        self._kind = kind
        self.address = node.hosts.address(node.numbers[name])
        self.directory = node.directory / name
        self._processes: dict[str, ManagedProcess] = {}
        self._made: dict[str, dict[str, Any]] = {}
        self._set: dict[str, Any] = {}

    def start(self) -> None:
        """Start containers as the kubelet does: each when the sidecar before it has started."""
        name = self.name.rpartition("-")[0] if self._kind == "StatefulSet" else self.name
        self._set = of_kind(self.node.manifests, self._kind)[name]
        self._made = containers(self._set)
        self._make_volumes()
        first = {one["name"] for one in self._set["spec"]["template"]["spec"].get("initContainers", [])}
        for name, container in self._made.items():
            process = self._processes[name] = self._process(container)
            process.start()
            if name in first and "restartPolicy" not in container:
                assert self.exit_code(name) == 0, self.log(name)
            elif name in first and "startupProbe" in container:
                wait_until(partial(self._has_started, name), f"{self.name}: {name} has started", PATIENCE_S)

    def exit_code(self, container: str, timeout_s: float = PATIENCE_S) -> int | None:
        """Wait for a container's end."""
        self._processes[container].wait_for_exit(timeout_s)
        return self._processes[container].exit_code

    def _has_started(self, name: str) -> bool:
        assert self._processes[name].is_alive(), self.log(name)
        container = self._made[name]
        probe = container["startupProbe"]
        if "exec" in probe:
            file = Path(probe["exec"]["command"][-1])
            [volume] = [one["name"] for one in container["volumeMounts"] if one["mountPath"] == str(file.parent)]
            return (self.directory / str(volume) / file.name).exists()
        if "tcpSocket" in probe:
            return self._accepts(probe["tcpSocket"]["port"], container)
        return self._get(probe["httpGet"], container)[0] == 200

    def _accepts(self, port: str | int, container: Mapping[str, Any]) -> bool:
        with suppress(OSError), socket.create_connection((self.address, self._port(port, container)), timeout=1):
            return True
        return False

    def wait_until_ready(self) -> None:
        """Wait for the broker's readiness probe."""
        kafka = self._made["kafka"]

        def is_ready() -> bool:
            assert self._processes["kafka"].is_alive(), self.log("kafka")
            return self._accepts(kafka["readinessProbe"]["tcpSocket"]["port"], kafka)

        wait_until(is_ready, f"{self.name} is ready", PATIENCE_S)

    def wait_for_agent(self) -> None:
        """Wait until the agent does more than relay, which no probe asks for."""
        wait_until(lambda: self._ask_agent("/readyz")[0] == 200, f"the agent of {self.name}", PATIENCE_S)

    def wait_for_join(self) -> None:
        """Wait until the broker has its share, or needs none."""
        wait_until(lambda: "reassign join" in self.log("scaling"), f"the join of {self.name} has ended", PATIENCE_S)

    def end(self) -> tuple[int, str]:
        """End as the kubelet does; return what the preStop hook said."""
        kafka = self._made["kafka"]
        told = self._get(kafka["lifecycle"]["preStop"]["httpGet"], kafka, timeout_s=self._grace_s)
        for name in reversed([*self._processes]):
            process = self._processes[name]
            process.send_signal(signal.SIGTERM)
            process.wait_for_exit(PATIENCE_S)
        return told

    def kill(self) -> None:
        """End all as a node's end would."""
        for process in self._processes.values():
            pid = process.pid
            for one in [pid, *descendants(pid)] if pid is not None else ():
                with suppress(ProcessLookupError):
                    os.kill(one, signal.SIGKILL)
            process.kill()  # which waits for it, too

    def lose_claims(self) -> None:
        """Lose what outlives a pod."""
        for one in self._set["spec"]["volumeClaimTemplates"]:
            shutil.rmtree(self.directory / one["metadata"]["name"])

    def log(self, container: str) -> str:
        return (self.directory / f"{container}.log").read_text(errors="replace")

    def describe(self) -> dict[str, Any]:
        """What the agent says of itself."""
        code, text = self._ask_agent("/describe")
        assert code == 200, text
        found: dict[str, Any] = json.loads(text)
        return found

    def metrics(self) -> str:
        """What Prometheus reads of the agent, at the port that the manifest names."""
        code, text = self._ask_agent("/metrics")
        assert code == 200
        return text

    def _ask_agent(self, path: str) -> tuple[int, str]:
        agent = self._made["agent"]
        return self._get({**agent["livenessProbe"]["httpGet"], "path": path}, agent)

    @property
    def _grace_s(self) -> float:
        return float(self._set["spec"]["template"]["spec"]["terminationGracePeriodSeconds"])

    def _port(self, port: int | str, container: Mapping[str, Any]) -> int:
        named = {one["name"]: one["containerPort"] for one in container["ports"]}
        return int(named.get(port, port))

    def _get(self, asked: Mapping[str, Any], container: Mapping[str, Any], timeout_s: float = 5) -> tuple[int, str]:
        scheme = asked.get("scheme", "HTTP").lower()
        url = f"{scheme}://{self.address}:{self._port(asked['port'], container)}{asked['path']}"
        token = (self.node.secrets[f"{RELEASE}-agents-http"] / "token").read_text()
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
        try:
            with urllib.request.urlopen(request, timeout=timeout_s, context=_UNCHECKED) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    # Volumes and processes.

    def _make_volumes(self) -> None:
        spec = self._set["spec"]
        kept = [one["metadata"]["name"] for one in spec.get("volumeClaimTemplates", [])]
        for one in spec["template"]["spec"]["volumes"]:
            if "persistentVolumeClaim" in one:
                kept.append(one["name"])
            else:
                self._make_volume(one)
        for name in kept:
            (self.directory / name).mkdir(parents=True, exist_ok=True)

    def _make_volume(self, volume: Mapping[str, Any]) -> None:
        place = self.directory / volume["name"]
        shutil.rmtree(place, ignore_errors=True)
        if "emptyDir" in volume:
            place.mkdir(parents=True)
        elif "configMap" in volume:
            place.mkdir(parents=True)
            for file, text in of_kind(self.node.manifests, "ConfigMap")[volume["configMap"]["name"]]["data"].items():
                (place / file).write_text(text)
        elif "secret" in volume:
            shutil.copytree(self.node.secrets[volume["secret"]["secretName"]], place)
        else:
            secrets = [source["secret"] for source in volume["projected"]["sources"] if "secret" in source]
            for secret in secrets:
                for item in secret["items"]:
                    (place / item["path"]).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(self.node.secrets[secret["name"]] / item["key"], place / item["path"])
            if not secrets:
                shutil.copytree(self.node.rights, place)

    def _process(self, container: Mapping[str, Any]) -> ManagedProcess:
        name = container["name"]
        entry = _ENTRYPOINT.findall((ROOT / "deploy" / "image" / "Dockerfile").read_text())
        words = [*container.get("command", entry), *container.get("args", [])]
        told = {"PYTHONPATH": str(ROOT), **self.node.variables, **environment(container, self.name, self.address)}
        prefix = self.node.hosts.prefix(self.node.numbers[self.name])
        command = (*prefix, "sh", "-c", f"{self._mounted(container)}\nexec {shlex.join(words)}")
        log = self.directory / f"{name}.log"
        return ManagedProcess(
            ProcessSpec(f"{self.name}/{name}", command, log, self.directory / f"{name}.pid", ROOT, told)
        )

    def _mounted(self, container: Mapping[str, Any]) -> str:
        """Return the lines that mount what the container sees. `ip netns exec` has given it mounts of its own."""
        shared = self.node.directory
        binds = [
            (shared / "kafka", "/opt/kafka", True),
            (shared / "remote-wal", "/opt/remote-wal", True),
            (shared / "objects", STORE, False),
        ]
        for mount in container["volumeMounts"]:
            source = self.directory / mount["name"] / mount.get("subPath", "")
            source.mkdir(exist_ok=True)
            binds.append((source, mount["mountPath"], mount.get("readOnly", False)))
        # Sources first, as mounts may hide them.
        lines = ["set -e", "mount -t tmpfs none /mnt"]
        for number, (source, _, _) in enumerate(binds):
            lines += [f"mkdir /mnt/{number}", f"mount --bind {shlex.quote(str(source))} /mnt/{number}"]
        for top in _COVERED:
            lines += [
                f"mkdir -p /mnt{top}/new /mnt{top}/work",
                f"mount -t overlay none -o lowerdir={top},upperdir=/mnt{top}/new,workdir=/mnt{top}/work {top}",
            ]
        lines.append(f"cp /etc/netns/{self.node.hosts.namespace(self.node.numbers[self.name])}/hosts /etc/hosts")
        for number, (_, target, is_read_only) in enumerate(binds):
            lines += [f"mkdir -p {target}", f"mount --bind /mnt/{number} {target}"]
            if is_read_only:
                lines.append(f"mount -o remount,bind,ro {target}")
        return "\n".join(lines)


class Client:
    """Records flow, from a namespace that knows the names of pods; see `pod_client`."""

    def __init__(self, node: Node, number: int, bootstrap_servers: str, topic: str) -> None:
        self._log = (node.directory / "client.log").open("w")
        command = [
            *node.hosts.prefix(number),
            sys.executable,
            "-m",
            "tests.cluster.pod_client",
            bootstrap_servers,
            topic,
        ]
        self._process = subprocess.Popen(
            command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log
        )

    def ask(self, question: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{question}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, Path(self._log.name).read_text()[-3000:]
        answer = json.loads(line)
        assert isinstance(answer, dict)
        return answer

    def wait_until(self, question: str, holds: Callable[[dict[str, Any]], bool], what: str) -> None:
        """Ask until the answer is as expected."""
        wait_until(lambda: holds(self.ask(question)), what, PATIENCE_S, interval_s=0.5)

    def expect_records_to_flow(self, records: int = 200) -> None:
        """So many more are acknowledged and read."""
        before = self.ask("report")
        self.wait_until(
            "report",
            lambda now: all(now[key] > before[key] + records for key in ("acknowledged", "consumed")),
            f"{records} more records are acknowledged and read",
        )

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._log.close()
