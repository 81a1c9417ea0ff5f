from retention_job.sources.kafka import Offsets, offsets_by_topic


def test_a_log_does_not_end_before_it_begins_though_both_were_asked_at_once() -> None:
    earliest = {("orders", 0): 120, ("orders", 1): 0}
    latest = {("orders", 0): 100, ("orders", 1): 7}
    assert offsets_by_topic(earliest, latest, {"orders": [0, 1]}) == {"orders": Offsets({0: 120, 1: 0}, {0: 120, 1: 7})}


def test_what_went_while_it_was_asked_for_has_no_offsets() -> None:
    assert offsets_by_topic({("a", 0): 1}, {("a", 0): 2}, {"a": [0, 1], "b": [0]}) == {
        "a": Offsets({0: 1}, {0: 2}),
        "b": Offsets({}, {}),
    }
