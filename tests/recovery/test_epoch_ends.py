"""What declarations say of objects that they do not name."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from metadata_topic.records.records import PublishedSegment, RemoteWalLogSegmentMetadataUpdate
from metadata_topic.records.states import DELETED, DELETING, FINISHED
from metadata_topic.store.snapshots.snapshot import read_image, snapshot_chunks
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.format.entry_columns import encode
from plugin.segment_metadata import UNKNOWN_POSITION, CombinedSegmentId, RemoteLogSegmentMetadataEntry
from recovery.logs.log_plan import EpochStart
from recovery.metadata.epoch_ends import EpochEnds
from tests.recovery.stored_logs import ORDERS, run


def _declared(by_epoch: int, leader_epoch: int, dead_from: int, sequence: int = 1) -> RemoteWalLogSegmentMetadataUpdate:
    entry = RemoteLogSegmentMetadataEntry(
        ORDERS, leader_epoch, dead_from, dead_from + 9, UNKNOWN_POSITION, UNKNOWN_POSITION, 0
    )
    return RemoteWalLogSegmentMetadataUpdate(CombinedSegmentId(1, 1, sequence), (entry,), 2, by_epoch, 0)


def _ends(*declared: RemoteWalLogSegmentMetadataUpdate, is_known: bool = True) -> EpochEnds:
    """Each names a segment of its own, with records of the epoch that lie both before the end and behind it."""
    told = []
    for one in declared:
        [entry] = one.entries
        names = CombinedSegmentId(1, 1 + 100 * one.leader_epoch + entry.leader_epoch, entry.first_offset)
        named = [replace(entry, first_offset=max(entry.first_offset - 1, 0))]
        told.append((replace(one, combined_segment_id=names), named if is_known else []))
    return _told(*told)


def _told(
    *declared: tuple[RemoteWalLogSegmentMetadataUpdate, Sequence[RemoteLogSegmentMetadataEntry]],
    gone: Iterable[RemoteLogSegmentMetadataEntry] = (),
) -> EpochEnds:
    """What the metadata store keeps of the declarations; the named segments, and other uploads, are gone again."""
    store = RemoteWalMetadataStore()
    for one, entries in declared:
        if entries:
            store.apply(_segment(one.combined_segment_id, entries))
        store.apply(one)
    for number, entry in enumerate(gone):
        segment_id = CombinedSegmentId(9, 1, number)
        store.apply(_segment(segment_id, [entry]))
        store.apply(PublishedSegment(segment_id, DELETED if number % 2 else DELETING, 1, 1, b"", b""))
    image = read_image(b"".join(snapshot_chunks(store.image())))
    return EpochEnds(image.ends, image.released)


def _segment(segment_id: CombinedSegmentId, entries: Sequence[RemoteLogSegmentMetadataEntry]) -> PublishedSegment:
    return PublishedSegment(segment_id, FINISHED, 0, 1, b"", encode(entries))


def test_an_epoch_ends_in_all_objects_where_it_was_declared_to_end_in_one() -> None:
    ends = _ends(_declared(2, 0, 1750, sequence=2), _declared(2, 0, 1000, sequence=1))

    assert ends.find_valid(ORDERS).end_of(0) == 1000
    assert ends.find_valid(ORDERS).end_of(1) is None, "of another epoch nobody said anything"


def test_a_second_recovery_to_an_earlier_point_ends_the_epoch_earlier() -> None:
    assert _ends(_declared(2, 0, 1000), _declared(4, 0, 300)).find_valid(ORDERS).end_of(0) == 300


def test_nothing_follows_from_a_leader_whose_own_records_were_declared_dead() -> None:
    # An unclean election: epoch 2's leader had what epoch 1's leader had not, and nothing of epoch 1.
    ends = _ends(_declared(1, 0, 5), _declared(2, 1, 5))

    assert ends.find_valid(ORDERS).end_of(0) is None


def test_a_leader_that_was_itself_cut_off_later_on_has_said_the_truth() -> None:
    assert _ends(_declared(1, 0, 5), _declared(2, 1, 8)).find_valid(ORDERS).end_of(0) == 5


def test_what_only_a_newer_leader_could_know_is_refused() -> None:
    assert _ends(_declared(3, 3, 5)).find_valid(ORDERS).end_of(3) is None


def test_a_leader_that_ends_the_very_epoch_before_its_own_begins_there() -> None:
    ends = _ends(_declared(3, 2, 8, sequence=2), _declared(3, 2, 5), _declared(2, 1, 2))

    assert ends.starts() == {ORDERS: [EpochStart(3, 5)]}


def test_where_an_epoch_begins_is_not_known_when_others_lie_between() -> None:
    assert not _ends(_declared(2, 0, 5)).starts()


def test_where_an_epoch_begins_is_not_known_when_a_still_older_one_ends_before() -> None:
    # Restored to offset 3: of epoch 1, which began at 5, nothing is left.
    ends = _told(*((one, one.entries) for one in (_declared(2, 1, 5), _declared(2, 0, 3, sequence=2))))

    assert not ends.starts()


def test_where_an_epoch_begins_is_not_known_when_the_end_of_the_one_before_is_where_a_segment_begins() -> None:
    # What lies before it is in the archive alone: the epoch may end there already.
    declared = _declared(1, 0, 10)
    ends = _told((declared, declared.entries))

    assert not ends.starts()
    assert ends.find_valid(ORDERS).end_of(0) == 10


def test_a_segment_that_holds_the_last_record_before_the_end_tells_it_exactly() -> None:
    declared = _declared(1, 0, 10)
    [behind] = declared.entries

    ends = _told((declared, [replace(behind, first_offset=0, last_offset=9), behind]))

    assert ends.starts() == {ORDERS: [EpochStart(1, 10)]}


def test_nothing_is_known_of_where_an_epoch_begins_when_the_named_segment_is_not_known() -> None:
    assert not _ends(_declared(1, 0, 5), is_known=False).starts()


def test_a_declaration_does_not_count_where_records_live_beyond_it_whatever_clocks_say() -> None:
    declared = _declared(1, 0, 5)
    [entry] = declared.entries
    below = [replace(entry, first_offset=0, last_offset=4)] * 2

    ends = _told((declared, ()), gone=below)
    assert ends.find_valid(ORDERS, [run(0, 0, 4)]).end_of(0) == 5
    for written_ms in (0, 10**15):
        assert ends.find_valid(ORDERS, [run(0, 5, 9, written_ms=written_ms)]).end_of(0) is None
    assert ends.find_valid(ORDERS, [run(0, 5, 9)._replace(living_last_offset=4)]).end_of(0) == 5
    for others in ([], below[:1], below):
        assert _told((declared, ()), gone=[*others, entry]).find_valid(ORDERS).end_of(0) is None


def test_what_was_deleted_as_dead_does_not_contradict_the_leader_that_said_so() -> None:
    declared = _declared(1, 0, 5)
    [entry] = declared.entries
    store = RemoteWalMetadataStore()
    store.apply(_segment(declared.combined_segment_id, [replace(entry, first_offset=0)]))
    store.apply(declared)
    for state in (DELETING, DELETED):
        store.apply(PublishedSegment(declared.combined_segment_id, state, 1, 1, b"", b""))
    assert EpochEnds(store.image().ends, store.image().released).find_valid(ORDERS).end_of(0) == 5


def test_an_epoch_is_not_cut_off_where_a_newer_leader_has_written_on_behind_it() -> None:
    ends = _ends(_declared(1, 0, 5))
    archived, went_on = run(0, 0, 9), run(2, 10, 14)

    assert ends.find_valid(ORDERS, [went_on], [archived]).cut(archived) == archived


def test_an_epoch_is_cut_off_where_what_a_newer_leader_wrote_does_not_follow_its_records() -> None:
    ends = _ends(_declared(1, 0, 5))
    archived, elsewhere = run(0, 0, 9), run(2, 12, 14)

    assert ends.find_valid(ORDERS, [elsewhere], [archived]).cut(archived).living_last_offset == 4


def test_an_epoch_is_cut_off_where_the_declarer_wrote_on_though_compaction_took_its_first_records() -> None:
    ends = _ends(_declared(1, 0, 5))
    archived = run(0, 0, 7)
    wrote_on = [run(1, 8, 19), run(2, 20, 24)]

    assert ends.find_valid(ORDERS, wrote_on, [archived]).cut(archived).living_last_offset == 4


def test_a_newer_leaders_records_that_are_dead_themselves_bring_nothing_back() -> None:
    # Epoch 1's leader cut the log at 5; epoch 2's had the whole log again, and epoch 3's only what epoch 1's had.
    ends = _ends(_declared(1, 0, 5), _declared(3, 2, 10, sequence=2))
    archived = [run(0, 0, 9), run(2, 10, 14)]

    standing = ends.find_valid(ORDERS, [], archived)

    assert [standing.cut(one).living_last_offset for one in archived] == [4, 9]


def test_an_epoch_without_records_is_gone_when_a_later_leader_cut_the_log() -> None:
    assert not _ends(_declared(1, 0, 5), _declared(4, 0, 3)).starts()


DECLARATIONS = st.builds(_declared, st.integers(0, 4), st.integers(0, 4), st.integers(0, 20), st.integers(0, 3))


@given(st.lists(DECLARATIONS, max_size=8), st.randoms(use_true_random=False), st.integers(0, 4))
def test_the_order_and_the_number_of_tellings_do_not_matter(
    declared: list[RemoteWalLogSegmentMetadataUpdate], rng: Random, leader_epoch: int
) -> None:
    shuffled = declared * 2
    rng.shuffle(shuffled)

    told, again = _ends(*declared), _ends(*shuffled)

    assert again.find_valid(ORDERS).end_of(leader_epoch) == told.find_valid(ORDERS).end_of(leader_epoch)
    assert again.starts() == told.starts()
