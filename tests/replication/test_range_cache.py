"""What is there, being read and waited for: whatever the order in which reads end, and whoever forgets what."""

from hypothesis import given
from hypothesis import strategies as st

from plugin.segment_metadata import CombinedSegmentId
from replication.follower.range_cache import CachedRange, RangeCache, RangeWait

CONTENT = bytes(range(100))
FIRST, SECOND, THIRD = (CombinedSegmentId(1, 1, number) for number in range(3))

ranges = st.tuples(st.integers(0, 99), st.integers(1, 60)).map(lambda at: (at[0], min(at[0] + at[1], 100)))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("read"), ranges),
        st.tuples(st.just("wait"), ranges),
        st.tuples(st.sampled_from(["arrive", "fail"]), st.integers(0, 20)),
        st.just(("discard", 0)),
    ),
    max_size=40,
)


def read(cache: RangeCache, object_id: CombinedSegmentId, start: int, end: int) -> CachedRange:
    made = cache.reading(object_id, start, end)
    cache.arrived(made, CONTENT[start:end])
    return made


def is_there(cache: RangeCache, object_id: CombinedSegmentId, start: int, end: int) -> bool:
    return not cache.find_missing(object_id, start, end)


@given(steps)
def test_who_waits_is_told_once_with_the_objects_bytes_or_that_a_read_failed(script: list[tuple[str, object]]) -> None:
    cache = RangeCache(150)
    under_way: list[CachedRange] = []
    waiting: dict[RangeWait, set[CachedRange]] = {}
    for what, value in script:
        if what == "read":
            assert isinstance(value, tuple)
            under_way += [cache.reading(FIRST, *part) for part in cache.find_missing(FIRST, *value)]
            assert is_there(cache, FIRST, *value)
        elif what == "wait":
            assert isinstance(value, tuple)
            start, end = value
            found = cache.covering(FIRST, start, end)
            assert bool(found) == is_there(cache, FIRST, start, end)
            if found:
                wait = RangeWait(start, end, found)
                missing = {each for each in found if each in under_way}
                assert wait.is_over == (not missing)
                if missing:
                    waiting[wait] = missing
                else:
                    assert bytes(wait.data()) == CONTENT[start:end]
        elif what == "discard":
            cache.discard(FIRST)
            assert cache.size_bytes == 0
        elif under_way:
            assert isinstance(value, int)
            ended = under_way.pop(value % len(under_way))
            if what == "arrive":
                for missing in waiting.values():
                    missing.discard(ended)
                over = cache.arrived(ended, CONTENT[ended.start : ended.end])
                assert {wait for wait in waiting if not waiting[wait]} == set(over)
                assert all(bytes(wait.data()) == CONTENT[wait.start : wait.end] for wait in over)
            else:
                over = cache.failed(ended)
                assert {wait for wait in waiting if ended in waiting[wait]} <= set(over)
            waiting = {wait: missing for wait, missing in waiting.items() if wait not in over}
        assert cache.size_bytes <= 150


def test_being_found_makes_no_object_younger() -> None:
    cache = RangeCache(60)
    read(cache, FIRST, 0, 30)
    read(cache, SECOND, 0, 30)
    assert cache.covering(FIRST, 0, 30)
    read(cache, THIRD, 0, 30)
    assert not is_there(cache, FIRST, 0, 30)
    assert is_there(cache, SECOND, 0, 30)


def test_what_is_being_read_is_not_evicted_and_neither_is_what_was_read_last_whatever_its_size() -> None:
    cache = RangeCache(50)
    under_way = cache.reading(FIRST, 0, 40)
    read(cache, SECOND, 0, 100)
    assert is_there(cache, FIRST, 0, 40)
    assert is_there(cache, SECOND, 0, 100)
    cache.arrived(under_way, CONTENT[:40])
    assert cache.size_bytes == 40
    assert not is_there(cache, SECOND, 0, 100)


def test_what_is_waited_for_comes_though_the_object_was_discarded_and_is_not_kept_then() -> None:
    cache = RangeCache(50)
    under_way = cache.reading(FIRST, 0, 40)
    wait = RangeWait(10, 20, cache.covering(FIRST, 10, 20))
    cache.discard(FIRST)
    assert cache.arrived(under_way, CONTENT[:40]) == [wait]
    assert bytes(wait.data()) == CONTENT[10:20]
    assert cache.size_bytes == 0
    assert cache.find_missing(FIRST, 0, 40) == [(0, 40)]
