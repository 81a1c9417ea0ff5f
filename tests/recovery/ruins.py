"""What is left of a cluster without brokers: a broker's settings, a controller's log, and a store in a directory."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from typer.testing import CliRunner, Result

from cli.main import build_app
from kafka_log.record_batch import scan_batches
from kafka_log.topic_partition import TopicId, TopicIdPartition
from plugin.format.combined_segment import OpenCombinedSegment, SegmentHeader
from plugin.segment_metadata import CombinedSegmentId, RemoteLogSegmentMetadataEntry
from tests.kafka_log.kraft_records import DIRECTORY, metadata_batch, partition_record, topic_record
from tests.recovery.stored_objects import Records

CLUSTER = "r4nd0m-cluster_id"
ORDERS = TopicIdPartition(TopicId(b"orders".ljust(16)), 0)
PAYMENTS = TopicIdPartition(TopicId(b"payments".ljust(16)), 2)


@dataclass(frozen=True, slots=True)
class Ruins:
    """A broker's settings, a metadata.log.dir that is left, and a store."""

    directory: Path

    @property
    def log_dir(self) -> Path:
        return self.directory / "log"

    @property
    def store(self) -> Path:
        return self.directory / "store"

    def write(
        self,
        *,
        node_id: int = 1,
        more: str = "",
        backend: str | None = None,
        payments: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        """`backend`: settings of another one than the store in a directory; `payments`: its replicas' states."""
        controller = self.directory / "controller"
        log = controller / "__cluster_metadata-0"
        log.mkdir(parents=True, exist_ok=True)
        self.store.mkdir(exist_ok=True)
        (controller / "meta.properties").write_text(f"version=1\ncluster.id={CLUSTER}\nnode.id=1\n")
        other = DIRECTORY[::-1]
        topics = [
            topic_record("orders", ORDERS.topic_id),
            topic_record("payments", PAYMENTS.topic_id),
            partition_record(ORDERS.topic_id, 0, (1,), (DIRECTORY,)),
            partition_record(PAYMENTS.topic_id, 2, (2, 1), (other, DIRECTORY), **(payments or {})),
        ]
        (log / f"{0:020}.log").write_bytes(metadata_batch(0, *topics))
        (self.directory / "server.properties").write_text(
            f"node.id={node_id}\nprocess.roles=broker\nlisteners=CLIENT://:9092,INTERNAL://:9093\n"
            "inter.broker.listener.name=INTERNAL\ncontroller.listener.names=CONTROLLER\n"
            "listener.security.protocol.map=CLIENT:PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT\n"
            f"log.dirs={self.log_dir}\n{backend or f'rsm.wal.config.directory={self.store}'}\n"
            f"remote.wal.agent.state.directory={self.directory / 'state'}\n{more}"
        )

    def upload(self, sequence: int, *parts: Records) -> Path:
        segment_id = CombinedSegmentId(1, 5, sequence)
        segment = OpenCombinedSegment(SegmentHeader(CLUSTER, segment_id, 1_700_000_000_000 + sequence))
        for partition, epoch, first, data in parts:
            last = scan_batches(data, 0, len(data))[-1].last_offset
            segment.append(RemoteLogSegmentMetadataEntry(partition, epoch, first, last, 0, 0, 0), data)
        path = self.store / CLUSTER / "1" / f"{5:012x}" / f"{sequence:012x}.rwal"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"".join(segment.seal().chunks))
        return path

    def arguments(self, command: str, *options: str) -> list[str]:
        config, controller = self.directory / "server.properties", self.directory / "controller"
        return [command, "--broker-config", str(config), "--cluster-metadata", str(controller), *options]

    def run(self, command: str, *options: str) -> Result:
        return CliRunner().invoke(build_app(), self.arguments(command, *options))
