"""Looks at topics of a living cluster, one after the other."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from kafka_cluster.client_config import KafkaClientConfig
from metadata_topic.records import serde
from metadata_topic.records.records import PublishableRecord, RemoteWalLogSegmentMetadataUpdate
from metadata_topic.topic import topic_session
from metadata_topic.topic.consumer import RemoteWalMetadataConsumer
from plugin.local_directory import LocalWalStorageManager
from plugin.segment_metadata import RemoteLogSegmentState, RemoteWalCombinedLogSegmentMetadata
from plugin.store_loop import ask_each
from recovery.metadata.footers import UnreadableObject, read_footers
from tests.kafka_log.batches import batch
from tests.metadata_topic.fake_topic import FakeTopic
from tests.recovery.ruins import ORDERS, PAYMENTS, Ruins
from topic_reader import sources
from topic_reader.sources import OpenTopics, Source, StoredTopics
from topic_reader.stored_log import DataLossError


class World:
    """A store, and the metadata topic of a cluster that lives."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ruins, self.topic, self.listings = Ruins(directory), FakeTopic(), 0
        self.ruins.write()
        following = partial(RemoteWalMetadataConsumer, consumer_factory=self.topic.consumer)
        monkeypatch.setattr(topic_session, "RemoteWalMetadataConsumer", following)
        listed = LocalWalStorageManager.list_log_segments

        def counted(storage: LocalWalStorageManager, broker_id: int | None = None) -> object:
            self.listings += 1
            return listed(storage, broker_id)

        monkeypatch.setattr(LocalWalStorageManager, "list_log_segments", counted)
        broker, controller = directory / "server.properties", directory / "controller"
        found = StoredTopics.find(Source(broker, cluster_metadata=controller), ["orders"])
        self.topics = replace(found, client=KafkaClientConfig("none:9092"))
        self.uploaded: dict[int, RemoteWalCombinedLogSegmentMetadata] = {}

    def upload(self, number: int, *, epoch: int = 0) -> None:
        orders = (ORDERS, epoch, 5 * number, batch(5 * number, 5, leader_epoch=epoch))
        payments = (PAYMENTS, 0, 5 * number, batch(5 * number, 5))
        self.ruins.upload(number, *((orders, payments) if number % 3 else (orders,)))
        with self.topics.stores.opened() as (storage, _):
            listed = ask_each(storage.list_log_segments())
            stored = [one for one in listed if one.combined_segment_id.sequence == number]
            [found] = read_footers(storage, stored, lambda _what, _done: None)
        self.listings -= 1
        assert not isinstance(found, UnreadableObject)
        self.uploaded[number] = found

    def tell(self, number: int, state: RemoteLogSegmentState) -> None:
        entries = self.uploaded[number].entries if state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED else ()
        self.publish(replace(self.uploaded[number], state=state, entries=entries))

    def publish(self, record: PublishableRecord) -> None:
        self.topic.append(serde.key_of(record), serde.encode(record))

    def finish(self, number: int) -> None:
        self.upload(number)
        self.tell(number, RemoteLogSegmentState.COPY_SEGMENT_FINISHED)

    def delete(self, number: int) -> None:
        self.tell(number, RemoteLogSegmentState.DELETE_SEGMENT_STARTED)

    def die(self, number: int) -> None:
        entry = replace(self.uploaded[number].entries[0], first_offset=5 * number + 2)
        segment_id = self.uploaded[number].combined_segment_id
        self.publish(RemoteWalLogSegmentMetadataUpdate(segment_id, (entry,), 1, entry.leader_epoch + 1, 1))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


@pytest.fixture
def opened(world: World) -> Iterator[OpenTopics]:
    with world.topics.opened() as topics:
        yield topics


def test_a_later_look_takes_in_what_was_told_and_lists_nothing(world: World, opened: OpenTopics) -> None:
    for number in range(2):
        world.finish(number)
    opened.look()
    listings = world.listings
    assert opened.log("orders", 0).bounds() == (0, 10)
    world.finish(2)
    world.delete(0)
    opened.look()
    assert opened.log("orders", 0).bounds() == (5, 15)
    assert world.listings == listings


def test_what_could_not_be_read_is_looked_for_again(world: World, opened: OpenTopics) -> None:
    world.finish(0)
    opened.look().unanswered = frozenset({"a-bucket"})
    assert not opened.look().unanswered


def test_what_nobody_published_is_found_where_it_is_missed(world: World, opened: OpenTopics) -> None:
    world.finish(0)
    opened.look()
    world.upload(1)
    world.finish(2)
    opened.look()
    assert [one.first_offset for one in opened.log("orders", 0).plan(0, 15).extents] == [0, 5, 10]
    world.finish(4)
    opened.look()
    listings = world.listings
    for _ in range(2):
        with pytest.raises(DataLossError, match="15 to 19"):
            opened.log("orders", 0).plan(0, 25)
    assert world.listings == listings + 1, "a second listing would tell no more"


@pytest.mark.parametrize("is_empty", [True, False])
def test_a_topic_of_which_nothing_is_stored_is_a_loss_unless_brokers_say_that_it_is_empty(
    world: World, monkeypatch: pytest.MonkeyPatch, is_empty: bool
) -> None:
    world.finish(0)
    config, controller = world.ruins.directory / "server.properties", world.ruins.directory / "controller"
    found = StoredTopics.find(Source(config, cluster_metadata=controller), ["payments"]).topics
    monkeypatch.setattr(sources, "is_empty", lambda _client, _topic: is_empty)
    with replace(world.topics, topics=found).opened() as topics:
        topics.check_complete(fail_on_data_loss=False)
        if is_empty:
            topics.check_complete(fail_on_data_loss=True)
        else:
            with pytest.raises(DataLossError, match=r"payments: all its records went inline .* topics enable"):
                topics.check_complete(fail_on_data_loss=True)


@pytest.mark.parametrize("seed", range(4))
def test_looks_end_where_a_single_one_does(world: World, opened: OpenTopics, seed: int) -> None:
    chance = random.Random(seed)
    living: list[int] = []
    for number in range(12):
        world.finish(number)
        living.append(number)
        acts: list[Callable[[int], None]] = [world.delete, world.die]
        if chance.random() < 0.5:
            at = chance.choice(living)
            act = chance.choice(acts)
            act(at)
            if act == world.delete:
                living.remove(at)
        if chance.random() < 0.4:
            opened.look()
    with world.topics.opened() as other:
        whole, followed = other.look(), opened.look()
    assert set(followed.runs[ORDERS]) == set(whole.runs[ORDERS])
    assert followed.known_starts == whole.known_starts
