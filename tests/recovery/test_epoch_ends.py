"""What declarations say of objects that they do not name."""

from hypothesis import given
from hypothesis import strategies as st

from metadata_topic.records import RemoteWalLogSegmentMetadataUpdate
from plugin.segment_metadata import UNKNOWN_POSITION, CombinedSegmentId, RemoteLogSegmentMetadataEntry
from recovery.epoch_ends import EpochEnds
from recovery.log_plan import EpochStart
from tests.recovery.stored_logs import ORDERS

DECLARED_MS = 1000
BEFORE_MS, AFTER_MS = 999, 1001


def _declared(
    by_epoch: int, leader_epoch: int, dead_from: int, declared_ms: int = DECLARED_MS, sequence: int = 1
) -> RemoteWalLogSegmentMetadataUpdate:
    entry = RemoteLogSegmentMetadataEntry(
        ORDERS, leader_epoch, dead_from, dead_from + 9, UNKNOWN_POSITION, UNKNOWN_POSITION, 0
    )
    return RemoteWalLogSegmentMetadataUpdate(CombinedSegmentId(1, 1, sequence), (entry,), 2, by_epoch, declared_ms)


def _ends(*declared: RemoteWalLogSegmentMetadataUpdate) -> EpochEnds:
    ends = EpochEnds()
    for one in declared:
        ends.add(one)
    return ends


def test_an_epoch_ends_in_all_objects_where_it_was_declared_to_end_in_one() -> None:
    ends = _ends(_declared(2, 0, 1750, sequence=2), _declared(2, 0, 1000, sequence=1))

    assert ends.end_of(ORDERS, 0, BEFORE_MS) == 1000
    assert ends.end_of(ORDERS, 1, BEFORE_MS) is None, "of another epoch nobody said anything"


def test_what_was_written_after_the_declaration_is_not_meant_by_it() -> None:
    assert _ends(_declared(1, 0, 5)).end_of(ORDERS, 0, AFTER_MS) is None


def test_a_leader_that_says_it_again_says_it_of_what_was_written_until_then() -> None:
    ends = _ends(_declared(1, 0, 5), _declared(1, 0, 8, AFTER_MS, sequence=2))

    assert ends.end_of(ORDERS, 0, AFTER_MS) == 5, "its own log ends the older epoch at 5 as long as it leads"


def test_a_second_recovery_to_an_earlier_point_ends_the_epoch_earlier() -> None:
    assert _ends(_declared(2, 0, 1000), _declared(4, 0, 300, AFTER_MS)).end_of(ORDERS, 0, BEFORE_MS) == 300


def test_nothing_follows_from_a_leader_whose_own_records_were_declared_dead() -> None:
    # An unclean election: epoch 2's leader had what epoch 1's leader had not, and nothing of epoch 1.
    ends = _ends(_declared(1, 0, 5), _declared(2, 1, 5, AFTER_MS))

    assert ends.end_of(ORDERS, 0, BEFORE_MS) is None


def test_a_leader_that_was_itself_cut_off_later_on_has_said_the_truth() -> None:
    assert _ends(_declared(1, 0, 5), _declared(2, 1, 8, AFTER_MS)).end_of(ORDERS, 0, BEFORE_MS) == 5


def test_what_only_a_newer_leader_could_know_is_refused() -> None:
    assert _ends(_declared(3, 3, 5)).end_of(ORDERS, 3, BEFORE_MS) is None


def test_a_leader_that_ends_the_very_epoch_before_its_own_begins_there() -> None:
    ends = _ends(_declared(3, 2, 8, sequence=2), _declared(3, 2, 5), _declared(2, 1, 2))

    assert ends.starts() == {ORDERS: [EpochStart(3, 5)]}


def test_where_an_epoch_begins_is_not_known_when_others_lie_between() -> None:
    assert not _ends(_declared(2, 0, 5)).starts()


def test_where_an_epoch_begins_is_not_known_when_a_still_older_one_ends_before() -> None:
    # Restored to offset 3: of epoch 1, which began at 5, nothing is left.
    assert not _ends(_declared(2, 1, 5), _declared(2, 0, 3)).starts()


def test_an_epoch_without_records_is_gone_when_a_later_leader_cut_the_log() -> None:
    assert not _ends(_declared(1, 0, 5), _declared(4, 0, 3, AFTER_MS)).starts()


DECLARATIONS = st.builds(
    _declared, st.integers(0, 4), st.integers(0, 4), st.integers(0, 20), st.integers(0, 5), st.integers(0, 3)
)


@given(st.lists(DECLARATIONS, max_size=8), st.randoms(use_true_random=False), st.integers(0, 4), st.integers(0, 5))
def test_the_order_and_the_number_of_tellings_do_not_matter(
    declared: list[RemoteWalLogSegmentMetadataUpdate], random: object, leader_epoch: int, written_ms: int
) -> None:
    shuffled = declared * 2
    random.shuffle(shuffled)  # type: ignore[attr-defined]

    told, again = _ends(*declared), _ends(*shuffled)

    assert again.end_of(ORDERS, leader_epoch, written_ms) == told.end_of(ORDERS, leader_epoch, written_ms)
    assert again.starts() == told.starts()
