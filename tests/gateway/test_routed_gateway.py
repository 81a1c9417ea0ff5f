"""Produce requests by object storage from where clients connect to the broker's listener, if both agents have it on."""

import asyncio
import struct

import pytest

from gateway.serve.fetch_frames import with_zone
from replication.wire.fetch_frame import scan_fetch_request
from replication.wire.framed_connection import FramedConnection
from replication.wire.peer_connection import connect_framed
from replication.wire.peer_protocol import CAPABILITIES, Hello, PeerCapabilities
from tests.gateway import gateway_rig
from tests.gateway.gateway_rig import GatewayRig
from tests.gateway.produce.produce_frames import produce, records
from tests.gateway.routed_rig import GATEWAY_ID, INCARNATION, MAX_FRAME_BYTES, answered, started
from tests.replication.fetch_frames import request as fetch_request

CLIENTS, ROUTED = PeerCapabilities.CLIENTS, PeerCapabilities.ROUTED_PRODUCE
FETCH = fetch_request({0: 5}, correlation_id=20, replica_id=-1)
FRAMES = [produce({0: records(5000)}, correlation_id=number) for number in range(20)]


@pytest.mark.parametrize("has_handler", [True, False], ids=["with the agent beside the broker", "without it"])
@pytest.mark.parametrize("has_gateway", [True, False], ids=["with the gateway", "without it"])
async def test_records_go_by_object_storage_where_both_agents_have_it_on(has_gateway: bool, has_handler: bool) -> None:
    produced: list[bytes] = []

    async def broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while size := await reader.read(4):
            frame = await reader.readexactly(int.from_bytes(size, "big"))
            produced.append(frame)
            writer.write(struct.pack(">i", 4) + frame[4:8])

    async with started() as routed:
        rig = GatewayRig(
            serve=broker,
            granted=CAPABILITIES | CLIENTS | (ROUTED if has_handler else PeerCapabilities.NONE),
            asked=Hello("cluster", GATEWAY_ID, INCARNATION, CLIENTS | (ROUTED if has_gateway else CLIENTS)),
            routing=routed.routing,
            names_rack=True,
            splicing=routed.splicing,
        )
        async with gateway_rig.started(rig):
            client = await connect_framed(rig.gateway.addresses[1], FramedConnection(MAX_FRAME_BYTES))
            for frame in [*FRAMES, FETCH]:
                client.write_frame(frame)
            assert [await answered(client) for _ in [*FRAMES, FETCH]] == list(range(len(FRAMES) + 1))
            client.close()
            await rig.until(lambda: rig.connections("gateway") == rig.connections("broker") == 0)
        assert produced == [*FRAMES, with_zone(FETCH, "az2")]
        assert scan_fetch_request(produced[-1], 17).rack == "az2"
        assert routed.count("produce_requests", way="linked") == (20 if has_gateway and has_handler else 0)
        crossed_bytes = rig.gateway_bytes("to_broker")
        assert crossed_bytes == rig.broker_bytes("to_broker")
        moved = rig.traffic.own
        assert moved.sent_bytes == sum(4 + len(frame) for frame in [*FRAMES, FETCH])
        assert moved.sent_crossed_bytes == crossed_bytes
        assert moved.given_bytes == moved.untold_bytes == 8 * 21
        assert moved.given_crossed_bytes == rig.gateway_bytes("to_client")
        assert (crossed_bytes < sum(map(len, FRAMES)) / 10) is (has_gateway and has_handler)
        await routed.until(lambda: routed.store.blobs == {})
