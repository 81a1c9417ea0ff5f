"""What goes inline and what nobody wants stored is in no object, and on record."""

from hypothesis import given
from hypothesis import strategies as st

from metadata_topic.records.offset_ranges import OffsetRange, joined_ranges
from metadata_topic.settings.topic_settings import LinkPolicy
from rlm.write_path.commit.constants import RATE_S
from rlm.write_path.commit.link_policy import LinkMode
from rlm.write_path.core.actions import CountLeftOut, DeclareNotWanted, TellLeftOut, TellStored
from rlm.write_path.core.led_partition import LeftOut
from rlm.write_path.core.pacing import UploadNow, Wait
from tests.rlm.driven_core import LIMITS, Driven
from tests.rlm.plain_log import BATCH_BYTES, partition


class Cost(Driven):
    """One partition by cost, whose objects are for links alone unless it is kept."""

    def __init__(self, *, is_kept: bool = False) -> None:
        super().__init__(break_even_bytes=BATCH_BYTES)
        self.assign(0, policy=LinkPolicy.COST, is_kept=is_kept)
        self.settle()

    def pay(self) -> None:
        price = self.decider.price
        price.fetched(9, int(price.paying_bytes * RATE_S / 0.025) + 1, self.now_s)
        assert self.decider.mode_of(self.core.led[partition(0)].assignment, self.now_s) is LinkMode.LINK

    def fetched(self, offset: int) -> None:
        """Both followers ask from there on."""
        for follower in (2, 3):
            self.core.pacing.fetched(follower, partition(0), offset, BATCH_BYTES, self.now_s)

    def declared(self) -> list[OffsetRange]:
        told = self.taken(DeclareNotWanted)
        return [one for action in told if isinstance(action, DeclareNotWanted) for one in action.ranges]

    def all_declared(self) -> list[OffsetRange]:
        """The same, with what was not told yet."""
        self.actions += self.core.unwanted.declare_all(self.now_s)
        return self.declared()


def test_what_goes_inline_is_not_uploaded_and_is_told_as_not_wanted() -> None:
    driven = Cost()
    driven.append(0, 5)
    driven.settle()
    assert driven.objects == 0
    counted = driven.taken(CountLeftOut)
    left_out = [one for one in counted if isinstance(one, CountLeftOut)]
    assert sum(one.size_bytes for one in left_out) == 5 * BATCH_BYTES
    assert {one.assignment.topic_id_partition for one in left_out} == {partition(0)}
    assert driven.uploaded(0) == 5, "nothing of it is to be waited for, or counts as lagging"
    assert driven.all_declared() == [(0, 5)]


def test_what_a_recovery_wants_is_uploaded_whichever_way_it_went() -> None:
    driven = Cost(is_kept=True)
    driven.append(0, 5)
    driven.settle()
    assert driven.objects > 0
    assert driven.all_declared() == []


def test_while_nothing_is_wanted_the_log_is_looked_at_once_in_an_archive_interval() -> None:
    driven = Cost()
    driven.append(0)
    driven.settle()
    driven.append(0)
    match driven.core.pacing.next_step(driven.now_s):
        case Wait(delay_s):
            assert delay_s is not None
            assert delay_s > LIMITS.commit.archive_interval_s / 2
        case step:
            raise AssertionError(step)


def test_a_log_that_grows_inline_is_told_of_once_and_then_after_minutes() -> None:
    driven = Cost()
    told: list[OffsetRange] = []
    for _ in range(13):
        driven.append(0)
        driven.settle()
        driven.now_s += 100.0
        told += driven.declared()
    assert 1 <= len(told) <= 4
    assert joined_ranges([*told, *driven.all_declared()]) == [(0, 13)]


def test_a_pause_between_linked_stretches_is_one_range() -> None:
    driven = Cost()
    driven.pay()
    driven.append(0, 2)
    driven.settle()
    driven.now_s += 10.0
    for _ in range(3):
        driven.append(0)
        driven.settle()
    assert driven.declared() == []
    driven.pay()
    driven.append(0, 2)
    driven.settle()
    driven.now_s += 20.0
    driven.pay()
    driven.append(0)
    driven.settle()
    assert [batch for batch, _ in driven.told] == [0, 1, 5, 6, 7]
    assert driven.declared() == [(2, 5)]


def test_what_all_followers_have_already_is_left_out_when_links_begin_to_pay() -> None:
    driven = Cost()
    driven.append(0, 6)
    driven.fetched(4)
    driven.pay()
    driven.settle()
    assert [offset for offset, _ in driven.told] == [4, 5]
    assert driven.all_declared() == [(0, 4)]


def test_what_one_follower_has_not_fetched_yet_is_uploaded_for_it() -> None:
    driven = Cost()
    driven.append(0, 6)
    driven.core.pacing.fetched(2, partition(0), 6, BATCH_BYTES, driven.now_s)
    driven.pay()
    driven.settle()
    assert [offset for offset, _ in driven.told] == [0, 1, 2, 3, 4, 5]


def test_what_was_queued_for_links_is_let_go_when_they_do_not_pay_any_more_and_who_waits_is_told() -> None:
    driven = Cost()
    driven.pay()
    driven.append(0, 2)
    driven.read()
    assert len(driven.core.queue)
    driven.now_s += 1.0
    driven.actions += driven.core.unwanted.drop_queued(driven.now_s)
    assert driven.taken(TellLeftOut)
    assert not len(driven.core.queue)
    assert driven.core.queue.size_bytes == 0
    assert driven.uploaded(0) == 2
    assert driven.all_declared() == [(0, 2)]
    assert not driven.taken(TellStored)


def test_a_hurried_log_is_stored_whether_or_not_links_pay() -> None:
    driven = Cost()
    driven.append(0, 2)
    driven.core.pacing.hurry(partition(0), driven.now_s, hurried=True)
    driven.settle()
    assert driven.objects > 0


def test_a_topic_by_always_is_uploaded_beside_one_that_goes_inline() -> None:
    driven = Driven()
    driven.assign(0, policy=LinkPolicy.ALWAYS, is_kept=False)
    driven.settle()
    driven.append(0, 2)
    assert isinstance(driven.core.pacing.next_step(driven.now_s), UploadNow)
    driven.settle()
    assert driven.objects > 0


def test_a_look_at_a_log_that_has_nothing_new_does_not_end_what_grows() -> None:
    driven = Cost()
    for _ in range(2):
        driven.append(0)
        driven.settle()
        driven.now_s += 90.0
        driven.settle()
    assert driven.declared() == []


def test_a_released_log_tells_what_it_left_out_in_the_epoch_of_its_batches() -> None:
    driven = Cost()
    driven.append(0, 5)
    driven.settle()
    epoch = driven.core.led[partition(0)].left_out.leader_epoch
    assert driven.declared() == []
    driven.assign()
    (told,) = driven.taken(DeclareNotWanted)
    assert epoch >= 0
    assert isinstance(told, DeclareNotWanted)
    assert (told.ranges, told.leader_epoch) == (((0, 5),), epoch)


def test_a_log_that_is_led_tells_what_it_left_out_in_the_newest_epoch_on_disk() -> None:
    driven = Cost()
    driven.append(0, 5)
    driven.settle()
    (told,) = driven.core.unwanted.declare_all(driven.now_s)
    assert isinstance(told, DeclareNotWanted)
    assert (told.ranges, told.leader_epoch) == (((0, 5),), -1)


@given(st.lists(st.tuples(st.integers(1, 5), st.booleans(), st.integers(0, 700)), max_size=30))
def test_all_that_is_left_out_is_told_of_once_and_nothing_else(steps: list[tuple[int, bool, int]]) -> None:
    left_out, told, now_s, offset = LeftOut(), list[OffsetRange](), 0.0, 0
    expected = []
    for count, is_kept, passed_s in steps:
        now_s += passed_s
        if is_kept:
            left_out.stop_growing()
        else:
            left_out.grow(offset, offset + count, 0)
            expected.append((offset, offset + count))
        offset += count
        if left_out.is_due(now_s):
            told += left_out.take(now_s)
    told += left_out.take(now_s)
    assert joined_ranges(told) == joined_ranges(expected)
    assert sum(end - begin for begin, end in told) == sum(end - begin for begin, end in expected)
