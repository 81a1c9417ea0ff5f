"""Agents by which consumers read count as readers for a while, and are forgotten."""

from replication.leader.zones import RemoteReaders, Zones
from tests.replication.fetch_frames import partition


def test_a_reader_counts_until_it_has_not_read_for_long() -> None:
    now_s = 0.0
    readers = RemoteReaders(lambda: now_s, keep_s=10.0)
    readers.read(partition(0), 2)
    now_s = 6.0
    readers.read(partition(0), 3)
    assert readers.of(partition(0)) == {2, 3}
    assert readers.of(partition(1)) == frozenset()
    now_s = 10.0
    assert readers.of(partition(0)) == {3}
    readers.read(partition(1), 2)  # what has expired goes, and what has not stays
    assert readers.of(partition(0)) == {3}
    now_s = 16.0
    assert readers.of(partition(0)) == frozenset()


def test_a_reader_that_did_not_count_is_news() -> None:
    now_s, told = 0.0, list[float]()
    readers = RemoteReaders(lambda: now_s, keep_s=10.0)
    readers.on_new = lambda: told.append(now_s)
    for at_s in (1.0, 2.0, 11.0, 22.0):
        now_s = at_s
        readers.read(partition(0), 2)
    readers.read(partition(0), 3)
    assert told == [1.0, 22.0, 22.0]


def test_a_reader_in_the_leaders_own_zone_crosses_no_border() -> None:
    readers = RemoteReaders(lambda: 0.0)
    zones = Zones("az1", readers)
    zones.learned({2: "az1", 3: "az3"})
    readers.read(partition(0), 2)
    readers.read(partition(0), 3)
    assert zones.elsewhere(partition(0), frozenset({2})) == {3}
