"""What happens to brokers, agents, and what lies between them."""

import asyncio
from collections.abc import Awaitable, Callable

from tests.simulation.replicas.replica_storage import READ_MODES
from tests.simulation.replicas.replicated_world import BROKERS, PARTITIONS, ReplicatedWorld
from tests.simulation.seeded_storage import AWAY, FLAKY, HANGING, HEALTHY, SLOW

_AWAY_S = (0.05, 0.5, 2.0, 8.0)


def _produce(world: ReplicatedWorld, partition: int, batches: int, records: int, size: int) -> None:
    found = world.leader_of(partition)
    if found is not None:
        broker, replica = found
        for _ in range(batches):
            broker.context.run(broker.produce, replica, records, b"%d" % (replica.end % 10) * size)


def produce(world: ReplicatedWorld, number: int) -> None:
    _produce(world, number % PARTITIONS, 1, 1 + (number >> 4) % 3, (number >> 8) % 300)


def burst(world: ReplicatedWorld, number: int) -> None:
    _produce(world, number % PARTITIONS, 5 + (number >> 4) % 30, 1, 50 + (number >> 8) % 400)


def roll(world: ReplicatedWorld, number: int) -> None:
    broker = BROKERS[number % 3]
    replica = world.replicas[broker][(number >> 4) % PARTITIONS]
    if broker in world.brokers:
        replica.files.log.roll()
        world.log_changed(broker, replica)


def retain(world: ReplicatedWorld, number: int) -> None:
    """A leader deletes its oldest segments, as far as its followers have them."""
    found = world.leader_of(number % PARTITIONS)
    if found is None:
        return
    broker, replica = found
    log = replica.files.log
    for _ in range(1 + (number >> 4) % 3):
        if len(log.segments) > 1 and log.segments[1].base_offset <= replica.high_watermark:
            replica.files.expire(unlink=bool(number >> 8 & 1))
            world.hit("segment deleted")
    world.invariants.deleted(replica.files.partition.partition, replica.start)
    world.log_changed(broker.broker_id, replica)


def compact(world: ReplicatedWorld, number: int) -> None:
    """A broker cleans a closed segment of its replica, as its own cleaner sees fit: others have it whole for a time."""
    broker = BROKERS[number % 3]
    replica = world.replicas[broker][(number >> 4) % PARTITIONS]
    if broker in world.brokers and f"broker {broker}" not in world.paused:
        removed = replica.compact(number >> 8)
        if removed:
            world.hit("replica compacted")
            world.invariants.compacted(replica.files.partition.partition, removed)
            world.rewritten(broker, replica)


def move_leader(world: ReplicatedWorld, number: int) -> None:
    world.controller.move(number % PARTITIONS, number >> 4)


def elect_unclean(world: ReplicatedWorld, number: int) -> None:
    world.controller.elect_unclean(number % PARTITIONS, number >> 4)


def crash_broker(world: ReplicatedWorld, number: int) -> None:
    broker = BROKERS[number % 3]
    if broker in world.brokers and len(world.brokers) > 1:
        world.hit("broker crashed")
        world.crash_broker(broker)

        def start() -> None:
            if broker not in world.brokers:
                world.start_broker(broker)

        world.loop.call_later(_AWAY_S[(number >> 4) % 4], start)


async def lose_power(world: ReplicatedWorld, number: int) -> None:
    """A host stands still, and has written to its disk what it had time for: broker and agent come back with less.

    Kafka waits for no disk, so what was acknowledged may be gone there; it takes such a broker out of the ISR before it
    is led by it. Who is the last one in sync is spared, as Kafka itself would lose records with it (KIP-966).
    """
    broker = BROKERS[number % 3]
    if broker not in world.brokers or len(world.brokers) == 1:
        return
    world.hit("power lost")
    crash_broker(world, number)
    world.controller.fence(broker)
    for replica, known in zip(world.replicas[broker], world.controller.partitions, strict=True):
        if broker not in known.isr:
            flushed = replica.files.log.segments[-1].base_offset
            replica.truncate(flushed + (number >> 8) % (replica.end - flushed + 1))
            world.rewritten(broker, replica)
    await crash_agent(world, number)


def pause_broker(world: ReplicatedWorld, number: int) -> None:
    """It stands still; when it goes on, it may lead no more."""
    broker = BROKERS[number % 3]
    name = f"broker {broker}"
    if broker not in world.brokers or name in world.paused:
        return
    world.hit("broker paused")
    world.pause(name)
    world.controller.silent(broker)

    def go_on() -> None:
        if name in world.paused:
            world.resume(name)
            world.controller.heard(broker)

    world.loop.call_later(_AWAY_S[(number >> 4) % 4], go_on)


def _start_agent_later(world: ReplicatedWorld, broker: int, number: int) -> None:
    def start() -> None:
        if broker not in world.agents:
            world.start_agent(broker)

    world.loop.call_later(_AWAY_S[number % 4], start)


async def crash_agent(world: ReplicatedWorld, number: int) -> None:
    agent = world.agents.pop(BROKERS[number % 3], None)
    if agent is None:
        return
    world.resume(agent.name)
    publication = agent.writing.publication
    waiting = len(publication)
    lost = publication.die((number >> 4) % (waiting + 1))
    world.hits["publication lost with a crash"] += lost
    world.hits["publication survives a crash"] += waiting - lost
    made, not_made = await agent.crash(world.random("crash"))
    world.hits["crash after an upload's effect"] += made
    world.hits["crash before an upload's effect"] += not_made
    world.count(agent)
    _start_agent_later(world, agent.broker_id, number >> 12)


async def stop_agent(world: ReplicatedWorld, number: int) -> None:
    agent = world.agents.get(BROKERS[number % 3])
    if agent is None or agent.name in world.paused:
        return
    del world.agents[agent.broker_id]
    world.hit("agent stopped")
    await agent.stop((0.1, 2.0)[(number >> 4) % 2])
    agent.writing.publication.die((number >> 8) % (len(agent.writing.publication) + 1))
    world.count(agent)
    _start_agent_later(world, agent.broker_id, number >> 12)


def pause_agent(world: ReplicatedWorld, number: int) -> None:
    agent = world.agents.get(BROKERS[number % 3])
    if agent is not None and agent.name not in world.paused:
        world.hit("agent paused")
        world.pause(agent.name)
        world.loop.call_later(_AWAY_S[(number >> 4) % 4], world.resume, agent.name)


def cut_connections(world: ReplicatedWorld, number: int) -> None:
    ends = world.network.connections()
    for _ in range(1 + (number >> 20) % 3):
        if ends:
            world.hit("connection cut")
            world.network.cut(ends[number % len(ends)])
            ends = world.network.connections()
        number >>= 2


def cut_zones_apart(world: ReplicatedWorld, number: int) -> None:
    one, other = ((1, 2), (1, 3), (2, 3))[number % 3]
    world.hit("zones cut apart")
    world.network.cut_apart(one, other)
    world.loop.call_later((0.1, 1.0, 5.0, 12.0)[(number >> 4) % 4], world.network.join)


def join_zones(world: ReplicatedWorld, number: int) -> None:
    world.network.join()


def change_network(world: ReplicatedWorld, number: int) -> None:
    world.network.slowest_s = (0.002, 0.002, 0.05, 0.3)[number % 4]


def store(world: ReplicatedWorld, number: int) -> None:
    world.storage.mode = (HEALTHY, HEALTHY, HEALTHY, FLAKY, SLOW, HANGING, AWAY)[number % 7]


def reads(world: ReplicatedWorld, number: int) -> None:
    world.storage.read_mode = READ_MODES[number % len(READ_MODES)]


def lose_object(world: ReplicatedWorld, number: int) -> None:
    objects = world.storage.objects
    if objects:
        world.hit("object lost")
        del objects[sorted(objects)[-1 - number % min(len(objects), 10)]]


def set_topic(world: ReplicatedWorld, number: int) -> None:
    world.topic.is_away = number % 3 == 0
    world.topic.delay_max_s = (0.02, 0.5)[(number >> 4) % 2]


def lose_events(world: ReplicatedWorld, number: int) -> None:
    for agent in world.agents.values():
        for events in agent.writing.directory_events:
            agent.context.run(events.overflow)
            world.hit("events overflow")


def jump(world: ReplicatedWorld, number: int) -> None:
    world.loop.jump((0.01, 0.3, 4.0, 15.0)[number % 4])


async def let_be(world: ReplicatedWorld, number: int) -> None:
    await asyncio.sleep(1 + number % 3)


DO: dict[str, Callable[[ReplicatedWorld, int], Awaitable[None] | None]] = {
    "produce": produce,
    "burst": burst,
    "roll": roll,
    "retain": retain,
    "compact": compact,
    "move leader": move_leader,
    "elect unclean": elect_unclean,
    "crash broker": crash_broker,
    "lose power": lose_power,
    "pause broker": pause_broker,
    "crash agent": crash_agent,
    "stop agent": stop_agent,
    "pause agent": pause_agent,
    "cut connections": cut_connections,
    "cut zones apart": cut_zones_apart,
    "join zones": join_zones,
    "network": change_network,
    "store": store,
    "reads": reads,
    "lose object": lose_object,
    "topic": set_topic,
    "lose events": lose_events,
    "jump": jump,
    "let be": let_be,
}
