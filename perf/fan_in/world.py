"""The follower's side of one agent, in this process; leaders and fetchers are played in another one.

Real are the follower's proxy, the hydration cache with its reads, checks and splices, its asking of a neighbour, and a
directory as the store. What else an agent does is not here; so it gives nothing to neighbours, which an agent does as
often as it asks. Each partition has a replica in each of three zones, so two thirds of the brokers lead something that
is followed here; what an object holds of it follows from their number.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

from prometheus_client import CollectorRegistry

from perf.clusters import directory_in_memory
from perf.fan_in.played_leaders import (
    CLUSTER,
    FOLLOWER,
    HELLO_CAPABILITIES,
    NEIGHBOUR,
    PlayedLeader,
    Share,
    Tally,
    opened,
)
from perf.fan_in.played_neighbour import PlayedNeighbour
from perf.gateway.world import quantile
from replication.follower.catch_up_reads import CatchUpReads
from replication.follower.follower_context import FollowerContext, FollowerLimits
from replication.follower.follower_proxy import FollowerProxy
from replication.follower.hydration import HydrationCache, HydrationLimits
from replication.follower.neighbours.neighbours import Neighbours
from replication.follower.read_quota import CatchUpReadLimits
from replication.wire.known_peers import KnownPeers
from replication.wire.metrics import ReplicationMetrics
from replication.wire.peer_connection import Address
from replication.wire.peer_protocol import Hello
from retention_job.cost.placed_followers import ranges_by_chance
from rlm.write_path.metrics import StageTimes
from tests.metric_values import metric_value

_LOOPBACK = Address("127.0.0.1", 0)


@dataclass(frozen=True, slots=True)
class Shape:
    """What each leader produces, and for how long it is measured."""

    objects_per_s: float
    mb_per_s: float
    partitions: int
    """Of each leader, all of them in each object."""
    warm_up_s: float
    seconds: float
    is_shared: bool = False
    """A neighbour reads all objects."""


@dataclass(frozen=True, slots=True)
class Followed:
    """What the follower's side of one agent did."""

    brokers: int
    leaders: int
    ranges: int
    """That an object is read in."""
    objects_per_s: float
    """Read, of all leaders."""
    mb_per_s: float
    asked_per_object: float
    """Ranges that the neighbour gave."""
    cores: float
    late_p50_ms: float
    """From an object's announcement until the broker has all that it holds for it."""
    late_p99_ms: float

    @property
    def cpu_ms_per_object(self) -> float:
        """For each object that is read."""
        return 1000 * self.cores / self.objects_per_s


def leaders_of(brokers: int) -> int:
    """In other zones than the follower's."""
    return max(round(brokers * 2 / 3), 2)


def share_of(brokers: int, shape: Shape) -> Share:
    """What an object of each leader holds for one of its followers, on the mean."""
    followers = leaders_of(brokers)
    mine = max(round(2 * shape.partitions / followers), 1)
    ranges = ranges_by_chance(followers, 2, shape.partitions, 0)[0]
    record_bytes = round(shape.mb_per_s * 1e6 / shape.objects_per_s / shape.partitions)
    return Share(
        shape.objects_per_s, mine, min(max(round(ranges / followers), 1), mine), max(record_bytes, 1), shape.is_shared
    )


def measure(brokers: Sequence[int], shape: Shape) -> list[Followed]:
    """For each of these numbers of brokers. Raises EOFError when what was played ended by an error, which it prints."""
    with directory_in_memory() as directory:
        return [_measure(count, shape, directory / str(count)) for count in brokers]


def _measure(brokers: int, shape: Shape, directory: Path) -> Followed:
    directory.mkdir()
    own, other = get_context("spawn").Pipe()
    share, leaders = share_of(brokers, shape), range(FOLLOWER + 1, FOLLOWER + 1 + leaders_of(brokers))
    played = get_context("spawn").Process(target=play, args=(other, directory, share, list(leaders)), daemon=True)
    played.start()
    other.close()  # so that its end is told
    try:
        return asyncio.run(_followed(brokers, shape, share, directory, own))
    finally:
        played.terminate()
        played.join()


async def _followed(brokers: int, shape: Shape, share: Share, directory: Path, played: Connection) -> Followed:
    addresses: dict[int, Address] = await asyncio.to_thread(played.recv)
    neighbour = {NEIGHBOUR: addresses.pop(NEIGHBOUR)}
    storage, metrics = opened(directory, FOLLOWER), ReplicationMetrics(CollectorRegistry())
    times = StageTimes(metrics.registry)
    cache = HydrationCache(storage, HydrationLimits(8, 128 << 20), times, metrics, time.monotonic)
    catch_up = CatchUpReads(cache, CatchUpReadLimits(2, 64 << 20, 16 << 20, 1.0), metrics, time.monotonic)
    hello, limits = Hello(CLUSTER, FOLLOWER, 1, HELLO_CAPABILITIES), FollowerLimits(hydration_timeout_s=5.0)
    context = FollowerContext(hello, limits, cache, times, metrics, catch_up, lambda: None, time.monotonic)
    proxy = FollowerProxy(context, KnownPeers(addresses))
    cache.neighbours = neighbours = Neighbours(context, KnownPeers(neighbour), lambda _: True)
    await proxy.start(dict.fromkeys(addresses, _LOOPBACK))
    played.send(proxy.addresses)
    try:
        await asyncio.to_thread(played.recv)
        await asyncio.sleep(shape.warm_up_s)
        played.send("begin")
        began_s, used_s = time.monotonic(), time.process_time()
        given = metric_value(metrics.shared_reads.ranges.labels("given", "asker"))
        await asyncio.sleep(shape.seconds)
        played.send("end")
        given = metric_value(metrics.shared_reads.ranges.labels("given", "asker")) - given
        seconds, used_s = time.monotonic() - began_s, time.process_time() - used_s
        tally: Tally = await asyncio.to_thread(played.recv)
    finally:
        await proxy.stop()
        await neighbours.close()
        cache.close()
        catch_up.close()
        storage.close()
    return Followed(
        brokers,
        len(addresses),
        share.ranges,
        tally.objects / seconds,
        tally.bytes / seconds / 1e6,
        given / max(tally.objects, 1),
        used_s / seconds,
        quantile(tally.late_ms, 0.5),
        quantile(tally.late_ms, 0.99),
    )


def play(pipe: Connection, directory: Path, share: Share, broker_ids: Sequence[int]) -> None:
    """In a process of its own: the leaders, and the fetchers that follow them."""
    asyncio.run(_play(pipe, directory, share, broker_ids))


async def _play(pipe: Connection, directory: Path, share: Share, broker_ids: Sequence[int]) -> None:
    leaders = {one: PlayedLeader(one, share, opened(directory, one)) for one in broker_ids}
    neighbour = PlayedNeighbour(opened(directory, NEIGHBOUR))
    pipe.send({one: await leader.start() for one, leader in leaders.items()} | {NEIGHBOUR: await neighbour.start()})
    agent: dict[int, Address] = await asyncio.to_thread(pipe.recv)
    async with asyncio.TaskGroup() as tasks:
        for one, leader in leaders.items():
            tasks.create_task(leader.fetch_on(agent[one]))
            tasks.create_task(leader.store_on())
        await asyncio.gather(*(leader.flows.wait() for leader in leaders.values()))
        pipe.send("all flow")
        await asyncio.to_thread(pipe.recv)
        for leader in leaders.values():
            leader.tally = Tally()
        await asyncio.to_thread(pipe.recv)
        found = [leader.tally for leader in leaders.values()]
        late_ms = [late for one in found for late in one.late_ms]
        pipe.send(Tally(sum(one.objects for one in found), sum(one.bytes for one in found), late_ms))
        await asyncio.Event().wait()  # until this process is ended
