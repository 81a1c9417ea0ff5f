"""What becomes of agents: assigned, crashed, stopped, asked, stood still."""

import asyncio
from collections.abc import Awaitable, Callable

from tests.metadata_topic.store_oracles import write_snapshot
from tests.simulation.broker_events import append, elect_leader
from tests.simulation.world import BROKERS, World


def assign(world: World, number: int) -> None:
    """Taken from those that are cared for, or given back."""
    world.withdrawn ^= {world.log(number).partition}
    for agent in list(world.agents.values()):
        world.tell_later(agent, (number >> 4) % 3 * 0.02)


async def crash(world: World, number: int) -> None:
    agent = world.agents.pop(BROKERS[number % 2], None)
    if agent is None:
        return
    waiting = len(agent.publication)
    lost = agent.publication.die((number >> 4) % (waiting + 1))
    await world.end_care(agent.broker_id)
    world.hits["publication lost with a crash"] += lost
    world.hits["publication survives a crash"] += waiting - lost
    world.invariants.agents.remove(agent)
    made, not_made = await agent.crash(world.random("crash"))
    world.hits["crash after an upload's effect"] += made
    world.hits["crash before an upload's effect"] += not_made
    world.count(agent)
    if number >> 10 & 1:
        world.state.lose(agent.broker_id)
        world.snapshot = write_snapshot(agent.store, "c", agent.archive) if number >> 11 & 1 else None
    world.start_later(agent.broker_id, number >> 12)


async def stop(world: World, number: int) -> None:
    agent = world.agents.pop(BROKERS[number % 2], None)
    if agent is None:
        return
    await world.end_care(agent.broker_id)
    await agent.stop((0.1, 2.0, 20.0)[(number >> 4) % 3])
    world.invariants.check(agent)
    world.invariants.agents.remove(agent)
    agent.publication.die((number >> 8) % (len(agent.publication) + 1))
    world.count(agent)
    world.start_later(agent.broker_id, number >> 12)


async def leave(world: World, number: int) -> None:
    """A broker is gone, for a time or for good, and the other one leads."""
    broker = BROKERS[number % 2]
    if world.cluster.living != set(BROKERS):
        return
    world.cluster.living.discard(broker)
    await crash(world, number % 2 | number >> 4 << 4)
    for log in world.living_logs():
        if log.leader == broker:
            elect_leader(world, log, BROKERS[(number + 1) % 2])
    if number >> 1 & 7:
        world.loop.call_later((2.0, 30.0)[number >> 4 & 1], come_back, world, broker)


def come_back(world: World, broker: int) -> None:
    if not world.ends:
        world.cluster.living.add(broker)
        world.start_later(broker, 0)


def follow(world: World, number: int) -> None:
    """A follower fetches inline, anywhere, most often at the log's end."""
    log = world.log(number)
    batches = log.log.batches
    if not batches:
        return
    at = -1 if number >> 4 & 3 else (number >> 8) % len(batches)
    for agent in world.agents.values():
        agent.manager.mode_of(log.partition)
        agent.manager.fetched(3, log.partition, batches[at].base_offset, len(batches[at].raw))
        agent.manager.upload_expected(log.partition, batches[at].base_offset)
        if number >> 6 & 1:
            agent.manager.links_wanted([log.partition])


def jump(world: World, number: int) -> None:
    """All agents stand still, and the brokers go on."""
    world.loop.jump((0.01, 0.3, 4.0, 30.0)[number % 4])
    append(world, number >> 4)


def hurry(world: World, number: int) -> None:
    for agent in world.agents.values():
        agent.manager.hurry(world.log(number).partition, hurried=bool(number >> 4 & 1))


def declare_dead(world: World, number: int) -> None:
    for agent in world.agents.values():
        for partition in agent.led:
            agent.declare_dead(partition)


def lose_events(world: World, number: int) -> None:
    for agent in world.agents.values():
        for events in agent.directory_events:
            events.overflow()
            world.hit("events overflow")


async def let_be(world: World, number: int) -> None:
    await asyncio.sleep(1 + number % 4)


DO: dict[str, Callable[[World, int], Awaitable[None] | None]] = {
    "assign": assign,
    "crash": crash,
    "stop": stop,
    "leave": leave,
    "follow": follow,
    "jump": jump,
    "hurry": hurry,
    "declare dead": declare_dead,
    "lose events": lose_events,
    "let be": let_be,
}
