"""`remote-wal held`: records that a log lost, and object storage still holds."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.connection import Json
from cli.exit_code import ExitCode
from cli.option_groups import command_group, grouped
from cli.recovery.recovery_sources import BrokersCluster, OpenStores, open_metadata, open_stores
from cli.tables import show, table, tell_json

if TYPE_CHECKING:
    from confluent_kafka import Producer

    from kafka_cluster.client_config import ConfluentValue, KafkaClientConfig
    from kafka_log.plain_records import PlainRecord
    from kafka_log.topic_partition import TopicIdPartition
    from metadata_topic.topic.topic_session import TopicSession

app = command_group("Records that a log lost, and object storage still holds.")
_TIMEOUT_S = 30.0
_PRODUCED_WITHIN_S = 600.0
_IN_FLIGHT = 10_000
AS_IT_WAS: dict[str, "ConfluentValue"] = {
    "acks": "all",
    "enable.idempotence": True,
    "message.max.bytes": 1_000_000_000,  # the topic's max.message.bytes decides
    "compression.type": "zstd",  # a record may be larger than that before it is compressed
}
_REPLACED = "\ufffd"
"""Stands in a decoded header key for bytes that are not UTF-8."""

Topic = Annotated[str, typer.Argument(help="The topic.")]
Partition = Annotated[int, typer.Argument(help="The partition.", min=0)]


@app.command("list")
@grouped
def list_held(topic: Topic, partition: Partition, where: BrokersCluster, json: Json = False) -> None:
    """Show what object storage holds of records that the log lost though no other replica was elected.

    Exits with 1 if there is any.
    """
    from topic_reader.held_records import held_runs

    with _opened(topic, partition, where) as held:
        rows = [
            (run.entry.first_offset, run.entry.last_offset, run.entry.leader_epoch, str(run.stored_in.object_id))
            for run in held_runs(held.session.store, held.session.archive, held.partition)
        ]
    code = ExitCode.FINDINGS if rows else ExitCode.GOOD
    if json:
        names = ("first_offset", "last_offset", "leader_epoch", "segment")
        shown = [dict(zip(names, row, strict=True)) for row in rows]
        tell_json({"topic": topic, "partition": partition, "held": shown}, code)
    else:
        title = f"Held of {topic}-{partition}"
        show(table(">first offset", ">last offset", ">leader epoch", "segment", rows=rows, title=title))
    raise typer.Exit(code)


@app.command()
@grouped
def restore(topic: Topic, partition: Partition, where: BrokersCluster) -> None:
    """Append the held records to the log, in their old order: they get new offsets, behind what was written since.

    They keep their timestamps; 0 becomes 1, as librdkafka sends no 0. They stay held. Look at the log, then give them
    up. Run twice, it appends them twice. Records compressed with snappy or lz4 need remote-wal[report]; nothing is
    appended unless all can be decoded. Exits with 1 if records were left out or changed: of transactions whose end is
    not held, or with header keys that are not UTF-8.
    """
    from recovery.logs.run_reader import RunReader
    from topic_reader.held_records import held_logs, held_records, held_runs

    undecided: list[int] = []
    with _opened(topic, partition, where) as held:
        store = held.session.store
        runs = held_runs(store, held.session.archive, held.partition)
        logs = held_logs(runs, store.local_losses().get(held.partition, ()))
        reader = RunReader(held.stores.storage, held.stores.archive)
        records = held_records(reader, logs, undecided.append)
        appended, odd_keys, faults = produce(held.stores.client, topic, partition, records)
    typer.echo(f"{appended:,} records were appended to {topic}-{partition}")
    if faults:
        typer.echo(f"{len(faults):,} were not: {faults[0]}", err=True)
    if undecided:
        typer.echo(f"{sum(undecided):,} were left out: the end of their transaction is not held", err=True)
    if odd_keys:
        typer.echo(f"{odd_keys:,} have U+FFFD in header keys, for what is not UTF-8", err=True)
    if faults or undecided or odd_keys:
        raise typer.Exit(ExitCode.FINDINGS)
    if appended:
        typer.echo(f"when they are as you want them: remote-wal held give-up {topic} {partition}")


def produce(
    client: "KafkaClientConfig", topic: str, partition: int, records: "Iterator[PlainRecord]"
) -> tuple[int, int, list[str]]:
    """Append records to a partition. Returns how many were acknowledged, how many have odd header keys, and the
    errors of the others."""
    from confluent_kafka import Producer

    from kafka_cluster.flushing import flush

    producer = Producer({**client.for_confluent(client_id="remote-wal-held"), **AS_IT_WAS})
    answers: list[str | None] = []

    def told(error: object, _message: object) -> None:
        answers.append(None if error is None else str(error))

    sent = odd_keys = 0
    for record in records:
        sent += 1
        odd_keys += any(_REPLACED in key for key, _ in record.headers)
        message: dict[str, Any] = {"key": record.key, "value": record.value, "headers": list(record.headers)}
        message |= {"partition": partition, "timestamp": record.timestamp_ms or 1, "on_delivery": told}
        while len(producer) >= _IN_FLIGHT or not _is_queued(producer, topic, message):
            producer.poll(1.0)
    flush(producer, _PRODUCED_WITHIN_S)
    faults = [answer for answer in answers if answer is not None]
    return answers.count(None), odd_keys, faults + ["no answer in time"] * (sent - len(answers))


def _is_queued(producer: "Producer", topic: str, message: dict[str, Any]) -> bool:
    try:
        producer.produce(topic, **message)
    except BufferError:  # a gigabyte waits
        return False
    return True


@app.command("give-up")
@grouped
def give_up_held(topic: Topic, partition: Partition, where: BrokersCluster) -> None:
    """Give up what is held of the partition: nobody is offered these records any more.

    What combined segments hold is deleted, what the archive holds is kept until the topic is deleted.
    """
    from plugin.wall_clock import wall_ms
    from topic_reader.held_records import give_up

    with _opened(topic, partition, where) as held:
        session, broker_id = held.session, held.stores.broker.node_id
        runs = give_up(session.store, session.archive, held.partition, broker_id, wall_ms(), session.publish)
        held.session.published()
    typer.echo(f"{runs:,} runs of records of {topic}-{partition} were given up")


@dataclass(frozen=True, slots=True)
class _Held:
    """The held records of a partition, by snapshots and the metadata topic."""

    stores: OpenStores
    partition: "TopicIdPartition"
    session: "TopicSession"


@contextmanager
def _opened(topic: str, partition: int, where: BrokersCluster) -> Iterator[_Held]:
    with open_stores(where) as stores:
        place = _partition(stores.client, topic, partition)
        with open_metadata(stores) as session:
            yield _Held(stores, place, session)


def _partition(client: "KafkaClientConfig", topic: str, partition: int) -> "TopicIdPartition":
    from kafka_cluster.cluster import KafkaCluster
    from kafka_log.topic_partition import TopicIdPartition

    for found in KafkaCluster(client, "remote-wal-held", _TIMEOUT_S).topics([topic]):
        if not found.error_code and partition < len(found.partitions):
            return TopicIdPartition(found.topic_id, partition)
    raise typer.BadParameter(f"the cluster does not show {topic}-{partition}")
