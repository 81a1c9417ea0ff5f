"""What becomes of the object store and the metadata topic."""

from collections.abc import Callable

from tests.simulation.life_of_objects import RETENTIONS_MS
from tests.simulation.seeded_storage import AWAY, FLAKY, HANGING, HEALTHY, SLOW
from tests.simulation.world import World


def store(world: World, number: int) -> None:
    world.storage.mode = (HEALTHY, HEALTHY, FLAKY, SLOW, HANGING, AWAY, AWAY)[number % 7]


def set_topic(world: World, number: int) -> None:
    world.topic.is_away = number % 3 == 0
    world.topic.takes_nothing = bool(number >> 5 & 1)
    world.topic.delay_max_s = (0.02, 0.5)[(number >> 4) % 2]


def retention(world: World, number: int) -> None:
    """The topic keeps its records for a longer or a shorter time; a replica falls behind, or is in sync again."""
    world.cluster.has_lagging_replica = (number >> 4) % 3 == 0
    for topic in world.cluster.retention_ms:
        world.cluster.retention_ms[topic] = RETENTIONS_MS[number % len(RETENTIONS_MS)]


def mute(world: World, number: int) -> None:
    """Nobody is told of the cluster any more, or all are again."""
    world.cluster.is_mute = number % 3 == 0


def delete_topic(world: World, number: int) -> None:
    """And make it anew, under the same name."""
    world.hit("topic deleted")
    world.delete_topic()
    living = sorted(world.cluster.living)
    world.make_topic(living[number % len(living)])
    for agent in list(world.agents.values()):
        world.tell_later(agent, world.random("leadership").choice((0.0, 0.3, 2.0)))


DO: dict[str, Callable[[World, int], None]] = {
    "store": store,
    "topic": set_topic,
    "retention": retention,
    "mute": mute,
    "delete topic": delete_topic,
}
