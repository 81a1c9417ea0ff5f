"""What the gateway answers for a broker, held against the broker's own answers."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.serve.fetch_frames import decode_request, encode_sessionless
from gateway.serve.log_tail import HeldRecords, LogTail
from gateway.serve.serving import FetchServing, Relay, Serve, ServeOutcome, Wait
from kafka_log.topic_partition import TopicId
from replication.wire.kafka_frame import MalformedFrameError
from tests.gateway.serve.model_broker import ModelBroker, ModelConsumer
from tests.replication.fetch_frames import request, requests

AUTHORISED_S = 60.0


class Clear:
    def __init__(self) -> None:
        self.quota = self.compacted = False

    def has_quota(self, _client_id: str, _now_s: float) -> bool:
        return self.quota

    def is_kept_whole(self, _topic_id: TopicId, _now_s: float) -> bool:
        return not self.compacted


class Rig:
    """Consumers of one broker, whose tail a test asks for."""

    def __init__(self, partitions: int = 1, max_bytes: int = 1 << 20, held: HeldRecords | None = None) -> None:
        self.broker, self.clear, self.now_s = ModelBroker(partitions), Clear(), 100.0
        self.tail = LogTail(held or HeldRecords(max_bytes))
        self._ids: Iterator[int] = itertools.count(1)
        self.partitions = partitions
        self.ways: list[ServeOutcome] = []

    def serving(self) -> FetchServing:
        return FetchServing(self.tail, self.clear, AUTHORISED_S, lambda: next(self._ids))

    def consumer(self, version: int = 17, *, is_committed: bool = True, max_bytes: int = 1 << 20) -> "Connected":
        return Connected(self, ModelConsumer(self.partitions, version, is_committed=is_committed, max_bytes=max_bytes))

    def follow(self) -> None:
        if (question := self.tail.ask(self.now_s)) is not None:
            self.tail.answered(self.broker.fetch(question), self.now_s)


class Connected:
    def __init__(self, rig: Rig, consumer: ModelConsumer) -> None:
        self.rig, self.consumer, self.serving = rig, consumer, rig.serving()

    def fetch(self, *, waits: bool = False, **limits: Any) -> Any:
        """The answer; when there is nothing yet, None if `waits`, else what comes when the time is over."""
        rig, frame = self.rig, self.consumer.request(**limits)
        turn = self.serving.asked(frame)
        assert turn is not None
        step = self.serving.decide(turn, rig.now_s, rig.now_s)
        if isinstance(step, Wait) and not waits:
            step = self.serving.decide(turn, rig.now_s - 0.5, rig.now_s)
        if isinstance(step, Wait):
            return None
        if isinstance(step, Serve):
            rig.ways.append(ServeOutcome.SERVED)
            return self.consumer.take(b"".join(step.buffers))
        rig.ways.append(step.way)
        answer = rig.broker.fetch(bytes(step.frame))
        return self.consumer.take(b"".join(self.serving.answered(step, answer, rig.now_s)))

    def is_served(self) -> bool:
        self.fetch()
        return self.rig.ways[-1] is ServeOutcome.SERVED


def served(partitions: int = 1, **consumer: Any) -> tuple[Rig, Connected]:
    """A consumer whose next Fetch is served."""
    rig = Rig(partitions)
    for log in rig.broker.logs.values():
        log.append(3)
        log.high_watermark = 3
    client = rig.consumer(**consumer)
    client.fetch()
    rig.follow()
    assert rig.ways == [ServeOutcome.FIRST]
    return rig, client


@pytest.mark.parametrize("version", range(13, 19))
def test_the_first_fetch_goes_to_the_broker_and_the_next_is_served(version: int) -> None:
    rig, client = served(version=version)
    assert client.is_served()
    rig.broker.logs[0].append(4)
    rig.broker.logs[0].high_watermark = 7
    rig.follow()
    assert client.is_served()
    assert client.consumer.read[0] == list(range(7))


def test_ten_consumers_cost_the_broker_ten_first_fetches_and_the_tails_questions() -> None:
    rig, first = served()
    clients = [first] + [rig.consumer() for _ in range(9)]
    for client in clients[1:]:
        client.fetch()
    asked = len(rig.broker.asked)
    for _ in range(20):
        rig.broker.logs[0].append(2)
        rig.broker.logs[0].high_watermark = rig.broker.logs[0].end
        rig.follow()
        assert all(client.is_served() for client in clients)
    assert len(rig.broker.asked) == asked + 20
    assert all(client.consumer.read[0] == list(range(43)) for client in clients)


def test_the_broker_is_asked_again_within_each_authorisation_time() -> None:
    rig, client = served()
    rig.now_s += AUTHORISED_S - 0.1
    rig.follow()
    assert rig.tail.ask(rig.now_s) is None, "nobody wanted it for so long"
    rig, client = served()
    for _ in range(119):
        rig.now_s += 0.5
        rig.follow()
        assert client.is_served()
    rig.now_s += 0.5
    rig.follow()
    assert not client.is_served()
    assert rig.ways[-1] is ServeOutcome.RENEWAL
    assert client.is_served()


def test_a_login_on_the_connection_makes_the_broker_judge_again() -> None:
    rig, client = served()
    assert client.serving.asked(b"\x00\x24\x00\x02\x00\x00\x00\x09\x00\x00") is None
    assert not client.is_served()
    assert rig.ways[-1] is ServeOutcome.FIRST


def test_what_was_told_more_than_a_second_ago_is_not_served() -> None:
    rig, client = served()
    rig.now_s += 0.9
    assert client.is_served()
    rig.now_s += 0.1
    assert not client.is_served()
    assert rig.ways[-1] is ServeOutcome.STALE


def test_age_counts_from_the_question_not_from_the_answer() -> None:
    rig, client = served()
    question = rig.tail.ask(rig.now_s)
    assert question is not None
    answer = rig.broker.fetch(question)
    rig.now_s += 2.0
    rig.tail.answered(answer, rig.now_s)
    assert not client.is_served()
    assert rig.ways[-1] is ServeOutcome.STALE


def test_a_fetch_with_nothing_new_waits_and_min_bytes_is_honoured() -> None:
    rig, client = served()
    frame = client.consumer.request(min_bytes=300)
    turn = client.serving.asked(frame)
    assert turn is not None
    came_s = rig.now_s
    assert client.serving.decide(turn, came_s, rig.now_s) == Wait(came_s + 0.5)
    rig.broker.logs[0].append(1)
    rig.broker.logs[0].high_watermark = 4
    rig.now_s += 0.1
    rig.follow()
    assert isinstance(client.serving.decide(turn, came_s, rig.now_s), Wait)
    rig.broker.logs[0].append(1, size=400)
    rig.broker.logs[0].high_watermark = 5
    rig.follow()
    step = client.serving.decide(turn, came_s, rig.now_s)
    assert isinstance(step, Serve)
    client.consumer.take(b"".join(step.buffers))
    assert client.consumer.read[0] == list(range(5))


def test_a_relayed_fetch_waits_at_the_broker_for_the_rest_of_its_time() -> None:
    rig, client = served()
    turn = client.serving.asked(client.consumer.request(max_wait_ms=5000))
    assert turn is not None
    assert isinstance(client.serving.decide(turn, rig.now_s, rig.now_s), Wait)
    step = client.serving.decide(turn, rig.now_s, rig.now_s + 1.0)
    assert isinstance(step, Relay)
    assert step.way is ServeOutcome.STALE
    assert decode_request(step.frame).max_wait_ms == 4000


def test_nothing_is_served_under_a_quota_from_a_compacted_topic_or_where_that_is_unknown() -> None:
    rig, client = served()
    rig.clear.quota = True
    assert not client.is_served()
    rig.clear.quota, rig.clear.compacted = False, True
    assert not client.is_served()
    assert rig.ways[-2:] == [ServeOutcome.QUOTA, ServeOutcome.COMPACTED]


def test_another_leader_epoch_is_the_brokers_to_answer_and_then_it_is_followed() -> None:
    rig, client = served()
    client.consumer.epoch = rig.broker.logs[0].epoch = 4
    assert not client.is_served()
    assert rig.ways[-1] is ServeOutcome.EPOCH
    rig.follow()
    assert client.is_served()
    old = rig.consumer()
    assert old.fetch().responses[0].partitions[0].error_code == 74
    assert client.is_served(), "one that knows no better changes nothing"


def test_a_leader_epoch_that_the_broker_has_left_is_not_served() -> None:
    rig, client = served()
    rig.broker.logs[0].epoch = 4
    rig.follow()
    assert not client.is_served()
    assert rig.ways[-1] is ServeOutcome.NOT_FOLLOWED


@pytest.mark.parametrize("offset", [-1, 0, 99])
def test_an_offset_out_of_range_is_the_brokers_to_answer(offset: int) -> None:
    rig, client = served()
    rig.broker.logs[0].log_start = 1
    rig.follow()
    client.consumer.positions[0] = offset
    assert client.fetch().responses[0].partitions[0].error_code == 1
    assert rig.ways[-1] is ServeOutcome.OFFSET


def test_a_log_with_holes_is_not_followed() -> None:
    rig, client = served()
    log = rig.broker.logs[0]
    log.append(1)
    log.append(1)
    log.high_watermark = 5
    del log.batches[1], log.spans[1]
    rig.follow()
    assert not client.is_served()
    assert rig.ways[-1] is ServeOutcome.NOT_FOLLOWED


def test_records_of_open_transactions_are_the_brokers_to_give_to_who_reads_them() -> None:
    rig, client = served(is_committed=False)
    log = rig.broker.logs[0]
    log.append(2, producer_id=7)
    log.high_watermark = 5
    rig.follow()
    assert not client.is_served()
    assert rig.ways[-1] is ServeOutcome.UNCOMMITTED
    assert client.consumer.read[0] == list(range(5))


def test_a_client_that_produces_too_is_served() -> None:
    _, client = served()
    assert client.serving.asked(b"\x00\x00\x00\x09\x00\x00\x00\x09\x00\x00") is None
    assert client.is_served()


def test_a_session_epoch_that_is_wrong_gets_kafkas_error_and_another_id_goes_to_the_broker() -> None:
    _, client = served()
    client.consumer.session_epoch += 1
    assert client.fetch().error_code == 71
    client.fetch()
    assert client.is_served()
    client.consumer.session_id += 1000
    assert client.serving.asked(client.consumer.request()) is None


def test_memory_is_bounded_and_who_is_behind_is_the_brokers_to_answer() -> None:
    rig = Rig(max_bytes=3000)
    reader, laggard = rig.consumer(), rig.consumer()
    for one in (reader, laggard):
        one.fetch()
    for _ in range(10):
        rig.broker.logs[0].append(1, size=900)
        rig.broker.logs[0].high_watermark = rig.broker.logs[0].end
        rig.follow()
        assert reader.is_served()
    assert rig.tail.size <= 3000
    assert not laggard.is_served()
    assert rig.ways[-1] is ServeOutcome.BEHIND
    assert laggard.consumer.read[0] == reader.consumer.read[0] == list(range(10))
    assert laggard.is_served()


def test_memory_is_bounded_for_the_tails_of_all_brokers_together() -> None:
    held = HeldRecords(3000)
    large, small = Rig(held=held), Rig(held=held)
    for rig, size in ((large, 900), (small, 100)):
        rig.consumer().fetch()
        for _ in range(3):
            rig.broker.logs[0].append(1, size=size)
            rig.broker.logs[0].high_watermark = rig.broker.logs[0].end
            rig.follow()
    assert 300 <= small.tail.size < large.tail.size, "the largest log gives way"
    assert small.tail.size + large.tail.size == held.size <= 3000


def test_the_first_batch_comes_even_if_it_is_larger_than_may_be() -> None:
    rig, client = served(max_bytes=100)
    rig.broker.logs[0].append(5, size=300)
    rig.broker.logs[0].high_watermark = 8
    rig.follow()
    assert client.is_served()
    assert client.consumer.read[0] == list(range(8))


def test_an_aborted_transaction_that_ended_below_the_asked_offset_is_not_told() -> None:
    rig, client = served()
    log = rig.broker.logs[0]
    log.append(1, producer_id=7)
    log.end_transaction(7, aborts=True)
    log.append(1, producer_id=7)
    log.end_transaction(7, aborts=False)
    log.high_watermark = log.end
    rig.follow()
    other = rig.consumer()
    other.consumer.positions[0] = 5
    other.fetch()
    other.consumer.positions[0] = 5
    assert client.is_served()
    assert other.is_served()
    assert client.consumer.read[0] == [0, 1, 2, 5]
    assert other.consumer.read[0] == [5, 5]


@given(requests())
def test_a_request_is_read_as_the_other_codec_wrote_it_or_not_at_all(made: tuple[int, Any, bytes]) -> None:
    version, (replica_id, message), frame = made
    try:
        read = decode_request(frame)
    except MalformedFrameError:
        return
    assert version >= 13
    assert replica_id == -1
    found = [(one.log.partition, one.leader_epoch, one.offset) for one in read.partitions]
    assert found == [
        (one.partition, one.current_leader_epoch, one.fetch_offset)
        for topic in message.topics
        for one in topic.partitions
    ]
    again = decode_request(encode_sessionless(read, read.partitions, read.max_wait_ms))
    assert (again.partitions, again.session_id, again.session_epoch) == (read.partitions, 0, -1)
    assert (again.rack, again.max_bytes, again.head) == (read.rack, read.max_bytes, read.head)


def test_followers_and_old_versions_are_not_read() -> None:
    for frame in (request({0: 0}, replica_id=2), request({0: 0}, replica_id=-1, version=12), b"", b"\0\1"):
        with pytest.raises(MalformedFrameError):
            decode_request(frame)
    assert decode_request(request({0: 4}, replica_id=-1)).partitions[0].offset == 4


_steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 1), st.integers(1, 4), st.integers(-1, 2)),
        st.tuples(st.just("end"), st.integers(0, 1), st.integers(0, 2), st.booleans()),
        st.tuples(st.just("replicate"), st.integers(0, 1), st.integers(0, 5)),
        st.tuples(st.just("follow")),
        st.tuples(st.just("fetch"), st.integers(0, 2)),
        st.tuples(st.just("time"), st.sampled_from([0.01, 0.3, 0.7, 15.0, 61.0])),
        st.tuples(st.just("delete"), st.integers(0, 1)),
        st.tuples(st.just("elect")),
    ),
    max_size=60,
)


@given(_steps, st.integers(13, 18), st.sampled_from([150, 400, 1 << 20]), st.sampled_from([1500, 1 << 20]))
def test_what_is_served_is_what_the_broker_would_say(
    steps: list[Any], version: int, max_bytes: int, held_bytes: int
) -> None:
    rig = Rig(2, held_bytes)
    clients = [rig.consumer(version, max_bytes=max_bytes), rig.consumer(version, is_committed=False),
               rig.consumer(version)]  # fmt: skip
    for step in steps:
        _take_step(rig, clients, *step)
    _read_all(rig, clients)
    for number, log in rig.broker.logs.items():
        wanted = log.committed()
        for client in clients[::2]:
            read = client.consumer.read[number]
            assert read == sorted(set(read))
            assert [one for one in read if one >= log.log_start] == [one for one in wanted if one >= log.log_start]
            assert set(read) <= set(wanted)


def _read_all(rig: Rig, clients: list[Connected]) -> None:
    """Until nobody comes any further."""
    quiet = 0
    while quiet < 4:
        before = [dict(client.consumer.positions) for client in clients]
        for client in clients:
            _fetch(rig, client)
        rig.follow()
        rig.now_s += 0.01
        quiet = quiet + 1 if before == [client.consumer.positions for client in clients] else 0


def _take_step(rig: Rig, clients: list[Connected], what: str, *told: Any) -> None:
    logs = rig.broker.logs
    match what:
        case "append":
            logs[told[0]].append(told[1], told[2])
        case "end":
            logs[told[0]].end_transaction(told[1], aborts=told[2])
        case "replicate":
            logs[told[0]].replicate(told[1])
        case "follow":
            rig.follow()
        case "time":
            rig.now_s += told[0]
        case "delete":
            logs[told[0]].log_start = max(logs[told[0]].log_start, logs[told[0]].last_stable)
        case "elect":
            for log in logs.values():
                log.epoch += 1
        case "fetch":
            _fetch(rig, clients[told[0]])


def _fetch(rig: Rig, client: Connected) -> None:
    """A Fetch; what is served is held against the broker's logs."""
    consumer, logs = client.consumer, rig.broker.logs
    for number, position in consumer.positions.items():
        if position < 0:  # as a consumer that is told that its offset is out of range
            consumer.positions[number] = logs[number].log_start
    before, answer = dict(consumer.positions), client.fetch()
    for topic in answer.responses:
        for told in topic.partitions:
            log = logs[told.partition_index]
            if told.error_code == 74:  # it asks for metadata
                consumer.epoch = max(one.epoch for one in logs.values())
            if told.error_code:
                continue
            offset, records = before[told.partition_index], told.records or b""
            limit = log.last_stable if consumer.is_committed else log.high_watermark
            assert b"".join(log.read(offset, limit, 1 << 30, at_least_one=True)).startswith(records)
            assert told.last_stable_offset <= told.high_watermark <= log.high_watermark
            assert told.last_stable_offset <= log.last_stable
            assert told.log_start_offset <= log.log_start
            assert (told.aborted_transactions is None) is not consumer.is_committed
