"""Starts the processes of a local cluster: a broker's JVM, an agent, Kafka's tools; and what they start with.

Java and Kafka are found at the first use: a cluster can be observed and ended without either.

JVMs map Kafka's classes from an archive, so that a broker starts in half the processor time. It is recorded once, by a
broker that is started and ended for it, and kept beside the jars. A JVM checks whether it fits, by Java's version and
the jars, and does without it otherwise. Source: java(1), Application Class Data Sharing.
"""

import dataclasses
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Sequence
from functools import cached_property
from importlib import resources
from pathlib import Path

from jvm.ivy import Progress, exclusive
from jvm.java import QUICK_JVM_OPTIONS, Java, find_java
from local_cluster.broker_config import AgentsMode, ClusterSettings, write_configuration
from local_cluster.cluster_admin import ClusterAdmin, ClusterAdminError
from local_cluster.kafka_distribution import KAFKA_VERSION, TIERED_KAFKA_VERSION, KafkaDistribution, resolve_kafka
from local_cluster.kafka_tools import KafkaTools
from local_cluster.layout import ClusterLayout
from local_cluster.polling import WaitTimeoutError
from local_cluster.processes import ManagedProcess, ProcessSpec, ProcessStartError

_CHECKOUT = Path(__file__).resolve().parent.parent
_FORMAT_TIMEOUT_S = 120.0
_START_TIMEOUT_S = 120.0
_WRITE_TIMEOUT_S = 120.0
"""The maximum time to write an archive, which happens when its JVM ends."""


def broker_process(
    layout: ClusterLayout,
    broker_id: int,
    settings: ClusterSettings,
    java: Java,
    kafka: KafkaDistribution,
    *jvm_options: str,
) -> ManagedProcess:
    """Return a managed process for the broker's JVM, with options besides the common ones.

    Its log is `kafka.log`; `stdout.log` has output from before logging starts, and crashes.
    """
    command = (
        *_prefix(settings, broker_id),
        str(java.executable),
        f"-Xmx{settings.heap_mb}m",
        f"-Xms{settings.heap_mb // 2}m",
        # Several brokers share few cores here: the serial collector needs the least of them.
        *(("-XX:+UseSerialGC",) if settings.full_compiler else QUICK_JVM_OPTIONS),
        "-XX:+ExitOnOutOfMemoryError",
        "-Djava.awt.headless=true",
        f"-Djdk.net.hosts.file={layout.hosts_file(broker_id)}",
        *logging_options(layout.broker_log(broker_id)),
        *jvm_options,
        *kafka.class_options,
        "kafka.Kafka",
        str(layout.server_properties(broker_id)),
    )
    return known_broker_process(layout, broker_id, command)


def known_broker_process(layout: ClusterLayout, broker_id: int, command: tuple[str, ...] = ()) -> ManagedProcess:
    """Return the broker's managed process; without a command, one to observe and end it, however it was started."""
    directory = layout.broker_directory(broker_id)
    return ManagedProcess(
        ProcessSpec(f"broker {broker_id}", command, directory / "stdout.log", directory / "pid", directory)
    )


def agent_process(layout: ClusterLayout, broker_id: int, settings: ClusterSettings) -> ManagedProcess:
    """Return a managed process for the agent beside the broker, on this Python."""
    agents = settings.agents or AgentsMode()
    properties = str(layout.server_properties(broker_id))
    command = (sys.executable, "-m", agents.program, "agent", "--broker-config", properties)
    directory = layout.agent_directory(broker_id)
    return ManagedProcess(
        ProcessSpec(
            f"agent {broker_id}",
            (*_prefix(settings, broker_id), *command),
            directory / "agent.log",
            directory / "pid",
            _CHECKOUT,
            {**agents.store.environment(), **agents.environment},
        )
    )


def _prefix(settings: ClusterSettings, broker_id: int) -> tuple[str, ...]:
    return () if settings.hosts is None else settings.hosts.prefix(broker_id)


def format_log_directory(
    layout: ClusterLayout, broker_id: int, settings: ClusterSettings, java: Java, kafka: KafkaDistribution
) -> None:
    """Give the broker's log directories their identity (Kafka's StorageTool). Formatted ones are left alone.

    Raises ProcessStartError.
    """
    directory = layout.broker_directory(broker_id)
    command = [
        str(java.executable),
        *QUICK_JVM_OPTIONS,
        *logging_options(directory / "format.log"),
        *kafka.class_options,
        "kafka.tools.StorageTool",
        "format",
        "--ignore-formatted",
        "--cluster-id",
        layout.cluster_id,
        "--config",
        str(layout.server_properties(broker_id)),
        *(settings.inter_broker.format_options(layout) if settings.inter_broker is not None else ()),
    ]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=_FORMAT_TIMEOUT_S, check=False, cwd=directory
        )
    except subprocess.TimeoutExpired:
        told = f"cannot format the log directory of broker {broker_id} within {_FORMAT_TIMEOUT_S:.0f} s"
        raise ProcessStartError(told) from None
    if answer.returncode:
        reason = (answer.stderr or answer.stdout).strip().splitlines()[-5:]
        raise ProcessStartError(f"cannot format the log directory of broker {broker_id}: {' / '.join(reason)}")


def logging_options(log_path: Path) -> tuple[str, ...]:
    """Return options that let one of Kafka's JVMs log into this file, and nothing to its standard output."""
    configuration = resources.files("local_cluster") / "log4j2.properties"
    return (f"-Dlog4j2.configurationFile={configuration}", f"-Dkafka.log.file={log_path}")


class KafkaRuntime:
    """The Java and Kafka with which a cluster's JVMs are started."""

    def __init__(self, tiered_storage: bool, tell: Progress) -> None:
        self._tiered_storage = tiered_storage
        self.version = TIERED_KAFKA_VERSION if tiered_storage else KAFKA_VERSION
        """The version of brokers for which no other is chosen."""
        self._tell = tell
        self._versions: dict[str, KafkaDistribution] = {}

    @cached_property
    def java(self) -> Java:
        """The Java installation. Raises JavaNotFoundError."""
        return find_java()

    @property
    def kafka(self) -> KafkaDistribution:
        """Kafka's jars of the usual version. Raises KafkaDistributionError."""
        return self.of(self.version)

    def of(self, version: str) -> KafkaDistribution:
        """Return Kafka's jars of this version, fetching them at the first use. Raises KafkaDistributionError."""
        if version not in self._versions:
            kafka = resolve_kafka(self.java, tiered_storage=self._tiered_storage, progress=self._tell, version=version)
            self._versions[version] = with_class_archive(self.java, kafka, self._tell)
        return self._versions[version]

    def tools(self, bootstrap_servers: str, *, prefix: Sequence[str] = ()) -> KafkaTools:
        """Return Kafka's tools for the cluster at these bootstrap servers; `prefix` begins their command lines."""
        return KafkaTools(self.java, self.kafka, bootstrap_servers, prefix=prefix)


def with_class_archive(java: Java, kafka: KafkaDistribution, tell: Progress) -> KafkaDistribution:
    """Return Kafka with a class data archive, by which JVMs start faster; it is recorded first if there is none, in
    some ten seconds.

    If none can be recorded, Kafka is returned unchanged; an empty file records that for later calls.
    """
    archive = kafka.libs.parent / f"classes-{_identity(java, kafka):08x}.jsa"
    try:
        if not archive.exists():
            with exclusive(archive.with_suffix(".lock")):
                if not archive.exists():
                    tell("recording Kafka's classes, so that brokers start sooner")
                    _record(java, kafka, archive)
        return dataclasses.replace(kafka, class_archive=archive if archive.stat().st_size else None)
    except OSError:  # the directory is not ours to write to
        return kafka


def _identity(java: Java, kafka: KafkaDistribution) -> int:
    """Return a checksum of what the archive depends on. Jars are named by their versions."""
    release = java.home / "release"
    told = release.read_text() if release.exists() else str(java.major)
    jars = sorted(str(jar) for jar in kafka.libs.glob("*.jar"))
    return zlib.crc32("\n".join([str(java.home), told, *jars]).encode())


def _record(java: Java, kafka: KafkaDistribution, archive: Path) -> None:
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix="recording-") as scratch:
        recorded = Path(scratch) / archive.name
        layout, settings = ClusterLayout.plan(Path(scratch) / "cluster", 1), ClusterSettings()
        write_configuration(layout, settings)
        # Jars that a cluster has beside these come behind them on the class path, so that the archive fits there, too.
        option = f"-XX:ArchiveClassesAtExit={recorded}"
        broker = broker_process(layout, 1, settings, java, KafkaDistribution(kafka.libs), option)
        admin = ClusterAdmin(layout.bootstrap_servers)
        try:
            format_log_directory(layout, 1, settings, java, kafka)
            broker.start_until(lambda: admin.registered_brokers(2.0), "is registered", _START_TIMEOUT_S)
            admin.create_topic("recording", replication_factor=1)
            broker.terminate(_WRITE_TIMEOUT_S)
        except (ProcessStartError, WaitTimeoutError, ClusterAdminError):
            pass  # a JVM of another maker, perhaps; those who need a broker will be told what is wrong
        finally:
            broker.kill()
        recorded.touch()
        recorded.rename(archive)
