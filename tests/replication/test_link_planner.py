"""What becomes of a Fetch response: rules one by one, then all of them against a model."""

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kafka_log.crc32c import crc32c
from kafka_log.topic_partition import TopicId, TopicIdPartition
from plugin.format.archive_object_id import StoredObjectId
from plugin.segment_metadata import CombinedSegmentId
from replication.leader.link_index import LinkIndex
from replication.leader.link_planner import LinkPlanner, PlannerLimits, SendLinked, Verdict, WaitForUploads
from replication.wire.fetch_frame import scan_fetch_response
from replication.wire.link import InlineBytes, SegmentLink, splice
from rlm.write_path.commit.link_policy import LinkMode
from tests.kafka_log.batches import batch, batches
from tests.replication.fake_led import FakeLed, store
from tests.replication.fetch_frames import decode, partition, response

SEGMENT, OTHER = CombinedSegmentId(1, 2, 3), CombinedSegmentId(1, 2, 4)
LIMITS = PlannerLimits(wait_max_s=0.5, break_even_bytes=10_000)


class Rig:
    def __init__(self, led: FakeLed | None = None, limits: PlannerLimits = LIMITS) -> None:
        self.index, self.led = LinkIndex(), led or FakeLed()
        self.planner = LinkPlanner(self.index, self.led, limits)
        self.frame = b""

    def begin(self, records: dict[int, bytes | None], version: int = 17, errors: dict[int, int] | None = None) -> "Rig":
        self.frame = response(records, version=version, errors=errors)
        self.planner.begin(self.frame, scan_fetch_response(self.frame, version), 2)
        return self

    def plan(self, records: dict[int, bytes | None], now_s: float = 0.0) -> Verdict:
        return self.begin(records).planner.decide(now_s)


def links_of(verdict: Verdict) -> list[SegmentLink]:
    assert isinstance(verdict, SendLinked)
    return list(verdict.response.links)


def received(verdict: Verdict, store_bytes: dict[tuple[StoredObjectId, int], bytes]) -> dict[int, bytes]:
    """The records that the follower's broker gets, by partition."""
    assert isinstance(verdict, SendLinked)
    hydrated = [store_bytes[link.object_id, link.start_position][: link.length] for link in links_of(verdict)]
    frame = b"".join(map(bytes, splice(verdict.response, hydrated)))
    return {p.partition_index: bytes(p.records or b"") for p in decode(frame, 17).responses[0].partitions}


def test_what_is_stored_is_linked_as_one_run_with_the_checksum_of_the_responses_own_bytes() -> None:
    rig, raw = Rig(), batches(3, 10, 2)
    store(rig.index, partition(0), raw, SEGMENT, start=500)
    verdict = rig.plan({0: raw})
    assert links_of(verdict) == [SegmentLink(SEGMENT, 500, len(raw), crc32c(raw))]
    assert isinstance(verdict, SendLinked)
    assert verdict.linked == ((partition(0), 16, len(raw)),)
    assert received(verdict, {(SEGMENT, 500): raw}) == {0: raw}


def test_runs_in_two_objects_or_with_something_between_become_two_links() -> None:
    rig = Rig()
    first, second, third = (batches(1, offset) for offset in (0, 1, 2))
    store(rig.index, partition(0), first, SEGMENT, start=100)
    store(rig.index, partition(0), second, SEGMENT, start=5000)
    store(rig.index, partition(0), third, OTHER, start=5000 + len(second))
    assert [(link.object_id, link.start_position) for link in links_of(rig.plan({0: first + second + third}))] == [
        (SEGMENT, 100),
        (SEGMENT, 5000),
        (OTHER, 5000 + len(second)),
    ]


@pytest.mark.parametrize(
    ("stored", "kept"), [((3, b"same"), (4, b"same")), ((4, b"lost!"), (4, b"kept!"))], ids=["epoch", "payload"]
)
def test_a_stale_leaders_object_is_never_linked(stored: tuple[int, bytes], kept: tuple[int, bytes]) -> None:
    """At the same offset and of the same length, but of an older epoch or with another payload: another batch."""
    rig = Rig(FakeLed(expected=False))
    in_object, in_log = (batch(5, 2, leader_epoch=epoch, payload=payload) for epoch, payload in (stored, kept))
    store(rig.index, partition(0), in_object, SEGMENT)
    assert rig.plan({0: in_log}) is None


def test_another_partitions_or_topics_object_is_never_linked() -> None:
    rig, raw = Rig(FakeLed(expected=False)), batch(5, 2)
    store(rig.index, partition(1), raw, SEGMENT)
    store(rig.index, TopicIdPartition(TopicId(b"another topic id"), 0), raw, SEGMENT)
    assert rig.plan({0: raw}) is None


@given(st.floats(0.0, 1e7), st.floats(0.001, 2.0))
@example(1023.9849, 0.5)  # whose sum less the one is less than the other
def test_the_patience_has_run_out_at_the_very_time_that_was_told(begun_s: float, wait_max_s: float) -> None:
    """Else it would be asked again and again without a wait between."""
    rig = Rig(limits=PlannerLimits(wait_max_s, break_even_bytes=10_000))
    verdict = rig.plan({0: batch(0)}, begun_s)
    assert isinstance(verdict, WaitForUploads)
    assert rig.planner.decide(verdict.until_s) is None


def test_a_partition_waits_no_longer_in_sum_over_however_many_responses() -> None:
    """Another partition's links let each response go; the one that waits gets nothing, until its time is up."""
    rig, now_s = Rig(), 10.0
    waiting = batch(0, 1, payload=b"waits")
    for step in range(20):
        other = batch(step, 1)
        store(rig.index, partition(1), other, SEGMENT)
        verdict = rig.plan({0: waiting, 1: other}, now_s)
        got = received(verdict, {(SEGMENT, 112): other})
        assert got[1] == other
        if now_s >= 10.5:
            assert got[0] == waiting
            return
        assert got[0] == b""
        now_s += 0.1
    raise AssertionError("the partition waited for ever")


def test_partitions_whose_patience_ends_at_different_times_do_not_prolong_each_others_wait() -> None:
    rig, links = Rig(), batch(0)
    one, two = batch(0, 1, payload=b"one"), batch(0, 1, payload=b"two")
    store(rig.index, partition(2), links, SEGMENT)
    for now_s, records in ((10.0, {0: one, 2: links}), (10.3, {0: one, 1: two, 2: links})):
        assert isinstance(rig.plan(dict(records), now_s), SendLinked)
    assert rig.plan({0: one, 1: two}, 10.4) == WaitForUploads(10.5, (partition(0), partition(1)))
    assert rig.planner.decide(10.5) is None
    assert rig.plan({0: batch(1), 1: batch(1)}, 10.6) == WaitForUploads(11.1, (partition(0), partition(1)))


def test_a_wait_that_is_interrupted_does_not_begin_anew_in_the_same_response() -> None:
    rig = Rig()
    assert rig.plan({0: batch(0), 1: batch(0)}, 10.0) == WaitForUploads(10.5, (partition(0), partition(1)))
    for now_s in (10.2, 10.4):
        rig.led.modes[partition(0)] = LinkMode.INLINE
        assert received(rig.planner.decide(now_s), {})[1] == b"", "what goes inline waits for no links"
        rig.led.modes[partition(0)] = LinkMode.LINK
        assert rig.planner.decide(now_s) == WaitForUploads(10.5, (partition(0), partition(1)))
    assert rig.planner.decide(10.5) is None


@pytest.mark.parametrize("mode", [LinkMode.INLINE, LinkMode.OFF])
def test_what_goes_inline_never_waits_for_the_links_of_others(mode: LinkMode) -> None:
    rig, waits, inline = Rig(), batch(0, 3), batch(7)
    rig.led.modes[partition(1)] = mode
    verdict = rig.plan({0: waits, 1: inline}, 10.0)
    assert received(verdict, {}) == {0: b"", 1: inline}
    assert isinstance(verdict, SendLinked)
    assert verdict.left_out == ((partition(0), len(waits)),)
    alone = rig.plan({0: waits}, 10.1)
    assert isinstance(alone, WaitForUploads)
    assert alone.until_s == pytest.approx(10.12), "more may come that goes inline"
    assert received(rig.planner.decide(alone.until_s), {}) == {0: b""}
    assert rig.plan({0: waits}, 10.5) is None, "it has waited as long as it may"
    assert rig.plan({0: batch(3)}, 12.0) == WaitForUploads(12.5, (partition(0),)), "nothing went inline lately"


@pytest.mark.parametrize(("what", "now"), [("expected", False), ("mode", LinkMode.OFF)], ids=["upload", "links"])
def test_it_stops_waiting_at_once_when_the_upload_is_not_expected_any_more_or_links_pause(
    what: str, now: object
) -> None:
    rig = Rig()
    assert isinstance(rig.plan({0: batch(0)}, 10.0), WaitForUploads)
    setattr(rig.led, what, now)
    assert rig.planner.decide(10.01) is None


def test_a_single_batch_that_is_cut_off_passes_through() -> None:
    assert Rig().plan({0: batch(0, 100)[:80]}) is None


def test_where_inline_is_cheaper_links_are_used_only_if_they_save_enough_and_the_rest_goes_along() -> None:
    small, large, rest = batch(0, 1, payload=b"s" * 100), batch(1, 1, payload=b"l" * 20_000), batch(2)
    rig = Rig(FakeLed(mode=LinkMode.INLINE))
    store(rig.index, partition(0), small + large, SEGMENT)
    assert rig.plan({0: small}) is None
    verdict = rig.plan({0: small + large + rest + rest[:30]})
    assert received(verdict, {(SEGMENT, 112): small + large}) == {0: small + large + rest}
    assert isinstance(verdict, SendLinked)
    assert verdict.inline == ((partition(0), len(rest)),)


def test_fields_that_are_not_ours_stay_as_they_are_beside_linked_ones() -> None:
    raw = batch(0, 3)
    old_magic = bytearray(batch(0, 2))
    old_magic[16] = 1
    rig = Rig()
    rig.led.modes[partition(2)] = LinkMode.OFF
    for number in range(6):
        store(rig.index, partition(number), raw, SEGMENT)
    rig.begin(
        {0: raw, 1: None, 2: raw, 3: raw, 4: bytes(old_magic), 5: b"no records at all, but a message set" * 3},
        errors={3: 6},
    )
    verdict = rig.planner.decide(0.0)
    assert len(links_of(verdict)) == 1
    got = received(verdict, {(SEGMENT, 112): raw})
    expected = decode(rig.frame, 17).responses[0].partitions
    assert got == {p.partition_index: bytes(p.records or b"") for p in expected}
    assert isinstance(verdict, SendLinked)
    assert not any(isinstance(part, InlineBytes) for cut in verdict.response.cuts for part in cut.parts)


def test_magic_0_and_1_pass_through() -> None:
    for magic in (0, 1):
        old = bytearray(batch(0, 2))
        old[16] = magic
        assert Rig().plan({0: bytes(old)}) is None


def test_versions_without_topic_ids_pass_through() -> None:
    rig, raw = Rig(), batch(0, 2)
    store(rig.index, partition(0), raw, SEGMENT)
    assert rig.begin({0: raw}, version=12).planner.decide(0.0) is None


@st.composite
def scenes(draw: st.DrawFn) -> tuple[dict[int, list[bytes]], dict[int, list[str]], dict[int, LinkMode], dict[int, int]]:
    """Batches by partition; whether each is stored, stored as something else, or not; modes; bytes of a cut tail."""
    partitions = range(draw(st.integers(1, 3)))
    logs: dict[int, list[bytes]] = {}
    for number in partitions:
        sizes = draw(st.lists(st.integers(0, 6000), max_size=4))
        logs[number] = [batch(index, 1, 2, b"z" * size) for index, size in enumerate(sizes)]
    state = {
        number: [draw(st.sampled_from(["stored", "stored", "stale", "absent"])) for _ in logs[number]]
        for number in partitions
    }
    modes = {number: draw(st.sampled_from(list(LinkMode))) for number in partitions}
    return logs, state, modes, {number: draw(st.sampled_from([0, 0, 40])) for number in partitions}


@given(scenes(), st.booleans())
def test_whatever_is_stored_the_follower_gets_a_prefix_of_the_leaders_batches(
    scene: tuple[dict[int, list[bytes]], dict[int, list[str]], dict[int, LinkMode], dict[int, int]], expected: bool
) -> None:
    logs, states, modes, tails = scene
    rig = Rig(FakeLed(expected=expected))
    rig.led.modes = {partition(number): mode for number, mode in modes.items()}
    objects: dict[tuple[StoredObjectId, int], bytes] = {}
    position = 112
    for number, state in states.items():
        for raw, kind in zip(logs[number], state, strict=True):
            if kind == "absent":
                continue
            stale = struct.pack(">qii", *struct.unpack_from(">qi", raw), 1) + raw[16:]
            stored = raw if kind == "stored" else stale
            store(rig.index, partition(number), stored, SEGMENT, start=position)
            objects[SEGMENT, position] = stored
            position += len(raw)
    whole = b"".join(objects.values())
    records = {n: b"".join(log) + batch(99, 1, 2, b"cut")[: tails[n]] for n, log in logs.items()}
    verdict = rig.plan(dict(records), 10.0)

    stored_runs = {n: _leading(logs[n], states[n]) if modes[n] is not LinkMode.OFF else b"" for n in logs}
    worth = any(stored_runs[n] for n in logs if modes[n] is LinkMode.LINK)
    worth |= sum(len(run) for run in stored_runs.values()) >= LIMITS.break_even_bytes
    waiting = [n for n in logs if logs[n] and modes[n] is LinkMode.LINK and not stored_runs[n] and expected]
    if not worth:
        if len(waiting) < sum(map(bool, logs.values())) and waiting:
            got = received(verdict, {(SEGMENT, start): whole[start - 112 :] for _, start in objects})
            assert all(got[number] == b"" for number in waiting)
            assert all(got[n].startswith(b"".join(log)) for n, log in logs.items() if n not in waiting)
        elif waiting:
            assert verdict == WaitForUploads(10.5, tuple(partition(n) for n in waiting))
            assert rig.planner.decide(10.5) is None
        else:
            assert verdict is None
        return
    got = received(verdict, {(SEGMENT, start): whole[start - 112 :] for _, start in objects})
    for number, raw in records.items():
        if stored_runs[number]:
            assert got[number] == (stored_runs[number] if modes[number] is LinkMode.LINK else b"".join(logs[number]))
        else:
            assert got[number] == (b"" if number in waiting else raw)


def _leading(log: list[bytes], state: list[str]) -> bytes:
    run = b""
    for raw, kind in zip(log, state, strict=True):
        if kind != "stored":
            break
        run += raw
    return run
