"""What a replica may lack of the acknowledged records, and what it may not."""

from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from tests.soak.changed_topics import KEYS, TopicAccount

RECORDS = 10
RETENTION_MS = 1000
ALL = [(offset, offset) for offset in range(RECORDS)]


def account(**rules: bool | int) -> TopicAccount:
    """Of records 0 to 9 at offsets 0 to 9, each one made at its number's ms."""
    made = TopicAccount("t", **rules)  # type: ignore[arg-type]
    for number in range(RECORDS):
        made.acknowledge(0, number, number, number)
    return made


def findings(
    of: TopicAccount, records: list[tuple[int, int]] = ALL, log_start: int = 0, now_ms: int = RECORDS
) -> list[str]:
    return list(of.findings(0, log_start, records, now_ms))


def test_what_is_all_there_is_well_and_what_was_not_acknowledged_may_be_there() -> None:
    assert findings(account()) == []
    assert findings(account(), [*ALL, (12, 11)]) == []


def test_a_record_that_is_missing_or_at_another_offset_is_told() -> None:
    assert "1 acknowledged records are not there" in findings(account(), ALL[:-1])[0]
    assert "9 (number 9)" in findings(account(), [*ALL[:-1], (10, 9)])[0]
    assert "3 acknowledged records are not there" in findings(account(), log_start=3)[0]


def test_doubled_and_reordered_records_are_told() -> None:
    for records in ([*ALL, (10, 9)], [*ALL, (10, 11), (11, 10)]):
        assert findings(account(), records) == ["records are doubled or out of order"]


def test_what_a_deletion_was_asked_for_may_be_gone_and_what_was_confirmed_stays_gone() -> None:
    log = account()
    below = log.next_deletion()[0]
    assert 0 < below < RECORDS
    assert findings(log) == [], "nobody has confirmed it"
    assert findings(log, ALL[below:], log_start=below) == []
    assert findings(log, ALL[below + 1 :], log_start=below + 1) != []
    assert findings(log, ALL[:below] + ALL[below + 1 :], log_start=0) != []
    log.deleted(0, below)
    assert findings(log) == [f"the log starts at 0, and what is below {below} was deleted"]


@given(st.integers(0, RECORDS), st.integers(0, RECORDS))
def test_below_the_logs_start_only_what_has_expired_may_be_missing(log_start: int, expired: int) -> None:
    found = findings(
        account(retention_ms=RETENTION_MS), ALL[log_start:], log_start=log_start, now_ms=RETENTION_MS + expired - 1
    )
    assert bool(found) == (log_start > expired)


def test_above_the_logs_start_nothing_expires() -> None:
    assert findings(account(retention_ms=RETENTION_MS), ALL[6:], log_start=5, now_ms=10 * RETENTION_MS) != []


def test_of_a_compacted_log_the_newest_value_of_each_key_is_there() -> None:
    log = account(is_compacted=True)
    for number in range(KEYS, KEYS + RECORDS):
        log.acknowledge(0, number, number, number)
    newest = [(number, number) for number in range(KEYS, KEYS + RECORDS)]
    assert findings(log, newest) == []
    assert findings(log, ALL) != []
    assert "1 acknowledged" in findings(log, newest[1:])[0]
    assert findings(log, [*newest[1:], (200, 2 * KEYS)]) == [], "a newer one is there, which was not acknowledged"


def test_what_was_forgotten_is_not_looked_for() -> None:
    log = account()
    assert log.forget(0, 8) == RECORDS - 8
    assert findings(log, ALL[:8]) == []
    assert findings(log, ALL[:7]) != []
    log.forget(0)
    assert findings(log, []) == []
    for number, offset in zip(range(RECORDS, 2 * RECORDS), count(), strict=False):
        log.acknowledge(0, offset, number, number)
    assert findings(log, []) != []
    assert log.acknowledged == RECORDS
