"""Reads from Prometheus what topics were sent and gave out over weeks, for `remote-wal estimate`.

Brokers count the bytes of each topic (BytesInPerSec and BytesOutPerSec, the latter without replication), and an
exporter hands the counters to Prometheus. The time is cut into windows that follow each other, one point for each.
A topic's rate is the mean from its first point on; a window in which only other topics have a point counts as 0.
"""

import json
import math
import re
import urllib.error
import urllib.parse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from retention_job.cost.estimate import Averages, Sample

BYTES_IN: Final = (
    "kafka_server_brokertopicmetrics_bytesin_total",
    "kafka_server_brokertopicmetrics_bytesinpersec_count",
    'kafka_server_BrokerTopicMetrics_Count{name="BytesInPerSec"}',
)
"""The JMX exporter's example for Kafka and Strimzi; rules that keep Kafka's name; the JMX exporter without rules."""
BYTES_OUT: Final = tuple(one.replace("bytesin", "bytesout").replace("BytesIn", "BytesOut") for one in BYTES_IN)
WEEK_S: Final = 7 * 86_400.0
_POINTS: Final = 168
"""Points asked for, one for each four hours of four weeks: few enough for thousands of topics in one answer."""
_TIMEOUT_S: Final = 60.0
_FORM: Final = {"Content-Type": "application/x-www-form-urlencoded"}
_SERIES = dict[str, dict[float, float]]
"""By topic: bytes a second by time."""


class PrometheusError(Exception):
    """Prometheus did not respond, refused, or has no usable series. Its text is one line."""


@dataclass(frozen=True, slots=True)
class TopicRates:
    """Bytes per second that topics received and sent, by Prometheus."""

    averages: Averages
    address: str
    queries: tuple[str, ...]
    """What it was asked for: produced bytes and, where it has them, those that consumers read."""
    begin_s: float
    end_s: float
    """The time that has points, in seconds since 1970."""

    def document(self, sample: Sample) -> dict[str, Any]:
        """Return the rates for JSON, with those topics of the sample whose rates had to be sampled."""
        begin, end = (
            datetime.fromtimestamp(at, UTC).isoformat(timespec="minutes") for at in (self.begin_s, self.end_s)
        )
        topics = {topic for topic, _ in sample.logs}
        return {
            "address": self.address,
            "queries": list(self.queries),
            "begin": begin,
            "end": end,
            "days": round((self.end_s - self.begin_s) / 86_400, 2),
            "topics": len(topics & self.averages.produced.keys()),
            "sampled_topics": sorted(topics - self.averages.produced.keys()),
        }


def read_rates(address: str, weeks: float, bytes_in: str, bytes_out: str, now_s: float) -> TopicRates:
    """Read the rates of all topics. Raises PrometheusError.

    `address` must be valid by `is_address`. `bytes_in` and `bytes_out` replace the usual metric names: each is a
    counter, with or without labels, or a query for bytes per second by `topic`.
    """
    source = _Source(address, weeks * WEEK_S, now_s)
    asked_in, produced = source.first_found((bytes_in,) if bytes_in else BYTES_IN)
    if not produced:
        raise PrometheusError(
            f"Prometheus at {address} has no series with a topic for {asked_in}; name the counter or a query "
            "for bytes a second by topic"
        )
    asked_out, read = source.first_found((bytes_out,) if bytes_out else BYTES_OUT)
    if bytes_out and not read:
        raise PrometheusError(f"Prometheus at {address} has no series with a topic for {asked_out}")
    times = {at for points in produced.values() for at in points}
    averages = Averages(_means(produced), _means(read))
    queries = (asked_in, asked_out) if read else (asked_in,)
    return TopicRates(averages, address, queries, min(times) - source.step_s, max(times))


def _means(series: _SERIES) -> Mapping[str, float]:
    times = sorted({at for points in series.values() for at in points})
    return {
        topic: sum(points.values()) / sum(1 for at in times if at >= min(points)) for topic, points in series.items()
    }


def is_address(text: str) -> bool:
    """Return whether this is an HTTP URL without a login in it, which the list of processes would show."""
    return re.fullmatch(r"https?://[^\s@?#]+", text) is not None


class _Source:
    """One Prometheus and one span of time."""

    def __init__(self, address: str, seconds: float, now_s: float) -> None:
        self._address = address.rstrip("/")
        self.step_s = max(60, math.ceil(seconds / _POINTS))
        self._begin_s, self._end_s = now_s - seconds + self.step_s, now_s

    def first_found(self, names: Iterable[str]) -> tuple[str, _SERIES]:
        """Return the first of the queries that has topics; without one, all of them and nothing."""
        asked = []
        for name in names:
            query = name if "(" in name else f"sum by (topic) (rate({name}[{self.step_s}s]))"
            asked.append(query)
            if found := self._by_topic(query):
                return query, found
        return " or ".join(asked), {}

    def _by_topic(self, query: str) -> _SERIES:
        """Return the series that name a topic: brokers count all topics once more, without a name."""
        told = {"query": query, "start": self._begin_s, "end": self._end_s, "step": self.step_s}
        data = self._answer(f"{self._address}/api/v1/query_range", urllib.parse.urlencode(told).encode())
        try:
            if data["resultType"] != "matrix":
                raise PrometheusError(f"{query} gives a {data['resultType']}, not a series for each topic")
            series = [(one["metric"].get("topic"), _points(one["values"])) for one in data["result"]]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise PrometheusError(f"{self._address} answers something else than Prometheus does") from error
        found = [(topic, points) for topic, points in series if topic and points]
        if len(found) > len({topic for topic, _ in found}):
            raise PrometheusError(f"{query} gives several series for a topic: sum them by (topic)")
        return dict(found)

    def _answer(self, url: str, form: bytes) -> Any:
        """Return the `data` of an answer. A form, as a query may be longer than a URL."""
        from agent.http.http_asking import ask_directly

        try:
            body = ask_directly(url, _TIMEOUT_S, _FORM, form)
        except urllib.error.HTTPError as error:
            with error:
                told = _json(error.read())
            why = told.get("error") if isinstance(told, dict) else None
            raise PrometheusError(f"{self._address} answers {error.code}: {why or error.reason}") from error
        except OSError as error:
            raise PrometheusError(f"{self._address} gives no answer: {str(error) or type(error).__name__}") from error
        told = _json(body)
        if not isinstance(told, dict) or told.get("status") != "success":
            raise PrometheusError(f"{self._address} answers something else than Prometheus does")
        return told.get("data")


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None


def _points(values: Iterable[Any]) -> dict[float, float]:
    return {float(at): rate for at, text in values if math.isfinite(rate := float(text))}
