"""A model of Kafka's ReplicaFetcherThread: one for each leader that a broker follows, over one connection at a time."""

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from kafka_log.crc32c import crc32c
from tests.kafka_log.log_writer import WrittenBatch
from tests.simulation.replicas.fetch_sessions import FollowersSession
from tests.simulation.replicas.kafka_frames import (
    LIST_OFFSETS,
    OFFSET_FOR_LEADER_EPOCH,
    Answered,
    Asked,
    EpochEnd,
    FetchRequest,
    FetchResponse,
    KafkaError,
    correlation_id_of,
    decode_reply,
    first_correlation_id,
    question,
)
from tests.simulation.replicas.replica import UNKNOWN, Replica

if TYPE_CHECKING:
    from tests.simulation.replicas.broker_model import BrokerModel

SOCKET_TIMEOUT_S = 12.0
BACKOFF_S = 0.3
MAX_WAIT_MS = 2000
_CRC_AT, _AFTER_CRC_AT = 17, 21


class ReplicaFetcher:
    """Asks by way of the local agent, which poses as the leader."""

    def __init__(self, broker: "BrokerModel", leader: int) -> None:
        self._broker, self._world, self._loop = broker, broker.world, broker.loop
        self.leader = leader
        self._rng = broker.rng
        self._session = FollowersSession()
        self._correlation_id = first_correlation_id(self._world.controller.incarnations[broker.broker_id], self._rng)
        self._version = (17, 17, 13, 15, 18, 12)[self._world.random("versions").randrange(6)]
        self._wanted = asyncio.Event()
        self._answers: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._rests_until_s: dict[int, float] = {}
        """By partition, after an error."""

        self.task = self._loop.create_task(self._run(), context=broker.context)

    def stop(self) -> None:
        self.task.cancel()

    def look_again(self) -> None:
        self._wanted.set()

    async def _run(self) -> None:
        while True:
            with suppress(OSError):
                await self._connected()
            self._session.broke()
            await asyncio.sleep(BACKOFF_S)

    async def _connected(self) -> None:
        from tests.simulation.replicas.broker_model import FrameProtocol

        answers = self._answers = asyncio.Queue()
        await self._some_wanted()
        async with asyncio.timeout(SOCKET_TIMEOUT_S):
            _, protocol = await self._loop.create_connection(
                lambda: FrameProtocol(lambda _, frame: answers.put_nowait(frame), lambda: answers.put_nowait(None)),
                self._broker.agent_host,
                20_000 + self.leader,
            )
        try:
            while True:
                await self._some_wanted()
                await self._round(protocol)
        finally:
            protocol.transport.close()

    async def _some_wanted(self) -> None:
        while not self._asked():
            self._wanted.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(BACKOFF_S):
                    await self._wanted.wait()

    def _asked(self) -> dict[int, Asked]:
        asked, now_s = {}, self._loop.time()
        for replica in self._broker.followed(self.leader):
            number = replica.files.partition.partition
            if self._rests_until_s.get(number, 0.0) <= now_s:
                epoch = replica.leadership.epoch
                asked[number] = Asked(number, epoch, replica.end, replica.last_epoch, replica.start, 3000)
        return asked

    async def _round(self, protocol: "object") -> None:
        asked = self._asked()
        session_id, epoch, changed, forgotten = self._session.next(asked)
        request = FetchRequest(
            self._version, self._next_id(), self._broker.broker_id, MAX_WAIT_MS, 1, 5000, session_id, epoch, changed,
            forgotten,
        )  # fmt: skip
        from tests.simulation.replicas.broker_model import TOPIC_NAME

        frame = await self._exchange(protocol, request.encode(TOPIC_NAME, self._world.topic_id), request.correlation_id)
        response = FetchResponse.decode(frame, self._version)
        self._world.received(request, response)
        if not self._session.answered(response):
            return
        for answer in response.answered:
            replica = self._broker.replicas[answer.partition]
            if self._is_current(replica, asked.get(answer.partition)):
                await self._take(protocol, replica, answer)

    def _next_id(self) -> int:
        self._correlation_id += 1
        return self._correlation_id

    async def _exchange(self, protocol: "object", frame: bytes, correlation_id: int) -> bytes:
        from tests.simulation.replicas.broker_model import FrameProtocol

        assert isinstance(protocol, FrameProtocol)
        protocol.send(frame)
        async with asyncio.timeout(SOCKET_TIMEOUT_S):
            answer = await self._answers.get()
        if answer is None:
            raise ConnectionResetError("closed")
        assert correlation_id_of(answer) == correlation_id, "an answer to something else"
        return answer

    def _is_current(self, replica: Replica, asked: Asked | None) -> bool:
        """Whether the replica still stands where it stood when this was asked."""
        return (
            asked is not None
            and replica.leadership.leader == self.leader
            and (replica.leadership.epoch, replica.end) == (asked.leader_epoch, asked.offset)
        )

    async def _take(self, protocol: "object", replica: Replica, answer: Answered) -> None:
        if answer.error == KafkaError.OFFSET_OUT_OF_RANGE:
            await self._out_of_range(protocol, replica)
        elif answer.error:
            self._rests_until_s[answer.partition] = self._loop.time() + BACKOFF_S
        elif answer.diverging is not None:
            self._truncate(replica, replica.truncation_to(answer.diverging))
        else:
            self._append(replica, answer.records, answer.log_start)
            replica.high_watermark = max(replica.high_watermark, min(answer.high_watermark, replica.end))
            self._retain(replica, answer.log_start)

    def _append(self, replica: Replica, records: bytes, leaders_start: int) -> None:
        """Whole batches that go on where the log ends, as UnifiedLog.appendAsFollower demands them."""
        position = 0
        while len(records) - position >= 61:
            size = 12 + int.from_bytes(records[position + 8 : position + 12], "big")
            if position + size > len(records):
                break
            raw = records[position : position + size]
            base = int.from_bytes(raw[:8], "big")
            crc = int.from_bytes(raw[_CRC_AT:_AFTER_CRC_AT], "big")
            assert crc32c(raw[_AFTER_CRC_AT:]) == crc, f"broker {self._broker.broker_id} is given a corrupt batch"
            last = base + int.from_bytes(raw[23:27], "big")
            if replica.begins_within(base, last):
                replica.restart_at(base)
                self._world.rewritten(self._broker.broker_id, replica)
            assert base >= replica.end, f"broker {self._broker.broker_id} is given offset {base} at {replica.end}"
            batch = WrittenBatch(base, last, int.from_bytes(raw[12:16], "big"), raw)
            if replica.files.log.segments[-1].size > self._rng.randint(1500, 8000):
                replica.files.log.roll()
            before = replica.last_key()
            replica.files.take(batch)
            self._world.followed(replica, batch, before, leaders_start)
            position += size
        if position:
            self._broker.appended(replica)

    def _retain(self, replica: Replica, leaders_start: int) -> None:
        """What the leader has deleted goes here as well."""
        log, before = replica.files.log, replica.start
        while len(log.segments) > 1 and log.segments[1].base_offset <= min(leaders_start, replica.high_watermark):
            replica.files.expire(unlink=False)
        if replica.start != before:
            self._world.log_changed(self._broker.broker_id, replica)

    def _truncate(self, replica: Replica, offset: int) -> None:
        if offset < replica.end:
            self._world.hit("truncated by epoch")
            self._world.note("truncates", self._broker.broker_id, replica.files.partition.partition, offset)
        replica.truncate(offset)
        self._world.rewritten(self._broker.broker_id, replica)

    async def _out_of_range(self, protocol: "object", replica: Replica) -> None:
        number, epoch, end = replica.files.partition.partition, replica.leadership.epoch, replica.end
        asked = Asked(number, epoch, end, UNKNOWN, 0, 0)
        found = list[EpochEnd]()
        for what in (-1, -2):
            correlation_id = self._next_id()
            frame = question(LIST_OFFSETS, correlation_id, number, epoch, what)
            error, offset = decode_reply(await self._exchange(protocol, frame, correlation_id))
            if error or not self._is_current(replica, asked):
                self._rests_until_s[number] = self._loop.time() + BACKOFF_S
                return
            found.append(offset)
        leaders_end, leaders_start = found[0].end_offset, found[1].end_offset
        self._world.hit("out of range")
        if leaders_end < end:
            self._truncate(replica, leaders_end)
        elif leaders_start > end:
            replica.restart_at(leaders_start)
            self._world.rewritten(self._broker.broker_id, replica)
        elif epoch_known := await self._epoch_end(protocol, replica):
            self._truncate(replica, replica.truncation_to(epoch_known))

    async def _epoch_end(self, protocol: "object", replica: Replica) -> EpochEnd | None:
        number, epoch, end = replica.files.partition.partition, replica.leadership.epoch, replica.end
        correlation_id = self._next_id()
        frame = question(OFFSET_FOR_LEADER_EPOCH, correlation_id, number, epoch, replica.last_epoch)
        error, found = decode_reply(await self._exchange(protocol, frame, correlation_id))
        is_current = self._is_current(replica, Asked(number, epoch, end, UNKNOWN, 0, 0))
        return None if error or not is_current else found
