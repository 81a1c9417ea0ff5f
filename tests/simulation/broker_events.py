"""What brokers do: their logs grow, roll, expire, are compacted, and cut by elections."""

from collections.abc import Callable

from tests.simulation.led_log import LedLog
from tests.simulation.world import World


def append(world: World, number: int) -> None:
    world.append(world.log(number), 1 + (number >> 4) % 3, (number >> 8) % 300)


def burst(world: World, number: int) -> None:
    for _ in range(5 + (number >> 4) % 40):
        world.append(world.log(number), 1, 50 + (number >> 8) % 400)


def roll(world: World, number: int) -> None:
    log = world.log(number)
    log.log.roll()
    world.changed(log)


def tear(world: World, number: int) -> None:
    """A batch is written in part, or with its last bytes to come; so it stays until the next one is appended.

    Not where something was cut off: what stands in the place of that may hide it for longer than one look.
    """
    log = world.log(number)
    if log.cuts:
        return
    world.hit("torn batch")
    log.log.tear(log.epoch, 1 + (number >> 4) % 80, full_length=bool(number >> 12 & 1))
    world.changed(log)


def expire(world: World, number: int) -> None:
    """Not before agents have seen what elections cut off.

    Of what was appended in its place and is gone already at their next look they can know nothing.
    """
    log = world.log(number)
    leading = [agent for agent in world.agents.values() if log.partition in agent.manager.led()]
    if any(agent.cuts_seen(log.partition) < len(log.cuts) for agent in leading):
        return
    for _ in range(1 + (number >> 4) % 3):
        log.expire(unlink=bool(number >> 8 & 1))
    world.changed(log)


def compact(world: World, number: int) -> None:
    log = world.log(number)
    closed = [at for at, segment in enumerate(log.log.segments[:-1]) if len(segment.batches) > 1]
    if closed:
        log.is_compacted = True
        log.log.compact(closed[(number >> 4) % len(closed)])
        world.invariants.rewritten(log)
        world.changed(log)


def elect(world: World, number: int) -> None:
    """Clean, or unclean; of the same broker, or the other one. Agents learn of it later."""
    log = world.log(number)
    cut_off = (number >> 4) % 8 if number >> 8 & 1 else 0
    living = sorted(world.cluster.living)
    leader = living[(number >> 9) % len(living)]
    if cut_off:
        world.hit("truncated")
    elect_leader(world, log, leader, cut_off, writes_its_epoch=bool(number >> 10 & 1))
    if number >> 11 & 1:
        world.append(log, 1 + (number >> 12) % 3, 40)


def elect_leader(world: World, log: LedLog, leader: int, cut_off: int = 0, *, writes_its_epoch: bool = False) -> None:
    log.elect(leader, cut_off, writes_its_epoch=writes_its_epoch)
    world.invariants.rewritten(log)
    world.changed(log)
    for agent in list(world.agents.values()):
        world.tell_later(agent, world.random("leadership").choice((0.0, 0.01, 0.3, 2.0)))


DO: dict[str, Callable[[World, int], None]] = {
    "append": append,
    "burst": burst,
    "roll": roll,
    "tear": tear,
    "expire": expire,
    "compact": compact,
    "elect": elect,
}
