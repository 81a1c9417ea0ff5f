"""A client's Fetch responses as plain values: what goes as links, what as it is, and what waits."""

from collections import deque
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from gateway.client_protocol import ClientSide
from gateway.consume.consumer_links import Asked, ConsumerLinks, ReadCosts
from gateway.metrics import ClientTraffic, ConsumeMetrics
from kafka_log.record_batch import scan_batches
from metadata_topic.records.usage_record import ClientZoneUsage
from plugin.segment_metadata import CombinedSegmentId
from replication.leader.link_planner import WaitForUploads
from replication.leader.response_links import ToFollower
from replication.leader.zones import RemoteReaders, Zones
from replication.wire.link import LinkedResponse, decode_linked_response, splice
from replication.wire.peer_protocol import Hello, MessageKind, PeerCapabilities
from replication.wire.peer_protocol import encode_inline_request as inline_request
from rlm.write_path.commit.link_policy import LinkMode
from tests.kafka_log.batches import batches
from tests.replication.fake_led import store
from tests.replication.fetch_frames import decode, partition, request, response, responses
from tests.replication.test_relay_core import FRAME, INLINE, ORIGINAL, RAW, WAIT_MAX_S, Rig, is_linked

GATEWAY = Hello("cluster", 3, 33)
LINKED_FETCH = PeerCapabilities.CLIENTS | PeerCapabilities.LINKED_FETCH
FUTURE = ToFollower(MessageKind.KAFKA, (b"\x00\x00\x00\x09 of another request",))


class Client:
    """Whose connection comes by broker 3's agent, in zone az3, to the agent beside broker 1, which leads all."""

    def __init__(self, capabilities: PeerCapabilities = LINKED_FETCH, read_bytes: int = 1) -> None:
        self.rig = Rig(zones=Zones("az1"))
        self.rig.context.zones.readers = RemoteReaders(lambda: self.rig.now_s)
        self.registry = CollectorRegistry()
        side = ClientSide("az3", GATEWAY, capabilities)
        self.traffic = ClientTraffic("az1")
        metrics = ConsumeMetrics(self.registry, self.traffic)
        self.links = ConsumerLinks(self.rig.context, side, metrics, ReadCosts(read_bytes, 0.025), None)
        self.under_way: deque[Asked] = deque()

    def asked(self, correlation_id: int = 7, version: int = 17) -> None:
        self.sent(request({0: 0}, correlation_id=correlation_id, replica_id=-1, version=version))

    def sent(self, frame: bytes) -> None:
        self.under_way.append(self.links.asked(frame, self.rig.now_s))

    def answered(self, frame: bytes = FRAME) -> ToFollower | WaitForUploads:
        return self.links.response(frame, self.under_way.popleft(), self.rig.now_s)

    def counted(self, way: str, name: str = "record_bytes") -> float:
        found = self.registry.get_sample_value(f"remote_wal_gateway_fetch_{name}_total", {"zone": "az3", "way": way})
        return found or 0.0


def test_what_is_stored_goes_linked_and_is_counted_by_the_clients_zone() -> None:
    client = Client()
    client.rig.stored()
    client.asked()
    is_linked(client.answered())
    assert client.counted("linked") == len(RAW)
    assert client.counted("inline") == 0
    assert client.counted("linked", "responses") == 1


@pytest.mark.parametrize(
    ("followers", "near", "untold"),
    [({2, 3}, len(RAW), 0), ({2}, 0, 0), (set[int](), 0, 0), (None, 0, len(RAW))],
    ids=["one in the consumer's zone", "none there", "none at all", "not led, as far as is known"],
)
def test_records_that_the_consumers_zone_has_a_replica_of_are_told_apart(
    followers: set[int] | None, near: int, untold: int
) -> None:
    for is_stored in (True, False):
        client = Client()
        zones = client.rig.context.zones
        zones.learned({2: "az2", 3: "az3"})
        zones.set_led({partition(0): frozenset(followers)} if followers is not None else {})
        if is_stored:
            client.rig.stored()
        client.rig.led.expected = False
        client.asked()
        client.answered()
        assert client.traffic.by_zone["az3"] == ClientZoneUsage(near_bytes=near, untold_bytes=untold)


def test_of_what_is_not_understood_nobody_knows_whether_the_zone_has_a_replica() -> None:
    client = Client()
    client.sent(b"\x00\x01" + (11).to_bytes(2, "big") + b"\x00\x00\x00\x07 and more")
    client.answered()
    client.sent(b"\x00\x03\x00\x0c\x00\x00\x00\x09")  # a request for metadata, by the way
    client.answered(bytes(FUTURE.body[0]))
    assert client.traffic.by_zone["az3"].untold_bytes == len(FRAME) + len(FUTURE.body[0])


def test_what_is_about_to_be_stored_is_waited_for_and_goes_inline_after_the_longest_wait() -> None:
    client = Client()
    client.asked()
    assert client.answered() == WaitForUploads(client.rig.now_s + WAIT_MAX_S, (partition(0),))
    assert client.rig.led.wanted == [partition(0)]
    client.rig.stored()
    is_linked(client.links.look_again(client.rig.now_s + 0.1))
    late = Client()
    late.asked()
    assert isinstance(late.answered(), WaitForUploads)
    assert late.links.look_again(late.rig.now_s + WAIT_MAX_S) == INLINE
    assert late.counted("inline") == len(RAW)


def test_where_links_do_not_pay_nothing_waits() -> None:
    client = Client()
    client.rig.led.mode = LinkMode.INLINE
    client.asked()
    assert client.answered() == INLINE
    assert client.counted("inline") == len(RAW)


def test_an_answer_that_is_not_worth_a_read_waits_for_nothing_unless_links_are_wanted_at_any_price() -> None:
    client = Client(read_bytes=len(RAW) + 1)
    client.asked()
    assert client.answered() == INLINE
    assert client.rig.led.wanted == []
    assert client.rig.context.zones.find_elsewhere(partition(0), frozenset()) == frozenset()
    client.rig.stored()
    client.asked()
    assert client.answered() == INLINE
    client.rig.led.always.add(partition(0))
    client.asked()
    is_linked(client.answered())
    assert client.rig.context.zones.find_elsewhere(partition(0), frozenset()) == {GATEWAY.broker_id}


def test_an_answer_out_of_many_objects_must_be_worth_a_read_of_each() -> None:
    spans = scan_batches(RAW, 0, len(RAW))
    for read_bytes, kind in ((len(RAW) // 2, MessageKind.LINKED), (len(RAW) // 2 + 1, MessageKind.KAFKA)):
        client = Client(read_bytes=read_bytes)
        for number, span in enumerate(spans):
            store(client.rig.context.index, partition(0), RAW[span.start : span.end], CombinedSegmentId(1, 11, number))
        client.asked()
        answer = client.answered()
        assert isinstance(answer, ToFollower)
        assert answer.kind is kind


def test_what_consumers_fetch_tells_the_load_and_who_reads() -> None:
    client = Client()
    readers = client.rig.context.zones
    assert readers.find_elsewhere(partition(0), frozenset({2})) == {2}
    client.rig.led.mode = LinkMode.INLINE
    client.asked()
    client.answered()
    assert client.rig.led.fetches == [(GATEWAY.broker_id, partition(0), 0, len(RAW))]
    assert readers.find_elsewhere(partition(0), frozenset({2})) == {2, GATEWAY.broker_id}
    assert readers.find_elsewhere(partition(1), frozenset({2})) == {2}
    client.rig.now_s += 300
    assert readers.find_elsewhere(partition(0), frozenset({2})) == {2}


def test_an_empty_response_tells_of_no_reader() -> None:
    client = Client()
    client.asked()
    client.answered(response({0: b""}))
    assert client.rig.context.zones.find_elsewhere(partition(0), frozenset()) == frozenset()


@pytest.mark.parametrize("version", [4, 11, 19])
def test_versions_that_are_not_understood_pass_as_they_are(version: int) -> None:
    client = Client()
    client.rig.stored()
    client.sent(b"\x00\x01" + version.to_bytes(2, "big") + b"\x00\x00\x00\x07 and more")
    assert client.answered() == INLINE


@given(responses())
def test_whatever_a_broker_answers_goes_on_unchanged_where_nothing_is_stored(
    answer: tuple[int, object, bytes],
) -> None:
    version, _, frame = answer
    client = Client()
    client.rig.led.expected = False
    client.asked(int.from_bytes(frame[:4], "big", signed=True), version)
    assert client.answered(frame) == ToFollower(MessageKind.KAFKA, (frame,))


def test_only_the_one_fetch_under_way_is_linked_whatever_else_is() -> None:
    client = Client()
    client.rig.stored()
    client.asked(7)
    client.asked(8)
    assert client.answered() == INLINE
    client.sent(b"\x00\x03\x00\x0c\x00\x00\x00\x09")
    is_linked(client.answered(response({0: RAW}, correlation_id=8)))
    assert client.answered(bytes(FUTURE.body[0])) == FUTURE


def test_a_fetch_that_comes_while_a_response_waits_has_it_sent_inline() -> None:
    client = Client()
    client.asked(7)
    assert isinstance(client.answered(), WaitForUploads)
    client.asked(8)
    client.rig.stored()
    assert client.links.look_again(client.rig.now_s) == INLINE


def test_the_original_is_there_until_the_next_fetch() -> None:
    client = Client()
    client.rig.stored()
    client.asked()
    is_linked(client.answered())
    client.sent(b"\x00\x03\x00\x0c\x00\x00\x00\x09")  # a request for metadata tells nothing
    assert client.links.control(MessageKind.INLINE_REQUEST, inline_request(1)) == ORIGINAL
    assert client.counted("original") == len(FRAME)
    assert client.answered(bytes(FUTURE.body[0])) == FUTURE
    client.asked(8)
    is_linked(client.answered(response({0: RAW}, correlation_id=8)))
    assert client.rig.budget.used > 0
    client.asked(9)
    assert client.rig.budget.used == 0


def test_a_gateway_whose_store_fails_gets_all_inline_until_it_is_back() -> None:
    client = Client()
    client.rig.stored()
    assert client.links.control(MessageKind.LINKS_PAUSED, b"") is None
    client.asked(7)
    assert client.answered() == INLINE
    client.links.control(MessageKind.LINKS_RESUMED, b"")
    client.asked(8)
    is_linked(client.answered(response({0: RAW}, correlation_id=8)))


def test_a_consumer_is_never_told_to_read_with_restraint() -> None:
    client = Client(~PeerCapabilities.LINK_DIGESTS)
    client.rig.stored()
    client.asked()
    is_linked(client.answered(), MessageKind.LINKED)


# A whole log is read, by a gateway whose reads fail now and then.

LOG = batches(12, records=2, payload=b"some records" * 20)
SPANS = scan_batches(LOG, 0, len(LOG))


@dataclass(frozen=True)
class Round:
    """One Fetch: how many batches the broker gives, how many are stored by then, and whether they can be read."""

    batches: int
    stored: int
    is_read: bool
    mode: LinkMode


rounds = st.builds(Round, st.integers(1, 5), st.integers(0, len(SPANS)), st.booleans(), st.sampled_from(list(LinkMode)))


def spliced(linked: LinkedResponse) -> bytes:
    """As the gateway puts it together: the object holds the log from its beginning on."""
    return b"".join(map(bytes, splice(linked, [LOG[link.start_position : link.end_position] for link in linked.links])))


@given(st.lists(rounds, min_size=1, max_size=30))
def test_a_consumer_reads_the_very_log_however_it_is_stored_and_read(played: list[Round]) -> None:
    client, read, linked = Client(), b"", 0
    for correlation_id, one in enumerate(played):
        client.rig.led.mode = one.mode
        stored_bytes = SPANS[one.stored - 1].end if one.stored else 0
        client.rig.context.index.drop(partition(0))
        store(client.rig.context.index, partition(0), LOG[:stored_bytes], CombinedSegmentId(1, 1, 1), start=0)
        first = next((index for index, span in enumerate(SPANS) if span.start >= len(read)), len(SPANS))
        given_bytes = LOG[len(read) : SPANS[min(first + one.batches, len(SPANS)) - 1].end]
        frame = response({0: given_bytes, 1: b""}, correlation_id=correlation_id)
        client.asked(correlation_id)
        step = client.answered(frame)
        while isinstance(step, WaitForUploads):
            client.rig.now_s = step.until_s
            step = client.links.look_again(client.rig.now_s)
        came = b"".join(map(bytes, step.body))
        if step.kind is MessageKind.LINKED:
            linked += 1
            if one.is_read:
                came = spliced(decode_linked_response(came, 1_000_000))
            else:
                original = client.links.control(MessageKind.INLINE_REQUEST, inline_request(linked))
                assert original is not None
                came = b"".join(map(bytes, original.body))
        [told] = decode(came, 17).responses
        records = bytes(told.partitions[0].records or b"")
        assert given_bytes.startswith(records)
        assert decode(came, 17).session_id == decode(frame, 17).session_id
        read += records
    assert LOG.startswith(read)
