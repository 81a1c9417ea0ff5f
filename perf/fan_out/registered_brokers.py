"""Brokers that a real controller takes for alive, and of which nothing else is there.

They register and send heartbeats as Kafka's message definitions BrokerRegistrationRequest and BrokerHeartbeatRequest
have it (KIP-631, KIP-858), so topics may have replicas on them; who wants them to follow does that for them. Clients
that ask one of them find the real broker in its place, as Kafka names any broker for what only the controller does.
"""

import asyncio
import struct
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count
from typing import Final, Self

from replication.wire.kafka_frame import encode_unsigned_varint
from replication.wire.peer_connection import Address

_REGISTER, _REGISTER_VERSION = 62, 4
_HEARTBEAT, _HEARTBEAT_VERSION = 63, 1
_FEATURES: Final = (
    "metadata.version", "kraft.version", "transaction.version", "group.version", "eligible.leader.replicas.version",
    "share.version", "streams.version",
)  # fmt: skip
_HIGHEST_LEVEL: Final = 99
"""Of each feature: they go along with whatever the cluster runs on."""
_NOWHERE: Final = 9
"""The port where no broker finds them."""
_HEARTBEAT_S: Final = 2.0
_SIZE = struct.Struct(">i")
_ANSWER = struct.Struct(">ixihq")  # correlation id, no tags, throttle time, error, broker epoch
_ANSWER_ERROR = struct.Struct(">ixih")


class ControllerRefusedError(Exception):
    """The controller's error code says why."""


@dataclass(frozen=True, slots=True)
class RegisteredBroker:
    """One of them."""

    broker_id: int
    epoch: int


class Registrar:
    """A connection to the controller, for all of them. Used from the event loop alone."""

    def __init__(
        self, cluster_id: str, clients: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._cluster_id, self._clients = cluster_id, clients
        self._reader, self._writer = reader, writer
        self._correlation_ids = count(1)
        self._turn = asyncio.Lock()

    @classmethod
    async def connect(cls, cluster_id: str, controller: Address, clients: Address) -> Self:
        """`clients` is where clients reach the real broker. Raises OSError."""
        return cls(cluster_id, clients, *await asyncio.open_connection(controller.host, controller.port))

    async def register(self, broker_id: int, rack: str) -> RegisteredBroker:
        """It is fenced until its first heartbeat. Raises ControllerRefusedError, OSError."""
        answer = await self._ask(
            _REGISTER,
            _REGISTER_VERSION,
            registration(broker_id, self._cluster_id, rack, self._clients),
            f"register {broker_id}",
        )
        broker = RegisteredBroker(broker_id, _ANSWER.unpack_from(answer)[3])
        await self._beat(broker)
        return broker

    async def keep_alive(self, brokers: Iterable[RegisteredBroker]) -> None:
        """For ever, at an interval well within broker.session.timeout.ms. Raises ControllerRefusedError, OSError."""
        kept = tuple(brokers)
        while True:
            for broker in kept:
                await self._beat(broker)
            await asyncio.sleep(_HEARTBEAT_S)

    def close(self) -> None:
        """They are fenced when their sessions end."""
        self._writer.close()

    async def _beat(self, broker: RegisteredBroker) -> None:
        await self._ask(_HEARTBEAT, _HEARTBEAT_VERSION, heartbeat(broker), f"heartbeat of {broker.broker_id}")

    async def _ask(self, api: int, version: int, body: bytes, what: str) -> bytes:
        async with self._turn:
            frame = struct.pack(">hhihx", api, version, next(self._correlation_ids), -1) + body
            self._writer.write(_SIZE.pack(len(frame)) + frame)
            size = _SIZE.unpack(await self._reader.readexactly(_SIZE.size))[0]
            answer = await self._reader.readexactly(size)
        if error := _ANSWER_ERROR.unpack_from(answer)[2]:
            raise ControllerRefusedError(f"{what}: error {error}")
        return answer


def registration(broker_id: int, cluster_id: str, rack: str, clients: Address) -> bytes:
    """The body of a BrokerRegistrationRequest."""
    listeners_at = {"CLIENT": clients, "REPLICATION": Address("127.0.0.1", _NOWHERE)}  # as a local cluster names them
    listeners = [
        _string(name) + _string(where.host) + struct.pack(">Hhx", where.port, 0) for name, where in listeners_at.items()
    ]
    features = [_string(name) + struct.pack(">hhx", name == "metadata.version", _HIGHEST_LEVEL) for name in _FEATURES]
    return b"".join((
        struct.pack(">i", broker_id),
        _string(cluster_id),
        _id("incarnation", cluster_id, broker_id),
        _array(listeners),
        _array(features),
        _string(rack),
        bytes(1),  # is no ZooKeeper broker that migrates
        _array([_id("log directory", cluster_id, broker_id)]),
        struct.pack(">qx", -1),  # has no epoch of before
    ))  # fmt: skip


def heartbeat(broker: RegisteredBroker) -> bytes:
    """The body of a BrokerHeartbeatRequest of one that has read the metadata to its own registration."""
    return struct.pack(">iqq??x", broker.broker_id, broker.epoch, broker.epoch, False, False)


def _id(of: str, cluster_id: str, broker_id: int) -> bytes:
    return uuid.uuid5(uuid.NAMESPACE_OID, f"{of} of {broker_id} in {cluster_id}").bytes


def _string(text: str) -> bytes:
    raw = text.encode()
    return encode_unsigned_varint(len(raw) + 1) + raw


def _array(items: list[bytes]) -> bytes:
    return encode_unsigned_varint(len(items) + 1) + b"".join(items)
