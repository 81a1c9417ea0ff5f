"""The RouterChannel: what shares an object, where its records stand, and when it goes."""

import math

import pytest

from gateway.produce.route_core import StoredRecords
from gateway.produce.route_decider import RouteCosts, RouteDecider
from gateway.produce.router_channel import KEEP_S, ChannelObject, DueDeletion, RouterChannel, RouterSweep
from metadata_topic.settings.topic_settings import LinkPolicy
from plugin.blob_storage import StoredBlob
from plugin.router_object_id import EPOCH_MS, RouterObjectId
from replication.wire.circuit_breaker import BreakerLimits, CircuitBreaker
from rlm.write_path.commit.cadence import CommitLimits

WALL_MS = 1_790_000_000_000
INTERVAL_S = 0.025
SLOW_S = 0.5
COSTS = RouteCosts(read_bytes=100, put_bytes=1000)


class Rig:
    def __init__(
        self, policy: LinkPolicy = LinkPolicy.ALWAYS, max_in_flight: int = 4, upload_bytes: int = 10_000
    ) -> None:
        self.breaker = CircuitBreaker(BreakerLimits(1, 1.0, 4.0))
        self.decider = RouteDecider(policy, COSTS, INTERVAL_S, self.breaker)
        limits = CommitLimits(INTERVAL_S, 1.0, upload_bytes, max_in_flight, 0.1, 1.0)
        self.channel = RouterChannel(4, 11, limits, self.decider, SLOW_S)

    def begun(self, now_s: float = 1.0) -> ChannelObject:
        round_ = self.channel.round(now_s, WALL_MS)
        assert not round_.refused
        (upload,) = round_.uploads
        return upload

    def offer_and_begin(self, *holders: str, now_s: float = 1.0) -> ChannelObject:
        for holder in holders:
            self.channel.offer(holder, [holder.encode()])
        return self.begun(now_s)


def content(upload: ChannelObject) -> bytes:
    return b"".join(map(bytes, upload.chunks))


def test_records_of_many_requests_are_one_object_each_request_in_one_piece() -> None:
    rig = Rig()
    rig.channel.offer("a", [b"one", b"two"])
    rig.channel.offer("b", [b"three"])
    upload = rig.begun()
    assert (content(upload), upload.size_bytes) == (b"onetwothree", 11)
    assert upload.object_id == RouterObjectId(4, 11, WALL_MS // EPOCH_MS, 0)
    assert rig.channel.stored(upload.object_id, b"zone", 1.1) == [
        ("a", StoredRecords(upload.object_id, 0, b"zone")),
        ("b", StoredRecords(upload.object_id, 6, b"zone")),
    ]


def test_an_object_holds_so_many_bytes_and_a_larger_request_alone() -> None:
    rig = Rig(upload_bytes=10)
    for holder, size in (("a", 6), ("b", 6), ("c", 50), ("d", 1)):
        rig.channel.offer(holder, [b"." * size])
    uploads = rig.channel.round(1.0, WALL_MS).uploads
    assert [one.size_bytes for one in uploads] == [6, 6, 50]
    assert [one.object_id.sequence for one in uploads] == [0, 1, 2]
    assert rig.channel.start_s(1.0) > 1.0  # what is left waits for company


def test_what_comes_while_an_upload_is_under_way_shares_the_next() -> None:
    rig = Rig()
    rig.offer_and_begin("a")
    rig.channel.offer("b", [b"b"])
    assert rig.channel.start_s(1.001) == pytest.approx(1.0 + INTERVAL_S)
    assert rig.channel.round(1.001, WALL_MS).uploads == []
    assert content(rig.offer_and_begin("c", now_s=1.0 + INTERVAL_S)) == b"bc"


def test_uploads_end_in_any_order_and_so_many_run_at_once() -> None:
    rig = Rig(max_in_flight=2, upload_bytes=1)
    for holder in "abc":
        rig.channel.offer(holder, [b"x"])
    first, second = rig.channel.round(1.0, WALL_MS).uploads
    assert rig.channel.start_s(9.0) == math.inf
    assert [holder for holder, _ in rig.channel.stored(second.object_id, b"", 1.1)] == ["b"]
    assert rig.channel.start_s(9.0) <= 9.0
    assert [holder for holder, _ in rig.channel.stored(first.object_id, b"", 1.2)] == ["a"]


def test_what_an_interval_brought_and_does_not_pay_goes_inline() -> None:
    rig = Rig(LinkPolicy.COST)
    rig.channel.offer("a", [b"." * 600], now_s=1.0)
    rig.channel.offer("b", [b"." * 599], now_s=1.01)
    now_s = rig.channel.start_s(1.01)
    assert rig.channel.round(now_s, WALL_MS) == ([], ["a", "b"])
    assert (rig.channel.start_s(9.0), rig.channel.objects) == (math.inf, 0)
    assert now_s <= 1.0 + INTERVAL_S + 1e-3


def test_what_pays_is_uploaded() -> None:
    rig = Rig(LinkPolicy.COST)
    for holder in "ab":
        rig.channel.offer(holder, [b"." * 600])
    assert rig.begun(1.1).size_bytes == 1200


def test_an_object_goes_when_all_of_its_requests_are_settled_and_not_before() -> None:
    rig = Rig()
    upload = rig.offer_and_begin("a", "b")
    rig.channel.stored(upload.object_id, b"zone", 1.1)
    rig.channel.settled("a", 1.2)
    assert (rig.channel.due_deletions(9.0), rig.channel.next_deletion_s) == ([], math.inf)
    rig.channel.settled("b", 1.3)
    rig.channel.settled("b", 1.3)
    assert rig.channel.next_deletion_s == 1.3
    assert rig.channel.due_deletions(1.3) == [DueDeletion(upload.object_id, b"zone")]
    assert rig.channel.due_deletions(9.0) == []
    rig.channel.deleted(upload.object_id)
    assert rig.channel.objects == 0


def test_nothing_is_deleted_while_its_upload_is_under_way() -> None:
    rig = Rig()
    upload = rig.offer_and_begin("a")
    rig.channel.settled("a", 1.1)
    assert rig.channel.due_deletions(9.0) == []
    assert rig.channel.stored(upload.object_id, b"", 9.0) == []
    assert rig.channel.due_deletions(9.0) == [DueDeletion(upload.object_id, b"")]


def test_a_failed_upload_may_have_taken_effect_so_its_object_is_deleted_and_its_id_not_used_again() -> None:
    rig = Rig()
    upload = rig.offer_and_begin("a", "b")
    rig.channel.settled("a", 1.05)
    assert rig.channel.failed(upload.object_id, 1.1) == ["b"]
    rig.channel.settled("b", 1.1)  # as its connection tells it when it goes inline
    assert rig.channel.due_deletions(1.1) == [DueDeletion(upload.object_id, b"")]
    rig.channel.deleted(upload.object_id)
    assert rig.offer_and_begin("c", now_s=9.0).object_id.sequence == 1


def test_after_a_failure_the_next_upload_waits() -> None:
    rig = Rig()
    rig.channel.failed(rig.offer_and_begin("a").object_id, 1.1)
    rig.channel.offer("b", [b"b"])
    assert rig.channel.start_s(1.15) > 1.15
    assert rig.channel.start_s(1.21) <= 1.21


def test_a_request_that_is_settled_before_its_upload_began_is_not_uploaded() -> None:
    rig = Rig()
    rig.channel.offer("a", [b"a"])
    rig.channel.offer("b", [b"b"])
    rig.channel.settled("a", 1.0)
    assert content(rig.begun()) == b"b"


def test_a_deletion_that_failed_is_tried_again_later_each_time() -> None:
    rig = Rig()
    upload = rig.offer_and_begin("a")
    rig.channel.stored(upload.object_id, b"", 1.1)
    rig.channel.settled("a", 2.0)
    waits, now_s = [], 2.0
    for _ in range(9):
        assert len(rig.channel.due_deletions(now_s)) == 1
        rig.channel.not_deleted(upload.object_id, now_s)
        waits.append(rig.channel.next_deletion_s - now_s)
        now_s = rig.channel.next_deletion_s
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]


@pytest.mark.parametrize("gave_up_s", [SLOW_S - 0.01, SLOW_S])
def test_an_upload_that_requests_gave_up_counts_as_failed(gave_up_s: float) -> None:
    rig = Rig()
    upload = rig.offer_and_begin("a", "b")
    for holder in "ab":
        rig.channel.settled(holder, 1.0 + gave_up_s)
    assert rig.breaker.is_open is (gave_up_s >= SLOW_S)
    rig.channel.stored(upload.object_id, b"", 1.0 + gave_up_s)
    assert rig.breaker.is_open is (gave_up_s >= SLOW_S)


# What is swept.


def blob(object_id: RouterObjectId, written_ms: int | None = 1000) -> StoredBlob:
    return StoredBlob(object_id.blob_name, 10, b"zone", written_ms)


KEEP_MS = int(KEEP_S * 1000)


def test_what_is_old_and_nobody_cares_for_is_swept_whoever_wrote_it() -> None:
    rig = Rig()
    live = rig.offer_and_begin("a").object_id
    others = [RouterObjectId(4, 10, 7, 3), RouterObjectId(5, 99, 7, 0), RouterObjectId(4, 11, 7, 77)]
    young, untold = blob(RouterObjectId(4, 10, 8, 0), 1001), blob(RouterObjectId(4, 10, 8, 1), None)
    listed = [*map(blob, (live, *others)), young, untold, StoredBlob("router/nothing-of-ours", 1, b"", KEEP_MS + 999)]
    sweep = RouterSweep(rig.channel.is_live)
    assert sweep.dead(listed, 10.0) == []
    listed[-1] = StoredBlob("router/nothing-of-ours", 1, b"", KEEP_MS + 1000)
    assert sweep.dead(listed, 10.0) == [blob(one) for one in others]


def test_ages_are_told_by_the_stores_clock_and_the_time_that_has_passed_since_it_was_known() -> None:
    listed = [blob(RouterObjectId(5, 99, 7, 0))]
    sweep = RouterSweep(lambda _object_id: False)
    assert sweep.dead(listed, 5_000_000.0) == [], "whatever this host takes the time for"
    assert sweep.dead(listed, 5_000_000.0 + KEEP_S - 1) == []
    assert sweep.dead([], 5_000_000.0 + KEEP_S - 0.5) == []
    assert sweep.dead(listed, 5_000_000.0 + KEEP_S) == listed


def test_an_object_is_of_one_owner_where_that_may_adopt_it() -> None:
    rig = Rig()
    for holder, owner in (("a", 1), ("b", 2), ("c", 1), ("d", None)):
        rig.channel.offer(holder, [b"." * 600], owner)
    assert [rig.begun(at_s).size_bytes for at_s in (10.0, 20.0, 30.0)] == [1200, 600, 600]


def test_what_was_left_to_a_log_is_forgotten_and_not_deleted_whoever_is_last() -> None:
    rig = Rig()
    for holder in "ab":
        rig.channel.offer(holder, [b"." * 600], 1)
    upload = rig.begun()
    rig.channel.stored(upload.object_id, b"", 1.1)
    rig.channel.left("a", 1.2)
    assert rig.channel.is_live(upload.object_id)
    rig.channel.settled("b", 1.3)
    assert not rig.channel.is_live(upload.object_id)
    assert rig.channel.due_deletions(5000.0) == []
