"""What Kafka's clients say again and again comes once a minute, with how often it was said."""

import logging

from cli.agent_start import RepeatedLines

LIBRDKAFKA = "metadata_topic.librdkafka"


def refused(client: int, at: str = "127.0.0.1:9092", after_ms: int = 0) -> str:
    who = f"[remote-wal-agent-1-{client}#producer-{client}] [thrd:{at}/bootstrap]"
    how = f"Connection refused (after {after_ms}ms in state CONNECT, {client} identical error(s) suppressed)"
    return f"FAIL {who}: {at}/bootstrap: Connect to ipv4#{at} failed: {how}"


class Lines:
    def __init__(self) -> None:
        self._filter = RepeatedLines(LIBRDKAFKA)

    def said(self, message: str, at_s: float, logger: str = LIBRDKAFKA) -> str | None:
        record = logging.LogRecord(logger, logging.ERROR, "", 1, message, None, None)
        record.created = at_s
        return record.getMessage() if self._filter.filter(record) else None


def test_one_broker_that_is_away_is_told_once_a_minute_by_all_clients_together() -> None:
    lines = Lines()
    shown = [lines.said(refused(client, after_ms=client), 1000 + client) for client in range(60)]
    assert [one is not None for one in shown] == [True] + 59 * [False]
    again = lines.said(refused(3), 1060)
    assert again is not None
    assert again.endswith("(59 lines like it were left out before)")
    assert lines.said(refused(3), 1120) == refused(3), "none was left out since"


def test_other_brokers_other_errors_and_our_own_lines_come_all_the_same() -> None:
    lines = Lines()
    assert lines.said(refused(1), 1000)
    assert lines.said(refused(1, at="127.0.0.1:9093"), 1000)
    assert lines.said("FAIL [rdkafka#producer-1] [thrd:x]: SASL authentication error", 1000)
    assert [lines.said("away", 1000, "agent.leadership") for _ in range(2)] == ["away", "away"]


def test_a_clock_that_is_set_back_silences_nothing_for_long() -> None:
    lines = Lines()
    assert lines.said(refused(1), 10_000)
    assert lines.said(refused(1), 1_000)
