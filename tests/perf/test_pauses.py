"""How long nothing happened, by when something did."""

from perf.restart.pauses import longest_pause


def test_the_longest_time_between_two_events_and_where_it_began() -> None:
    assert longest_pause([0.0, 1.0, 1.5, 4.0, 4.2], 1.0, 4.2) == (2.5, 1.5)


def test_a_pause_that_began_before_counts_whole_and_one_that_goes_on_counts_up_to_the_end() -> None:
    assert longest_pause([0.5, 3.0], 2.0, 3.5) == (2.5, 0.5)
    assert longest_pause([0.5, 2.1], 2.0, 9.0) == (6.9, 2.1)
    assert longest_pause([], 2.0, 3.0) == (1.0, 2.0)
