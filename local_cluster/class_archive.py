"""Makes an archive of Kafka's classes that JVMs map from a file, so that a broker starts in half the processor time.

The archive is recorded once, by a broker that is started and ended for it, and kept beside the jars. A JVM checks
whether it fits, by Java's version and the jars, and does without it otherwise. Source: java(1), Application Class Data
Sharing.
"""

import dataclasses
import tempfile
import zlib
from pathlib import Path

from jvm.ivy import Progress, exclusive
from jvm.java import Java
from local_cluster.broker_config import ClusterSettings, write_configuration
from local_cluster.cluster_admin import ClusterAdmin, ClusterAdminError
from local_cluster.kafka_distribution import KafkaDistribution
from local_cluster.layout import ClusterLayout
from local_cluster.node_processes import broker_process, format_log_directory
from local_cluster.polling import WaitTimeoutError, wait_until
from local_cluster.processes import ProcessStartError

_START_TIMEOUT_S = 120.0
_WRITE_TIMEOUT_S = 120.0
"""The maximum time to write an archive, which happens when its JVM ends."""


def with_class_archive(java: Java, kafka: KafkaDistribution, tell: Progress) -> KafkaDistribution:
    """Return Kafka with its archive, which is recorded first if there is none, within some ten seconds.

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
            broker.start()
            wait_until(lambda: admin.registered_brokers(2.0), "the broker is registered", _START_TIMEOUT_S)
            admin.create_topic("recording", replication_factor=1)
            broker.terminate(_WRITE_TIMEOUT_S)
        except (ProcessStartError, WaitTimeoutError, ClusterAdminError):
            pass  # a JVM of another maker, perhaps; those who need a broker will be told what is wrong
        finally:
            broker.kill()
        recorded.touch()
        recorded.rename(archive)
