"""A model of a Kafka broker as far as replication goes: it leads and follows, by its replicas' own log files.

A leader appends, answers Fetch in sessions, waits in purgatory for enough bytes, knows where its followers are, shrinks
and extends the ISR by their lag, and moves the high watermark. It refuses who asks in another leader epoch, and tells
who has diverged where to cut. Sources: Kafka's Partition, ReplicaManager and UnifiedLog; KIP-101, KIP-227, KIP-279,
KIP-595 (truncation by Fetch).
"""

import asyncio
import random
import struct
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Protocol

from tests.kafka_log.log_writer import BatchKey, WrittenBatch
from tests.simulation.network import PROCESS
from tests.simulation.replicas.controller_model import ControllerModel
from tests.simulation.replicas.fetch_sessions import LeadersSession, SessionCache
from tests.simulation.replicas.kafka_frames import (
    FETCH,
    LIST_OFFSETS,
    Answered,
    Asked,
    EpochEnd,
    FetchRequest,
    FetchResponse,
    KafkaError,
    decode_question,
    incarnation_of,
    reply,
)
from tests.simulation.replicas.replica import NO_LEADER, UNKNOWN, Leadership, Replica
from tests.simulation.replicas.replica_fetcher import ReplicaFetcher
from tests.simulation.virtual_time import VirtualTimeLoop

TOPIC_NAME = "simulated"
PORT = 9092
LAG_MAX_S = 6.0
"""Who has not caught up for so long is taken out of the ISR."""
CHECKED_EVERY_S = 1.5
MIN_IN_SYNC = 2


class BrokersWorld(Protocol):
    loop: VirtualTimeLoop
    controller: ControllerModel
    topic_id: bytes

    def random(self, name: str) -> random.Random: ...

    def note(self, *what: object) -> None: ...

    def hit(self, fault: str) -> None: ...

    def log_changed(self, broker: int, replica: Replica) -> None: ...

    def produced(self, replica: Replica, batch: WrittenBatch, before: BatchKey | None) -> None: ...

    def followed(self, replica: Replica, batch: WrittenBatch, before: BatchKey | None, leaders_start: int) -> None: ...

    def rewritten(self, broker: int, replica: Replica) -> None: ...

    def acknowledged(self, broker: int, replica: Replica, keys: list[BatchKey]) -> None: ...

    def answered(self, request: FetchRequest, response: FetchResponse) -> None: ...

    def received(self, request: FetchRequest, response: FetchResponse) -> None: ...

    def led_changed(self, broker: int) -> None: ...


class FrameProtocol(asyncio.Protocol):
    def __init__(self, on_frame: Callable[["FrameProtocol", bytes], None], on_lost: Callable[[], None]) -> None:
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._received = b""
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= 4:
            end = 4 + int.from_bytes(self._received[:4], "big")
            if len(self._received) < end:
                break
            frame, self._received = self._received[4:end], self._received[end:]
            self._on_frame(self, frame)

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_lost()

    def send(self, frame: bytes) -> None:
        self.transport.write(struct.pack(">i", len(frame)) + frame)


class _Waiting:
    def __init__(self, protocol: FrameProtocol, request: FetchRequest, session: LeadersSession) -> None:
        self.protocol = protocol
        self.request = request
        self.session = session
        self.timer: asyncio.TimerHandle


class BrokerModel:
    """One incarnation; its files, and the replicas that stand on them, outlive it."""

    def __init__(self, world: BrokersWorld, broker_id: int, replicas: list[Replica], agent_host: str) -> None:
        self.world, self.loop = world, world.loop
        self.broker_id = broker_id
        self.replicas = replicas
        self.is_living = True
        self.agent_host = agent_host
        self.rng = world.random(f"broker {broker_id}")
        self.context: Context = copy_context()
        self.context.run(PROCESS.set, f"broker {broker_id}")
        self._sessions = SessionCache(self.rng)
        self._waiting: dict[_Waiting, None] = {}
        self._connections: set[FrameProtocol] = set()
        self.fetchers: dict[int, ReplicaFetcher] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        for replica in self.replicas:
            replica.high_watermark = min(replica.checkpointed, replica.end)
            replica.followers, replica.altering = {}, None
            replica.leadership = Leadership(NO_LEADER, -1, frozenset(), -1)
        self._tasks.append(self.loop.create_task(self._run(), context=self.context))
        for number, leadership in enumerate(self.world.controller.partitions):
            self.loop.call_soon(self.learn, number, leadership, context=self.context)

    async def _run(self) -> None:
        await self.loop.create_server(
            lambda: FrameProtocol(self._request, lambda: None), f"broker-{self.broker_id}", PORT
        )
        while True:
            await asyncio.sleep(CHECKED_EVERY_S)
            self._shrink()
            for replica in self.replicas:
                replica.checkpointed = replica.high_watermark

    def crash(self) -> None:
        """Its process is killed; the files stay."""
        self.is_living = False
        self.loop.network.kill(f"broker {self.broker_id}")
        for waiting in self._waiting:
            waiting.timer.cancel()
        for task in self._tasks:
            task.cancel()
        for fetcher in self.fetchers.values():
            fetcher.stop()
        for replica in self.replicas:
            replica.unacknowledged.clear()

    def look(self) -> None:
        for task in (*self._tasks, *(fetcher.task for fetcher in self.fetchers.values())):
            if task.done() and not task.cancelled():
                task.result()

    # Leadership.

    def learn(self, partition: int, leadership: Leadership) -> None:
        replica = self.replicas[partition]
        known = replica.leadership
        if not self.is_living or leadership.version <= known.version:
            return
        replica.leadership = leadership
        replica.altering = None
        if leadership.epoch != known.epoch or leadership.leader != known.leader:
            replica.followers = {}
            replica.unacknowledged.clear()
            if leadership.leader == self.broker_id:
                self._lead(replica)
            self.world.led_changed(self.broker_id)
        if replica.leadership.leader == self.broker_id:
            self.advance(replica)
        self._look_again()
        self._follow_leaders()

    def _lead(self, replica: Replica) -> None:
        files = replica.files
        replica.epoch_start = replica.end
        files.leader, files.epoch = self.broker_id, replica.leadership.epoch
        files.write_epoch()
        self.world.log_changed(self.broker_id, replica)

    def leads(self, replica: Replica) -> bool:
        return replica.leadership.leader == self.broker_id

    def _follow_leaders(self) -> None:
        for leader in {replica.leadership.leader for replica in self.replicas} - {self.broker_id, NO_LEADER}:
            if leader not in self.fetchers:
                self.fetchers[leader] = ReplicaFetcher(self, leader)
        for fetcher in self.fetchers.values():
            fetcher.look_again()

    def followed(self, leader: int) -> list[Replica]:
        return [one for one in self.replicas if one.leadership.leader == leader != self.broker_id]

    # Producers.

    def produce(self, replica: Replica, records: int, payload: bytes) -> bool:
        """Append a batch, which a producer with acks=all waits for. False when it is refused."""
        if not self.leads(replica):
            return False
        before = replica.last_key()
        batch = replica.files.append(records, payload)
        self.world.produced(replica, batch, before)
        if len(replica.leadership.isr) >= MIN_IN_SYNC:
            replica.unacknowledged.append((replica.end, batch.key))
        self.advance(replica)
        self.appended(replica)
        return True

    def appended(self, replica: Replica) -> None:
        self.world.log_changed(self.broker_id, replica)
        self._look_again()

    def advance(self, replica: Replica) -> None:
        """The high watermark, by what those have who may be in sync."""
        ends = [
            replica.followers[one].end if one in replica.followers else UNKNOWN
            for one in replica.maximal_isr - {self.broker_id}
        ]
        high_watermark = min([replica.end, *ends])
        if high_watermark > replica.high_watermark:
            replica.high_watermark = high_watermark
        waiting = replica.unacknowledged
        done = [key for end, key in waiting if end <= replica.high_watermark]
        if done and len(replica.leadership.isr) >= MIN_IN_SYNC:
            replica.unacknowledged = [each for each in waiting if each[0] > replica.high_watermark]
            self.world.acknowledged(self.broker_id, replica, done)

    # In sync or not.

    def _shrink(self) -> None:
        now_s = self.loop.time()
        for replica in self.replicas:
            if self.leads(replica):
                lagging = {
                    one
                    for one in replica.leadership.isr - {self.broker_id}
                    if now_s - self._state(replica, one) > LAG_MAX_S
                }
                if lagging:
                    self._alter(replica, replica.leadership.isr - lagging)

    def _state(self, replica: Replica, follower: int) -> float:
        """When it had caught up last; a new leader gives them time."""
        state = replica.followers.get(follower)
        if state is None:
            replica.follow(UNKNOWN, follower, 0.0)
            state = replica.followers[follower]
            state.caught_up_s = self.loop.time()
        return state.caught_up_s

    def _alter(self, replica: Replica, isr: frozenset[int]) -> None:
        if replica.altering is not None or isr == replica.leadership.isr:
            return
        replica.altering, asked = isr, replica.leadership

        def alter() -> None:
            number = replica.files.partition.partition
            if not self.is_living or not self.world.controller.alter(number, self.broker_id, asked, isr):
                self.loop.call_later(0.05, refused, context=self.context)

        def refused() -> None:
            if replica.leadership is asked:
                replica.altering = None

        self.loop.call_later(self.rng.uniform(0.001, 0.05), alter)

    # Requests.

    def _request(self, protocol: FrameProtocol, frame: bytes) -> None:
        api = int.from_bytes(frame[:2], "big")
        if api == FETCH:
            self._fetch(protocol, FetchRequest.decode(frame))
            return
        correlation_id, partition, leader_epoch, what = decode_question(frame)
        replica = self.replicas[partition]
        error = self._refusal(replica, leader_epoch)
        if api == LIST_OFFSETS:
            found = EpochEnd(UNKNOWN, replica.end if what == -1 else replica.start)
        else:
            found = replica.end_of_epoch(what)
        protocol.send(reply(correlation_id, error, found))

    def _refusal(self, replica: Replica, leader_epoch: int) -> KafkaError:
        if leader_epoch < replica.leadership.epoch:
            return KafkaError.FENCED_LEADER_EPOCH
        if leader_epoch > replica.leadership.epoch:
            return KafkaError.UNKNOWN_LEADER_EPOCH
        return KafkaError.NONE if self.leads(replica) else KafkaError.NOT_LEADER_OR_FOLLOWER

    def _fetch(self, protocol: FrameProtocol, request: FetchRequest) -> None:
        if self.rng.random() < 0.01:
            self._sessions.forget_all()
            self.world.hit("fetch session forgotten")
        session = self._sessions.of(request)
        if isinstance(session, KafkaError):
            self._send(protocol, request, FetchResponse(request.correlation_id, session, 0, []))
            return
        waiting = _Waiting(protocol, request, session)
        if not self._is_enough(waiting):
            waiting.timer = self.loop.call_later(
                request.max_wait_ms / 1000, self._answer, waiting, context=self.context
            )
            self._waiting[waiting] = None
            self._positions(waiting)  # may move the high watermark, for which nobody waits here
        else:
            self._complete(waiting)

    def _is_enough(self, waiting: _Waiting) -> bool:
        size = 0
        for cached in waiting.session.partitions.values():
            answer = self._read(cached.asked, 1_000_000, True)
            if answer.error or answer.diverging is not None:
                return True
            size += len(answer.records)
        return not waiting.session.partitions or size >= waiting.request.min_bytes

    def _look_again(self) -> None:
        for waiting in list(self._waiting):
            if self._is_enough(waiting):
                self._answer(waiting)

    def _answer(self, waiting: _Waiting) -> None:
        if waiting in self._waiting:
            del self._waiting[waiting]
            waiting.timer.cancel()
            self._complete(waiting)

    def _positions(self, waiting: _Waiting) -> None:
        """The follower has what lies below of what it asks for, unless it has started anew since (KIP-903)."""
        if incarnation_of(waiting.request) != self.world.controller.incarnations[waiting.request.replica_id]:
            return
        for cached in waiting.session.partitions.values():
            replica, asked = self.replicas[cached.asked.partition], cached.asked
            answer = self._read(asked, 0, False)
            if answer.error or answer.diverging is not None:
                continue
            follower = waiting.request.replica_id
            replica.follow(asked.offset, follower, self.loop.time())
            isr = replica.leadership.isr
            if follower not in isr and replica.is_in_sync(follower) and follower in self.world.controller.living:
                self._alter(replica, isr | {follower})
            self.advance(replica)

    def _complete(self, waiting: _Waiting) -> None:
        request, session = waiting.request, waiting.session
        left, answered = request.max_bytes, list[Answered]()
        for cached in session.partitions.values():
            answer = self._read(cached.asked, min(left, cached.asked.max_bytes), left == request.max_bytes)
            left -= len(answer.records)
            if request.session_epoch == 0 or cached.is_news(answer):
                cached.tell(answer)
                answered.append(answer)
        self._positions(waiting)
        self._send(waiting.protocol, request, FetchResponse(request.correlation_id, 0, session.id, answered))

    def _read(self, asked: Asked, max_bytes: int, at_least_one: bool) -> Answered:
        replica = self.replicas[asked.partition]
        refusal = self._refusal(replica, asked.leader_epoch)
        if refusal:
            return Answered(asked.partition, refusal, -1, -1)
        told = asked.partition, 0, replica.high_watermark, replica.start
        if asked.last_epoch != UNKNOWN:
            end = replica.end_of_epoch(asked.last_epoch)
            if end.end_offset == UNKNOWN:
                return Answered(asked.partition, KafkaError.OFFSET_OUT_OF_RANGE, -1, -1)
            if end.leader_epoch < asked.last_epoch or end.end_offset < asked.offset:
                return Answered(*told, diverging=end)
        if not replica.start <= asked.offset <= replica.end:
            return Answered(asked.partition, KafkaError.OFFSET_OUT_OF_RANGE, -1, -1)
        return Answered(*told, replica.read(asked.offset, max_bytes, at_least_one=at_least_one))

    def _send(self, protocol: FrameProtocol, request: FetchRequest, response: FetchResponse) -> None:
        self.world.answered(request, response)
        protocol.send(response.encode(request.version, TOPIC_NAME, self.world.topic_id))
