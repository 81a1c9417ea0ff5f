"""What is published about an agent's care, and what the store makes of it."""

from metadata_topic.records.records import PublishableRecord, RemoteWalNodeRegistration
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.segment_metadata import CombinedSegmentId, RemoteLogSegmentState, RemoteWalCombinedLogSegmentMetadata
from rlm.lifecycle.object_ownership import ObjectOwnership


class TopicOfOnePartition:
    def __init__(self) -> None:
        self.store = RemoteWalMetadataStore()
        self._offset = 0

    def publish(self, record: PublishableRecord) -> None:
        self.store.apply(record, (0, self._offset))
        self._offset += 1


def care(topic: TopicOfOnePartition, broker_id: int, incarnation: int) -> ObjectOwnership:
    return ObjectOwnership(broker_id, incarnation, topic.store, lambda: [1, 2], takeover_ms=1000)


def test_a_caretaker_takes_over_and_gives_back_when_the_broker_returns_with_a_new_incarnation() -> None:
    topic = TopicOfOnePartition()
    for broker_id in (1, 2):
        topic.publish(RemoteWalNodeRegistration(broker_id, 10, broker_id, 0))
    first = care(topic, 1, 10)
    assert first.registrations_due([1], 0) == []
    [due] = first.registrations_due([1], 1000)
    assert due == RemoteWalNodeRegistration(2, 10, 1, 1000)
    topic.publish(due)
    assert first.brokers_in_care() == {1, 2}
    assert topic.store.caretaker_of(2) == 1

    returned = care(topic, 2, 11)
    topic.publish(RemoteWalNodeRegistration(2, 11, 2, 2000))
    assert returned.brokers_in_care() == {2}
    assert first.brokers_in_care() == {1}


def test_what_an_older_incarnation_still_publishes_is_refused_and_its_object_an_orphan() -> None:
    topic = TopicOfOnePartition()
    topic.publish(RemoteWalNodeRegistration(1, 11, 1, 0))
    segment_id = CombinedSegmentId(1, 10, 0)
    state = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
    topic.publish(RemoteWalCombinedLogSegmentMetadata(segment_id, (), state, 0, 100))
    assert topic.store.state_of(segment_id) is None
    assert topic.store.is_fenced(segment_id)
    assert care(topic, 1, 10).is_fenced()
