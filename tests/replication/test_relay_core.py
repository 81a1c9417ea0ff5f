"""One connection's frames as plain values: what goes to the broker, what to the follower, and what waits."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from kafka_log.record_batch import scan_batches
from plugin.format.archive_object_id import ArchiveObjectId
from plugin.inline_reason import InlineReason
from plugin.segment_metadata import CombinedSegmentId, RemoteLogSegmentMetadataEntry
from replication.leader.fetch_waits import READ_AGAIN_BYTES
from replication.leader.follower_offsets import WatermarkTimes
from replication.leader.leader_context import LeaderContext, LeaderLimits
from replication.leader.link_planner import WaitForUploads
from replication.leader.relay_core import RelayCore
from replication.leader.response_links import ToFollower
from replication.leader.zones import Zones
from replication.wire.fetch_frame import scan_fetch_request
from replication.wire.kafka_frame import MalformedFrameError
from replication.wire.link import decode_linked_response
from replication.wire.memory_budget import MemoryBudget
from replication.wire.metrics import PartitionTraffic, ReplicationMetrics
from replication.wire.peer_connection import Address
from replication.wire.peer_protocol import CAPABILITIES, Announcement, Hello, MessageKind, PeerCapabilities
from replication.wire.peer_protocol import encode_inline_request as inline_request
from rlm.write_path.commit.link_policy import LinkMode
from rlm.write_path.metrics import StageTimes
from rlm.write_path.uploads.segment_queue import MetaQueueItem, UploadedSegment
from tests.kafka_log.batches import batches
from tests.replication.fake_led import FakeLed, store
from tests.replication.fetch_frames import partition, request, response

SEGMENT = CombinedSegmentId(1, 11, 0)
RAW = batches(2, 0, payload=b"r" * 300)
FRAME = response({0: RAW}, correlation_id=7)
INLINE = ToFollower(MessageKind.KAFKA, (FRAME,))
ORIGINAL = ToFollower(MessageKind.ORIGINAL, (FRAME,))
WAIT_MAX_S = 0.5


class Rig:
    def __init__(
        self,
        capabilities: PeerCapabilities | None = CAPABILITIES,
        zones: Zones | None = None,
        *,
        watermark_wait_ms: int = 0,
    ) -> None:
        limits = LeaderLimits(WAIT_MAX_S, 1, gather_max_ms=0, range_gap_bytes=10, watermark_wait_ms=watermark_wait_ms)
        registry = CollectorRegistry()
        self.led, self.metrics, self.budget = FakeLed(), ReplicationMetrics(registry), MemoryBudget(10_000)
        self.now_s = 10.0
        self.context = LeaderContext(
            Hello("cluster", 1, 11),
            limits,
            Address("not-dialled", 1),
            self.led,
            StageTimes(registry),
            self.metrics,
            clock=lambda: self.now_s,
            followers=frozenset({2}),
            budget=self.budget,
            zones=zones or Zones(),
        )
        self.core = RelayCore(self.context, capabilities, WatermarkTimes(self.context.stage_times))

    def asked(self, correlation_id: int = 7) -> None:
        """The follower fetches partition 0."""
        frame = request({0: 0}, correlation_id=correlation_id)
        assert self.core.request(frame, self.now_s) == frame
        self.core.request_sent(len(frame))

    def stored(self) -> None:
        store(self.context.index, partition(0), RAW, SEGMENT)

    def answered(self, frame: bytes = FRAME) -> ToFollower | WaitForUploads:
        return self.core.response(frame, self.now_s)

    def linked(self) -> None:
        self.stored()
        self.asked()
        is_linked(self.answered())

    def faults(self, reason: str) -> float:
        found = self.metrics.registry.get_sample_value("remote_wal_faults_total", {"reason": reason})
        return found or 0.0


def is_linked(step: ToFollower | WaitForUploads, kind: MessageKind = MessageKind.LINKED) -> None:
    assert isinstance(step, ToFollower)
    assert step.kind is kind
    linked = decode_linked_response(b"".join(map(bytes, step.body)), 1_000_000)
    assert [(link.object_id, link.length) for link in linked.links] == [(SEGMENT, len(RAW))]


def uploaded(number: int) -> UploadedSegment:
    spans = tuple(scan_batches(RAW, 0, len(RAW)))
    item = MetaQueueItem(partition(number), spans, memoryview(RAW), 0.0, 0.0)
    entry = RemoteLogSegmentMetadataEntry(partition(number), 0, 0, item.last_offset, 112, 112 + len(RAW), 0)
    return UploadedSegment(SEGMENT, (item,), (entry,), 200 + len(RAW), 10.0)


def test_what_is_stored_goes_linked_and_what_is_not_waits_for_its_upload() -> None:
    rig = Rig()
    rig.asked()
    assert rig.answered() == WaitForUploads(rig.now_s + WAIT_MAX_S, (partition(0),))
    assert rig.led.wanted == [partition(0)]
    assert rig.core.look_again(rig.now_s + 0.1) == WaitForUploads(rig.now_s + WAIT_MAX_S, (partition(0),))
    rig.stored()
    is_linked(rig.core.look_again(rig.now_s + 0.2))
    assert rig.led.wanted == [partition(0)]


@pytest.mark.parametrize("capabilities", [None, PeerCapabilities.NONE])
def test_who_did_not_say_that_it_understands_links_gets_none(capabilities: PeerCapabilities | None) -> None:
    rig = Rig(capabilities)
    rig.stored()
    rig.asked()
    assert rig.answered() == INLINE
    assert rig.core.uploaded(uploaded(0)) == []


def test_a_request_that_comes_while_a_response_waits_has_it_sent_inline() -> None:
    rig = Rig()
    rig.asked(7)
    assert isinstance(rig.answered(), WaitForUploads)
    rig.asked(8)
    rig.stored()
    assert rig.core.look_again(rig.now_s) == INLINE


def test_links_that_the_follower_pauses_end_a_wait_and_come_again() -> None:
    rig = Rig()
    rig.asked()
    assert isinstance(rig.answered(), WaitForUploads)
    assert rig.core.control(MessageKind.LINKS_PAUSED, b"") is None
    assert rig.core.look_again(rig.now_s) == INLINE
    assert rig.core.control(MessageKind.LINKS_RESUMED, b"") is None
    rig.linked()


def test_the_original_of_a_linked_response_is_sent_when_it_is_asked_for_and_once() -> None:
    rig = Rig()
    rig.linked()
    assert rig.budget.used == len(FRAME)
    assert rig.core.control(MessageKind.INLINE_REQUEST, inline_request(1)) == ORIGINAL
    assert rig.budget.used == 0
    with pytest.raises(MalformedFrameError):
        rig.core.control(MessageKind.INLINE_REQUEST, inline_request(1))


def test_the_next_request_means_that_a_linked_response_arrived() -> None:
    rig = Rig()
    rig.linked()
    rig.asked(8)
    assert rig.budget.used == 0
    with pytest.raises(MalformedFrameError):
        rig.core.control(MessageKind.INLINE_REQUEST, inline_request(1))


def test_an_original_that_memory_was_too_short_for_ends_the_connection() -> None:
    rig = Rig()
    rig.linked()
    rig.budget.wait("another", rig.budget.ticket(), 10_000, 0, lambda: None)
    with pytest.raises(ConnectionResetError):
        rig.core.control(MessageKind.INLINE_REQUEST, inline_request(1))
    assert rig.faults("kept_response_let_go") == 1


@pytest.mark.parametrize("kind", [MessageKind.LINKED, MessageKind.ANNOUNCE, MessageKind.READ_AHEAD])
def test_what_only_leaders_agents_say_is_refused(kind: MessageKind) -> None:
    with pytest.raises(MalformedFrameError, match=kind.name):
        Rig().core.control(kind, b"")


def test_a_response_that_comes_too_late_ends_the_connection_linked_or_not() -> None:
    rig = Rig()
    rig.stored()
    rig.asked()
    rig.now_s += rig.context.limits.stale_after_s + 1
    with pytest.raises(ConnectionResetError):
        rig.answered()
    assert rig.faults("stale_response") == 1


def test_an_upload_is_announced_for_what_the_follower_was_given_before() -> None:
    rig = Rig()
    assert rig.core.uploaded(uploaded(0)) == []
    rig.linked()
    ranges = rig.core.uploaded(uploaded(0))
    told = rig.core.announced(uploaded(0), ranges, None)
    assert told == ToFollower(MessageKind.ANNOUNCE, (Announcement(SEGMENT, ((112, 112 + len(RAW)),)).encode(),))
    assert rig.core.uploaded(uploaded(1)) == []
    rig.core.forget(partition(0))
    assert rig.core.uploaded(uploaded(0)) == []


def test_what_a_follower_forgets_in_its_fetch_session_is_not_announced_any_more() -> None:
    rig = Rig()

    def fetched(offsets: dict[int, int], session_epoch: int, forgotten: Sequence[int] = ()) -> None:
        frame = request(offsets, session_epoch=session_epoch, forgotten=forgotten)
        rig.core.request(frame, rig.now_s)
        rig.core.request_sent(len(frame))
        rig.answered(response(dict.fromkeys(offsets, b"")))

    fetched({0: 0, 1: 0, 2: 0}, 0)
    fetched({}, 1)
    assert all(rig.core.uploaded(uploaded(number)) for number in (0, 1, 2)), "what a request does not list is unchanged"
    fetched({}, 2, forgotten=[0, 2])
    assert [bool(rig.core.uploaded(uploaded(number))) for number in (0, 1, 2)] == [False, True, False]
    fetched({0: 0}, 3)
    assert rig.core.uploaded(uploaded(0)), "it is fetched again"


@pytest.mark.parametrize("session_epoch", [-1, 0])
def test_a_request_that_begins_a_fetch_session_or_has_none_lists_all_that_is_followed(session_epoch: int) -> None:
    rig = Rig()
    rig.asked()
    rig.answered(response({0: b""}))
    assert rig.core.uploaded(uploaded(0))
    rig.core.request(request({1: 0}, session_epoch=session_epoch), rig.now_s)
    assert rig.core.uploaded(uploaded(0)) == []


def test_gaps_are_read_along_in_combined_segments_alone() -> None:
    rig, ranges = Rig(), [(0, 10), (15, 30), (30, 40), (2000, 2010)]
    archived = ArchiveObjectId(partition(0), 0, 9, SEGMENT)
    told = rig.core.read_ahead(SEGMENT, ranges)
    assert told == ToFollower(MessageKind.READ_AHEAD, (Announcement(SEGMENT, ((0, 40), (2000, 2010))).encode(),))
    told = rig.core.read_ahead(archived, ranges)
    joined = ((0, 10), (15, 40), (2000, 2010))
    assert told == ToFollower(MessageKind.READ_ARCHIVE_AHEAD, (Announcement(archived, joined).encode(),))


class Script(Rig):
    """Steps that a fetcher and an agent may take in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[int] = []
        self.answers: list[int] = []
        self.until_s: float | None = None
        """Until when a response waits for links."""
        self.is_stored = False
        self.kept: int | None = None
        self.linked_so_far = 0

    def ask(self) -> None:
        self.requests.append(len(self.requests))
        self.asked(self.requests[-1])
        self.kept = None

    def answer(self) -> None:
        if self.until_s is None and len(self.answers) < len(self.requests):
            self.sees(self.answered(self.original(self.requests[len(self.answers)])))

    def look(self) -> None:
        if self.until_s is not None:
            self.sees(self.core.look_again(self.now_s))

    def store(self) -> None:
        self.is_stored = True
        self.stored()

    def drop(self) -> None:
        self.is_stored = False
        self.context.index.drop_object(SEGMENT)

    def pause(self) -> None:
        self.core.control(MessageKind.LINKS_PAUSED, b"")

    def resume(self) -> None:
        self.core.control(MessageKind.LINKS_RESUMED, b"")

    def inline(self) -> None:
        if self.kept is not None:
            told = self.core.control(MessageKind.INLINE_REQUEST, inline_request(self.linked_so_far))
            assert told == ToFollower(MessageKind.ORIGINAL, (self.original(self.kept),))
            self.kept = None

    def original(self, correlation_id: int) -> bytes:
        return response({0: RAW}, correlation_id=correlation_id)

    def sees(self, step: ToFollower | WaitForUploads) -> None:
        if isinstance(step, WaitForUploads):
            assert self.now_s < step.until_s <= (self.until_s or self.now_s + WAIT_MAX_S)
            self.until_s = step.until_s
            return
        self.until_s = None
        self.answers.append(self.requests[len(self.answers)])
        if step.kind is MessageKind.KAFKA:
            assert step.body == (self.original(self.answers[-1]),)
        else:
            assert len(self.requests) == len(self.answers)
            is_linked(step)
            self.kept = self.answers[-1]
            self.linked_so_far += 1


STEPS = (Script.ask, Script.answer, Script.look, Script.store, Script.drop, Script.pause, Script.resume, Script.inline)


@given(st.lists(st.tuples(st.sampled_from(STEPS), st.sampled_from([0.0, 0.0, 0.1, 0.4])), max_size=40))
def test_each_request_is_answered_once_with_its_own_answer_and_what_is_kept_is_the_last_linked_one(
    script: list[tuple[Callable[[Script], None], float]],
) -> None:
    run = Script()
    for step, later_s in script:
        run.now_s += later_s
        was_stored, linked = run.is_stored, run.kept
        step(run)
        assert run.kept in (None, linked) or was_stored, "what is not stored is not linked"
        assert (run.budget.used > 0) == (run.kept is not None)


def test_a_follower_that_has_more_than_the_high_watermark_it_was_told_of_waits_for_a_short_time_alone() -> None:
    rig = Rig(None, watermark_wait_ms=2)

    def wait_ms(offset: int) -> int:
        """As the broker is asked, which then answers with what `told` says."""
        frame = rig.core.request(request({0: offset}), rig.now_s)
        rig.core.request_sent(len(frame))
        return scan_fetch_request(frame, 17).max_wait_ms

    def told(high_watermark: int, records: bytes = b"") -> None:
        rig.answered(response({0: records}, high_watermark=high_watermark))

    assert wait_ms(0) == 500
    told(0, RAW)
    assert wait_ms(2) == 2
    told(0)
    assert wait_ms(2) == 2
    told(2)
    assert wait_ms(2) == 500


def test_nothing_is_owed_to_a_follower_of_what_it_has_forgotten() -> None:
    rig = Rig(None, watermark_wait_ms=2)

    def wait_ms(offsets: dict[int, int], session_epoch: int, forgotten: Sequence[int] = ()) -> int:
        frame = rig.core.request(request(offsets, session_epoch=session_epoch, forgotten=forgotten), rig.now_s)
        rig.core.request_sent(len(frame))
        rig.answered(response(dict.fromkeys(offsets, b""), high_watermark=0))
        return scan_fetch_request(frame, 17).max_wait_ms

    wait_ms({0: 2}, 0)
    assert wait_ms({}, 1) == 2
    assert wait_ms({}, 2, forgotten=[0]) == 500


@pytest.mark.parametrize("payload", [300, READ_AGAIN_BYTES])
def test_a_high_watermark_that_is_owed_does_not_wait_for_the_upload_of_a_few_records(payload: int) -> None:
    rig = Rig(watermark_wait_ms=2)

    def fetched(offset: int, high_watermark: int, records: bytes) -> ToFollower | WaitForUploads:
        rig.core.request(request({0: offset}), rig.now_s)
        rig.core.request_sent(0)
        return rig.answered(response({0: records}, high_watermark=high_watermark))

    next_records = batches(2, 2, payload=b"r" * payload)
    rig.stored()
    is_linked(fetched(0, 0, RAW))
    assert fetched(2, 0, b"") == ToFollower(MessageKind.KAFKA, (response({0: b""}, high_watermark=0),))
    told = fetched(2, 2, next_records)
    if payload < READ_AGAIN_BYTES:
        assert told == ToFollower(MessageKind.KAFKA, (response({0: b""}, high_watermark=2),))
        told = fetched(2, 2, next_records)
    assert isinstance(told, WaitForUploads), "it was told of, so the records wait for their upload"


def reasons(rig: Rig) -> dict[str, float]:
    """Inline bytes by reason; together they are all that went inline."""
    counted = {
        sample.labels["reason"]: sample.value
        for family in rig.metrics.inline_bytes.collect()
        for sample in family.samples
    }
    of_path = {"path": "inline"}
    total = rig.metrics.registry.get_sample_value("remote_wal_replicated_record_bytes_total", of_path)
    assert sum(counted.values()) == (total or 0)
    return counted


class OwnZone(Zones):
    def is_own(self, broker_id: int) -> bool:
        return True


def test_every_inline_byte_has_a_reason() -> None:
    size = len(RAW)
    stock = Rig(None)
    stock.asked()
    stock.answered()
    assert reasons(stock) == {"no_agent": size}

    near = Rig(zones=OwnZone())
    near.asked()
    near.answered()
    assert reasons(near) == {"own_zone": size}

    rig = Rig()
    rig.asked()
    rig.answered()
    rig.core.look_again(rig.now_s + WAIT_MAX_S)
    assert reasons(rig) == {"wait_timeout": size}
    assert rig.faults("link_wait_timeout") == 1
    rig.led.expected = False
    rig.asked()
    rig.answered()
    assert reasons(rig) == {"wait_timeout": size, "not_stored": size}
    rig.led.mode = LinkMode.INLINE
    rig.asked()
    rig.answered()
    rig.core.control(MessageKind.LINKS_PAUSED, b"")
    rig.asked()
    rig.answered()
    expected = {"wait_timeout": size, "not_stored": size, "load": size, "paused_by_follower": size}
    assert reasons(rig) == expected
    recent = rig.metrics.traffic.recent[partition(0).topic_id]
    assert recent.moved(60, rig.now_s) == expected
    assert rig.metrics.traffic.by_partition[partition(0)].unsaved_bytes == 3 * size
    rig.led.reason = InlineReason.PAUSED_BY_OPERATOR
    rig.asked()
    rig.answered()
    assert reasons(rig)["paused_by_operator"] == size, "also where the follower's agent is paused, too"


def moved(rig: Rig) -> dict[str, float]:
    """The bytes that are counted for the follower, by metric."""
    ways = {path: ("remote_wal_replicated_record_bytes_total", {"path": path}) for path in ("linked", "inline")}
    ways["stock"] = ("remote_wal_stock_bytes_total", {"direction": "response"})
    of_all = rig.metrics.registry.get_sample_value
    return {way: of_all(name, labels) or 0.0 for way, (name, labels) in ways.items()}


def test_bytes_count_as_linked_once_the_follower_goes_on() -> None:
    rig = Rig()
    rig.linked()
    assert moved(rig)["linked"] == 0, "the follower may not be able to read them"
    rig.asked(8)
    of_topic = rig.metrics.traffic.by_topic[partition(0).topic_id, 2]
    assert (moved(rig)["linked"], moved(rig)["inline"]) == (len(RAW), 0)
    assert of_topic == PartitionTraffic(linked_bytes=len(RAW))
    rig.asked(9)
    assert moved(rig)["linked"] == len(RAW)


def test_linked_bytes_that_the_follower_asks_for_count_as_inline() -> None:
    rig = Rig()
    rig.linked()
    assert rig.core.control(MessageKind.INLINE_REQUEST, inline_request(1)) == ORIGINAL
    rig.asked(8)
    size = len(RAW)
    assert moved(rig) == {"linked": 0, "inline": size, "stock": 4 + len(FRAME)}
    expected = PartitionTraffic(inline_bytes=size, unsaved_bytes=size)
    assert rig.metrics.traffic.by_partition[partition(0)] == expected
    assert rig.metrics.traffic.by_topic[partition(0).topic_id, 2].inline_bytes == size
    recent = rig.metrics.traffic.recent[partition(0).topic_id]
    assert recent.moved(60, rig.now_s) == {InlineReason.HYDRATION_FAILED.value: size}


def test_an_original_that_is_asked_for_brings_what_its_links_left_out() -> None:
    rig = Rig()
    other = batches(1, 0, payload=b"o" * 200)
    frame = response({0: RAW, 1: other}, correlation_id=7)
    rig.stored()
    rig.asked()
    is_linked(rig.answered(frame))
    assert moved(rig)["inline"] == 0, "partition 1 waits for its upload"
    assert rig.core.control(MessageKind.INLINE_REQUEST, inline_request(1)) == ToFollower(MessageKind.ORIGINAL, (frame,))
    assert moved(rig) == {"linked": 0, "inline": len(RAW) + len(other), "stock": 4 + len(frame)}


def test_links_that_nobody_is_known_to_have_read_do_not_count() -> None:
    rig = Rig()
    rig.linked()
    rig.core.close()
    assert (moved(rig)["linked"], moved(rig)["inline"]) == (0, 0)


def test_a_half_linked_response_is_as_large_as_without_links() -> None:
    rig = Rig()
    rig.led.mode = LinkMode.INLINE
    rest = batches(2, 2, payload=b"j" * 400)
    frame = response({0: RAW + rest}, correlation_id=7)
    rig.stored()
    rig.asked()
    is_linked(rig.answered(frame))
    rig.asked(8)
    assert (moved(rig)["linked"], moved(rig)["inline"]) == (len(RAW), len(rest))
    length_varint_bytes = 2
    assert moved(rig)["stock"] == 4 + len(frame) - length_varint_bytes


def test_bytes_that_cannot_be_linked_count_as_inline_beside_links() -> None:
    rig = Rig()
    rig.led.modes[partition(1)] = LinkMode.OFF
    other = batches(1, 0, payload=b"o" * 200)
    rig.stored()
    rig.asked()
    is_linked(rig.answered(response({0: RAW, 1: other}, correlation_id=7)))
    rig.asked(8)
    assert (moved(rig)["linked"], moved(rig)["inline"]) == (len(RAW), len(other))


def test_the_linked_share_is_that_of_late() -> None:
    rig = Rig()
    rig.led.expected = False
    rig.asked()
    rig.answered()
    rig.linked()
    rig.asked(8)
    rig.answered(response({0: b""}, correlation_id=8))
    recent = rig.metrics.traffic.recent[partition(0).topic_id]
    assert recent.share(60, rig.now_s) == 0.5
    rig.now_s += 600
    assert recent.share(60, rig.now_s) is None
    rig.asked()
    is_linked(rig.answered())
    rig.asked(8)
    assert (recent.share(60, rig.now_s), recent.share(3600, rig.now_s)) == (1.0, 2 / 3)
