"""What `remote-wal held` tells and produces, against a broker that librdkafka has in itself for tests."""

import json
import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from typer.testing import CliRunner

from cli.exit_code import ExitCode
from cli.main import build_app
from cli.recovery import held
from kafka_cluster.client_config import KafkaClientConfig
from kafka_log.plain_records import PlainRecord
from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.records.archive_records import ArchiveObjectCommitted
from metadata_topic.records.declared_gaps import DeclaredGap, GapReason
from metadata_topic.records.gap_record import RemoteWalGapDeclaration
from metadata_topic.store.archive.archive_store import ArchiveStore
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.format.archive_object_id import ArchiveObjectId
from plugin.segment_metadata import CombinedSegmentId, RemoteLogSegmentMetadataEntry
from tests.kafka_log.batches import batch

_WAIT_S = 60.0
ORDERS = TopicIdPartition(TopicId(b"o" * 16), 0)


def test_records_of_any_size_are_appended_in_their_order_though_the_queue_is_full() -> None:
    random_bytes = random.Random(3).randbytes
    sizes = [10, 1_500_000, 900_000, 1_000_001, 10]
    values = [random_bytes(size) for size in sizes]
    broker = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "unused"})
    broker.produce("orders", b"makes the topic", partition=0)
    assert broker.flush(_WAIT_S) == 0
    [one] = broker.list_topics(timeout=_WAIT_S).brokers.values()
    client = KafkaClientConfig(f"{one.host}:{one.port}", {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(held.AS_IT_WAS, "queue.buffering.max.kbytes", 2_000)
        records = (PlainRecord(at, None, value, at, 0, ()) for at, value in enumerate(values))
        assert held.produce(client, "orders", 0, records) == (len(values), 0, [])
    consumer = Consumer(
        {"bootstrap.servers": client.bootstrap_servers, "group.id": "g", "fetch.max.bytes": 100_000_000}
    )
    consumer.assign([TopicPartition("orders", 0, 1)])
    found = consumer.consume(len(values), _WAIT_S)
    assert [one.value() for one in found] == values
    assert [one.timestamp()[1] for one in found] == [1, 1, 2, 3, 4], "librdkafka takes 0 for the present time"
    consumer.close()


class Archive:
    """The archive's store, with one object."""

    async def fetch(self, _object_id: ArchiveObjectId, start: int, end: int) -> bytes:
        return RAW[start:end]


RAW = b"".join(batch(offset, payload=b"%d" % offset) for offset in range(4))


def test_what_the_archive_alone_holds_is_listed_appended_and_given_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store, archive, appended = RemoteWalMetadataStore(), ArchiveStore(), list[bytes | None]()
    object_id = ArchiveObjectId(ORDERS, 0, 3, CombinedSegmentId(1, 7, 0))
    run = RemoteLogSegmentMetadataEntry(ORDERS, 0, 0, 3, 0, len(RAW), 0)
    archive.apply(ArchiveObjectCommitted(object_id, 7, (run,), len(RAW), 0))
    loss = DeclaredGap(ORDERS, 2, 4, 2, GapReason.LOST_LOCALLY)
    store.apply(RemoteWalGapDeclaration(1, 7, 0, (loss,), 0))

    @contextmanager
    def opened(*_: object) -> Iterator[SimpleNamespace]:
        stores = SimpleNamespace(storage=None, archive=Archive(), client=None, broker=SimpleNamespace(node_id=1))
        session = SimpleNamespace(store=store, archive=archive, publish=store.apply, published=lambda: None)
        yield SimpleNamespace(stores=stores, session=session, partition=ORDERS)

    def produce(_client: object, _topic: str, _partition: int, records: Iterable[PlainRecord]) -> object:
        appended.extend(values := [record.value for record in records])
        return len(values), 0, []

    monkeypatch.setattr(held, "_opened", opened)
    monkeypatch.setattr(held, "produce", produce)
    config = tmp_path / "server.properties"
    config.touch()

    def held_command(action: str, *options: str, code: int = ExitCode.GOOD) -> str:
        words = ["held", action, "orders", "0", "--broker-config", str(config), *options]
        done = CliRunner().invoke(build_app(), words)
        assert done.exit_code == code, done.output
        return done.stdout

    [told] = json.loads(held_command("list", "--json", code=ExitCode.FINDINGS))["held"]
    assert told == {"first_offset": 2, "last_offset": 3, "leader_epoch": 0, "segment": str(object_id)}
    assert "2 records were appended" in held_command("restore")
    assert appended == [b"2", b"3"]
    assert "1 runs" in held_command("give-up")
    assert json.loads(held_command("list", "--json"))["held"] == []
    assert "0 records were appended" in held_command("restore")
