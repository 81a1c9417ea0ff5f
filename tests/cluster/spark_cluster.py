"""A Spark standalone cluster on this machine: a master and two workers, whose executors share no local directory.

```
this host                      a worker's host: a network namespace, and a mount namespace in which
  master, spark-submit           temporary directories and every checkout are empty, but for
  (the driver)        ◄──────►   the Python with its packages, a directory of its own, and what is told to be shared
```

So what an executor needs comes to it by Spark, by the store, or by what is shared, as between hosts. Needs root.
"""

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyspark
from typer.testing import CliRunner

from cli.main import build_app
from jvm.java import QUICK_JVM_OPTIONS, find_java
from local_cluster.polling import wait_until
from local_cluster.processes import ManagedProcess, ProcessSpec
from local_cluster.zones import ZoneHosts
from retention_job.spark.session import DRIVER, connector_jars

CHECKOUT = Path(__file__).resolve().parents[2]
PYTHON_HOME = Path(sys.prefix).resolve()
_SPARK_HOME = PYTHON_HOME / Path(pyspark.__file__).resolve().parent.relative_to(PYTHON_HOME)
_MASTER_PORT, _WORKER_PORT = 27077, 27078
_PATIENCE_S = 120.0
_SUBMIT_TIMEOUT_S = 400.0
_STAGE = "/mnt"
"""Where what is to be seen waits while its place is hidden; it is the mount namespace's own."""


def _hidden() -> list[Path]:
    """Temporary directories, this checkout, and the one that this Python is of."""
    checkouts = {one for one in (CHECKOUT, PYTHON_HOME.parent) if (one / "pyproject.toml").is_file()}
    return [Path(tempfile.gettempdir()).resolve(), Path("/dev/shm"), *sorted(checkouts)]


def alone(command: Sequence[str], seen: Sequence[Path]) -> tuple[str, ...]:
    """The command in a mount namespace in which nothing that is hidden is there, but for these directories."""
    hide = [f"mount -t tmpfs tmpfs {_STAGE}"]
    for number, path in enumerate(seen):
        hide += [f"mkdir {_STAGE}/{number}", f"mount --bind {shlex.quote(str(path))} {_STAGE}/{number}"]
    hide += [f"mount -t tmpfs tmpfs {shlex.quote(str(path))}" for path in _hidden()]
    for number, path in enumerate(seen):
        place = shlex.quote(str(path))
        hide += [f"mkdir -p {place}", f"mount --bind {_STAGE}/{number} {place}"]
    script = "\n".join(["set -e", *hide, f"cd {shlex.quote(str(seen[0]))}", 'exec "$@"'])
    return ("unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", *command)


@dataclass(frozen=True, slots=True)
class Submitted:
    """What became of a command that spark-submit started."""

    exit_code: int
    output: str
    ended: Sequence[Mapping[str, Any]]
    """Tasks, by Spark's event log."""

    @property
    def tasks(self) -> Counter[str]:
        """How many ended well, by the address of their executor."""
        return Counter(task["Task Info"]["Host"] for task in self._tasks())

    @property
    def shuffled_between_hosts(self) -> Counter[str]:
        """Bytes that executors read of each other's shuffle files, by the address of the reader."""
        read: Counter[str] = Counter()
        for task in self._tasks():
            metrics = task.get("Task Metrics", {}).get("Shuffle Read Metrics", {})
            read[task["Task Info"]["Host"]] += metrics.get("Remote Bytes Read", 0)
        return read

    def _tasks(self) -> Iterator[Mapping[str, Any]]:
        return (task for task in self.ended if task["Task End Reason"]["Reason"] == "Success")


def _ended_tasks(events: Path) -> Iterator[dict[str, Any]]:
    """Most of a log are plans, of megabytes each: what is no task is not read."""
    for file in events.iterdir():
        with file.open() as lines:
            yield from (json.loads(line) for line in lines if line.startswith('{"Event":"SparkListenerTaskEnd"'))


class SparkCluster:
    """Master, workers, and how commands come to them."""

    def __init__(self, directory: Path, hosts: ZoneHosts, workers: Sequence[int], shared: Path) -> None:
        """`workers` are numbers of hosts. Of `directory` each worker sees its own place; all see `shared`."""
        self._directory, self._hosts, self._workers, self._shared = directory, hosts, workers, shared
        self._java = find_java()

    @property
    def addresses(self) -> set[str]:
        """Of the workers, and so of their executors."""
        return {self._hosts.address(one) for one in self._workers}

    @contextmanager
    def running(self, environment: Mapping[str, str]) -> Iterator[None]:
        """`environment` is the workers', and with it the executors'."""
        with ExitStack() as ends:
            for process in (self._master(), *(self._worker(one, environment) for one in self._workers)):
                process.start()
                ends.callback(process.kill)
            log = self._directory / "master.log"
            wait_until(
                lambda: log.read_text().count("Registering worker") == len(self._workers),
                "all workers are registered",
                _PATIENCE_S,
            )
            yield

    def submit(self, *command: str, environment: Mapping[str, str], program: Path | None = None) -> Submitted:
        """Run a command of `remote-wal`, or another program, on all workers; this host is the driver's."""
        events = Path(tempfile.mkdtemp(prefix="events-", dir=self._directory))
        zipped = self._directory / "remote-wal.zip"
        made = CliRunner().invoke(build_app(), ["deploy", "spark-zip", str(zipped)])
        assert made.exit_code == 0, made.output
        conf = {
            "spark.driver.host": self._hosts.here,
            "spark.driver.bindAddress": self._hosts.here,
            "spark.driver.memory": DRIVER["spark.driver.memory"],
            "spark.executor.memory": "768m",
            "spark.executor.cores": "1",
            "spark.executor.extraJavaOptions": " ".join(QUICK_JVM_OPTIONS),
            "spark.driver.extraJavaOptions": " ".join(QUICK_JVM_OPTIONS),
            # No task before all executors are there, and each task waits for none but the one that is free.
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.locality.wait": "0",
            "spark.pyspark.python": str(PYTHON_HOME / "bin/python"),
            "spark.pyspark.driver.python": str(PYTHON_HOME / "bin/python"),
            "spark.sql.shuffle.partitions": "4",
            "spark.ui.enabled": "false",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": events.as_uri(),
            "spark.eventLog.compress": "false",
            "spark.eventLog.rolling.enabled": "false",
        }
        done = subprocess.run(
            [
                str(_SPARK_HOME / "bin/spark-submit"), "--master", f"spark://{self._hosts.here}:{_MASTER_PORT}",
                *(word for name, value in conf.items() for word in ("--conf", f"{name}={value}")),
                "--py-files", str(zipped), "--jars", ",".join(map(str, connector_jars(self._java))),
                str(program or zipped.with_name("spark_submit.py")), *command,
            ],
            cwd=self._directory, env={**os.environ, **self._environment, **environment}, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_SUBMIT_TIMEOUT_S,
        )  # fmt: skip
        return Submitted(done.returncode, done.stdout, list(_ended_tasks(events)))

    @cached_property
    def _environment(self) -> dict[str, str]:
        return {"JAVA_HOME": str(self._java.home), "SPARK_HOME": str(_SPARK_HOME)}

    def _master(self) -> ManagedProcess:
        here = self._hosts.here
        command = self._class("master.Master", "--host", here, "--port", str(_MASTER_PORT), "--webui-port", "0")
        return self._process("master", command, {"SPARK_LOCAL_IP": here})

    def _worker(self, host: int, environment: Mapping[str, str]) -> ManagedProcess:
        address, own = self._hosts.address(host), self._directory / f"worker-{host}"
        own.mkdir()
        command = self._class(
            "worker.Worker", "--host", address, "--port", str(_WORKER_PORT), "--webui-port", "0", "--cores", "1",
            "--memory", "1g", "--work-dir", str(own), f"spark://{self._hosts.here}:{_MASTER_PORT}",
        )  # fmt: skip
        there = {"SPARK_LOCAL_IP": address, "SPARK_LOCAL_HOSTNAME": address, "SPARK_LOCAL_DIRS": str(own)}
        prefixed = (*self._hosts.prefix(host), *alone(command, (own, PYTHON_HOME, self._shared)))
        return self._process(f"worker-{host}", prefixed, {**there, **environment})

    def _class(self, name: str, *arguments: str) -> tuple[str, ...]:
        return (str(_SPARK_HOME / "bin/spark-class"), f"org.apache.spark.deploy.{name}", *arguments)

    def _process(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> ManagedProcess:
        own = self._directory
        small = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": " ".join(QUICK_JVM_OPTIONS)}
        told = {**self._environment, **small, **environment}
        spec = ProcessSpec(name, tuple(command), own / f"{name}.log", own / f"{name}.pid", own, told)
        return ManagedProcess(spec)
