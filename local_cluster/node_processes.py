"""The command lines of a local cluster: a broker's JVM, an agent, the formatting of a log directory."""

import subprocess
import sys
from importlib import resources
from pathlib import Path

from jvm.java import QUICK_JVM_OPTIONS, Java
from local_cluster.broker_config import AgentsMode, ClusterSettings
from local_cluster.kafka_distribution import KafkaDistribution
from local_cluster.layout import ClusterLayout
from local_cluster.processes import ManagedProcess, ProcessSpec, ProcessStartError

_CHECKOUT = Path(__file__).resolve().parent.parent
_FORMAT_TIMEOUT_S = 120.0


def broker_process(
    layout: ClusterLayout,
    broker_id: int,
    settings: ClusterSettings,
    java: Java,
    kafka: KafkaDistribution,
    *jvm_options: str,
) -> ManagedProcess:
    """Return the broker's JVM, with options besides the common ones.

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
    """Return the broker's process; without a command for observing and ending it, however it was started."""
    directory = layout.broker_directory(broker_id)
    return ManagedProcess(
        ProcessSpec(f"broker {broker_id}", command, directory / "stdout.log", directory / "pid", directory)
    )


def agent_process(layout: ClusterLayout, broker_id: int, settings: ClusterSettings) -> ManagedProcess:
    """Return the agent beside the broker, on this Python."""
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
    answer = subprocess.run(
        command, capture_output=True, text=True, timeout=_FORMAT_TIMEOUT_S, check=False, cwd=directory
    )
    if answer.returncode:
        reason = (answer.stderr or answer.stdout).strip().splitlines()[-5:]
        raise ProcessStartError(f"cannot format the log directory of broker {broker_id}: {' / '.join(reason)}")


def logging_options(log_path: Path) -> tuple[str, ...]:
    """Return options that let one of Kafka's JVMs log into this file, and nothing to its standard output."""
    configuration = resources.files("local_cluster") / "log4j2.properties"
    return (f"-Dlog4j2.configurationFile={configuration}", f"-Dkafka.log.file={log_path}")
