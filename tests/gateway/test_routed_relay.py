"""Produce requests by object storage over real sockets, through both ends, with a store that fails."""

import asyncio
import math
from dataclasses import replace

import pytest

from gateway.produce.route_core import RouteLimits, Window
from gateway.produce.router_channel import KEEP_S
from gateway.produce.splice_core import SpliceLimits
from plugin.router_object_id import EPOCH_MS, RouterObjectId
from replication.wire.framed_connection import FramedConnection
from tests.gateway.produce.produce_frames import produce, records
from tests.gateway.routed_rig import (
    GATEWAY_ID,
    INCARNATION,
    MAX_FRAME_BYTES,
    NOTHING_IS_NAMED,
    UPLOADS,
    WALL_MS,
    RoutedRig,
    answered,
    started,
)
from tests.replication.fetch_frames import request as fetch_request


def frame_of(number: int, size: int = 3000, acks: int = -1) -> bytes:
    return produce({0: records(size), 1: records(20)}, correlation_id=number, acks=acks)


async def exchange(client: FramedConnection, *frames: bytes) -> list[int]:
    """All at once, as a client that pipelines; the answers' correlation ids."""
    for frame in frames:
        client.write_frame(frame)
    return [await answered(client) for _ in frames]


async def test_requests_go_by_the_store_and_reach_the_broker_as_they_were_sent() -> None:
    async with started() as rig:
        client, frames = await rig.connect(), [frame_of(number) for number in range(20)]
        assert await exchange(client, *frames) == list(range(20))
        assert rig.produced == frames
        assert rig.count("produce_requests", way="linked") == 20
        router = rig.metrics.router
        assert router.get == rig.store.gets == 20
        assert router.put == rig.store.puts
        assert router.put_bytes == router.get_bytes == 20 * len(records(3000) + records(20))
        assert 1 <= rig.store.puts < 20  # many share an object
        await rig.until(lambda: rig.store.blobs == {} and rig.channel.objects == 0)
        assert rig.budget.used == 0


async def test_what_is_not_for_the_store_goes_on_in_its_place() -> None:
    async with started(RoutedRig(answers=lambda frame: frame != frame_of(3, acks=0))) as rig:
        client = await rig.connect()
        frames = [frame_of(1), fetch_request({0: 5}, correlation_id=2), frame_of(3, acks=0), frame_of(4)]
        for frame in frames:
            client.write_frame(frame)
        assert [await answered(client) for _ in range(3)] == [1, 2, 4]
        assert rig.produced == frames
        assert rig.count("produce_requests", way="inline") == 2


async def test_many_clients_share_objects() -> None:
    async with started() as rig:
        clients = [await rig.connect() for _ in range(10)]
        for client in clients:
            client.write_frame(frame_of(7))
        assert [await answered(client) for client in clients] == [7] * 10
        assert rig.produced == [frame_of(7)] * 10
        assert rig.store.puts < 10


@pytest.mark.parametrize("fault", ["put", "get", "delete", "corrupt", "put hangs", "get hangs", "all"])
async def test_whatever_the_store_does_in_the_middle_the_broker_gets_all_and_once(fault: str) -> None:
    async with started(RoutedRig(RouteLimits(0.02), SpliceLimits(0.02, MAX_FRAME_BYTES))) as rig:
        client, frames = await rig.connect(), [frame_of(number) for number in range(60)]
        assert await exchange(client, *frames[:20]) == list(range(20))
        rig.store.fails = {"put", "get", "delete"} if fault == "all" else {fault}
        rig.store.corrupts = fault == "corrupt"
        if fault == "put hangs":
            rig.store.may_put.clear()
        if fault == "get hangs":
            rig.store.may_get.clear()
        assert await exchange(client, *frames[20:40]) == list(range(20, 40))
        rig.store.fails, rig.store.corrupts = set(), False
        rig.store.may_put.set()
        rig.store.may_get.set()
        assert await exchange(client, *frames[40:]) == list(range(40, 60))
        assert rig.produced == frames
        assert not rig.errors
        await rig.until(lambda: rig.store.blobs == {} and rig.channel.objects == 0)
        assert rig.budget.used == 0
        gone_inline = rig.count("produce_requests", way="inline") + rig.count("produce_requests", way="original")
        assert gone_inline or fault == "delete"  # there a busy machine may be late as well


async def test_a_client_that_goes_leaves_nothing_behind_and_what_was_not_forwarded_is_not_produced() -> None:
    async with started() as rig:
        client = await rig.connect()
        assert await exchange(client, frame_of(0)) == [0]
        rig.store.may_put.clear()
        for number in (1, 2, 3):
            client.write_frame(frame_of(number))
        await rig.until(lambda: rig.budget.used > 8000)
        client.close()
        await rig.until(lambda: rig.budget.used == 0)
        rig.store.may_put.set()
        await rig.until(lambda: rig.store.blobs == {} and rig.channel.objects == 0)
        assert rig.produced == [frame_of(0)]


async def test_a_client_is_read_no_further_than_what_may_be_kept() -> None:
    async with started(RoutedRig(RouteLimits(60.0, kept_requests=4))) as rig:
        rig.store.may_put.clear()
        client, frames = await rig.connect(), [frame_of(number) for number in range(12)]
        for frame in frames:
            client.write_frame(frame)
        await rig.until(lambda: rig.budget.used >= 4 * len(frames[0]))
        await asyncio.sleep(0.05)
        assert rig.budget.used == 4 * len(frames[0])
        rig.store.may_put.set()
        assert [await answered(client) for _ in frames] == list(range(12))
        assert rig.produced == frames


async def test_a_defect_while_an_object_is_uploaded_costs_neither_it_nor_what_comes_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with started() as rig:
        rig.store.may_put.clear()
        client = await rig.connect()
        client.write_frame(frame_of(1))
        await rig.until(lambda: rig.channel.objects == 1)
        with monkeypatch.context() as patched:
            patched.setattr(rig.channel, "round", lambda *_: 1 / 0)
            client.write_frame(frame_of(2))
            await rig.until_restarted(UPLOADS)
        rig.store.may_put.set()
        assert [await answered(client), await answered(client)] == [1, 2]
        assert rig.count("produce_requests", way="linked") == 2


async def test_a_gateway_that_names_another_incarnations_objects_is_let_go() -> None:
    async with started(RoutedRig(incarnation=INCARNATION - 1)) as rig:
        client = await rig.connect()
        client.write_frame(frame_of(1))
        assert await client.read_frame() is None
        assert [type(error).__name__ for error in rig.errors] == ["MalformedFrameError"]
        assert rig.produced == []


async def test_what_dead_gateways_left_is_swept_and_what_is_in_use_is_not() -> None:
    async with started(RoutedRig(answers=lambda frame: False)) as rig:
        dead = RouterObjectId(9, 1, WALL_MS // EPOCH_MS, 0).blob_name
        rig.store.blobs[dead] = b"left"
        client = await rig.connect()
        client.write_frame(frame_of(1))
        await rig.until(lambda: len(rig.produced) == 1)
        await rig.uploads.sweep()
        assert len(rig.store.blobs) == 2
        rig.store.now_ms += int(KEEP_S * 1000) + 2 * EPOCH_MS
        await rig.uploads.sweep()
        assert dead in rig.store.blobs  # as it is not known whether a log wants it
        rig.wanted.arrived(NOTHING_IS_NAMED)
        await rig.uploads.sweep()
        assert dead not in rig.store.blobs
        assert len(rig.store.blobs) == 1
        assert rig.count("router_objects", outcome="swept") == 1


async def test_objects_of_another_cluster_with_the_same_names_stay() -> None:
    async with started() as rig:
        others = {RouterObjectId(GATEWAY_ID, INCARNATION, WALL_MS // EPOCH_MS, n).blob_name: b"x" for n in range(9)}
        rig.store.blobs.update(others)
        assert await exchange(await rig.connect(), frame_of(1)) == [1]
        assert rig.count("router_objects", outcome="upload_failed") == 1
        await rig.until(lambda: rig.channel.objects == 0)
        assert rig.store.blobs == others


async def test_a_gateway_that_lost_the_lease_stores_and_deletes_nothing() -> None:
    async with started() as rig:
        client, loop = await rig.connect(), asyncio.get_running_loop()
        rig.wanted.arrived(replace(NOTHING_IS_NAMED, is_stopped=lambda: rig.store.puts > 0))
        assert await exchange(client, frame_of(1)) == [1]
        await rig.until(lambda: loop.time() < rig.channel.next_deletion_s < math.inf)
        assert await exchange(client, frame_of(2)) == [2]
        assert rig.store.puts == len(rig.store.blobs) == 1
        assert rig.count("produce_requests", way="inline") == 1


async def test_a_window_of_one_frame_holds_up_nothing_for_good() -> None:
    window = Window(1, 1 << 20)
    limits = RoutedRig(RouteLimits(0.02, window=window), SpliceLimits(0.02, MAX_FRAME_BYTES, window=window))
    async with started(limits) as rig:
        client, frames = await rig.connect(), [frame_of(number) for number in range(20)]
        rig.store.fails = {"get"}
        assert await exchange(client, *frames) == list(range(20))
        assert rig.produced == frames
        assert not rig.errors


@pytest.mark.parametrize(("acks", "count"), [(-1, 24), (0, 60)], ids=["by the store", "inline"])
async def test_a_broker_that_throttles_a_client_for_long_closes_nothing(acks: int, count: int) -> None:
    async with started(RoutedRig(RouteLimits(3600.0), SpliceLimits(3600.0, MAX_FRAME_BYTES))) as rig:
        rig.may_read.clear()
        client, frames = await rig.connect(), [frame_of(number, 1_000_000, acks) for number in range(count)]
        for frame in frames:
            client.write_frame(frame)
        await rig.until_all_stand_still()
        loop, ahead_s = asyncio.get_running_loop(), 2 * rig.frame_timeout_s
        now = loop.time
        loop.time = lambda: now() + ahead_s  # type: ignore[method-assign]
        for _ in range(10):
            await asyncio.sleep(0.001)
        rig.may_read.set()
        await rig.until(lambda: len(rig.produced) == len(frames))
        assert rig.produced == frames
        assert rig.errors == []
        client.close()
