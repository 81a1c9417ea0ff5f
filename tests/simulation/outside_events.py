"""What becomes of the object store and the metadata topic."""

from collections.abc import Callable

from metadata_topic.records.publishable import encoded
from metadata_topic.records.records import PublishedSegment
from plugin.segment_metadata import RemoteWalCombinedLogSegmentMetadata
from tests.simulation.agent_model import WALL_MS
from tests.simulation.invariants import FINISHED, RELEASED
from tests.simulation.seeded_storage import AWAY, FLAKY, HANGING, HEALTHY, SLOW
from tests.simulation.world import World


def store(world: World, number: int) -> None:
    world.storage.mode = (HEALTHY, HEALTHY, FLAKY, SLOW, HANGING, AWAY, AWAY)[number % 7]


def set_topic(world: World, number: int) -> None:
    world.topic.is_away = number % 3 == 0
    world.topic.delay_max_s = (0.02, 0.5)[(number >> 4) % 2]


def release(world: World, number: int) -> None:
    """The oldest object that is known goes, as the retention is over."""
    living = [
        record
        for record in world.topic.records
        if isinstance(record, PublishedSegment)
        and record.state is FINISHED
        and record.combined_segment_id not in world.released
    ]
    if not living or not world.agents:
        return
    record = living[0]
    world.released.add(record.combined_segment_id)
    for entry in record.metadata.entries:
        released = world.logs[entry.topic_id_partition].released
        released[entry.leader_epoch] = max(released.get(entry.leader_epoch, 0), entry.last_offset + 1)
    deletion = RemoteWalCombinedLogSegmentMetadata(record.combined_segment_id, (), RELEASED, WALL_MS, record.size_bytes)
    world.topic.append(encoded(deletion))
    world.storage.objects.pop(record.combined_segment_id)


DO: dict[str, Callable[[World, int], None]] = {"store": store, "topic": set_topic, "release": release}
