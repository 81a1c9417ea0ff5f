"""What is told while uploads lag, and that it ends with the lag."""

import pytest

from agent.metrics.alarms import Alarms, upload_lag
from rlm.write_path.core.led_partition import PartitionStatus


def status(age_ms: int, partition: int = 0) -> PartitionStatus:
    return PartitionStatus("orders", partition, 100, 50, 4096, age_ms)


def test_a_lag_beyond_the_bound_names_the_oldest_record() -> None:
    assert upload_lag([status(0), status(60_000)], 60_000) is None
    told = upload_lag([status(0, 0), status(61_000, 1), status(95_000, 2)], 60_000)
    assert told is not None
    assert "2 partitions" in told
    assert "orders-2, for 95 s" in told


def test_an_alarm_is_told_once_as_it_comes_and_once_as_it_goes(capsys: pytest.CaptureFixture[str]) -> None:
    wrong: list[str | None] = [None, "late by 61 s", "late by 66 s", None, None]
    seen = iter(wrong)
    alarms = Alarms({"lag": lambda: next(seen)})
    reasons = []
    for _ in wrong:
        alarms.look()
        reasons.append(alarms.reasons)
    assert reasons == [[], ["late by 61 s"], ["late by 66 s"], [], []]
    told = capsys.readouterr().out
    assert (told.count("alarm_raised"), told.count("alarm_ended")) == (1, 1)


def test_a_watch_that_fails_is_told_and_does_not_blind_the_others() -> None:
    alarms = Alarms({"broken": lambda: str(1 // 0), "other": lambda: "wrong"})
    alarms.look()
    assert len(alarms.reasons) == 2
    assert "broken cannot be watched: ZeroDivisionError" in alarms.reasons[0]
