"""`remote-wal estimate --prometheus`: what is asked, what answers come to, and what may be wrong with them."""

import json
import math
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from typer.testing import CliRunner, Result

from agent.http import http_asking
from cli.costs import cluster_samples, prometheus_rates
from cli.costs.prometheus_rates import BYTES_IN, BYTES_OUT, WEEK_S, PrometheusError, TopicRates, read_rates
from cli.main import build_app
from kafka_cluster import preflight
from retention_job.cost.estimate import Sample
from tests.cli.test_estimate import PlayedSampler
from tests.retention_job.cost.test_estimate import RACKS, logs

pytestmark = pytest.mark.real_connections
NOW_S = 1_800_000_000.0
MONTH_S = 30 * 86_400


class PrometheusApi:
    """Answers query_range over HTTP as Prometheus does, with a point for each step."""

    def __init__(self) -> None:
        self.rates: dict[str, dict[str | None, Callable[[float], float | None]]] = {}
        """By counter and topic: bytes a second by time; None where there is no point. None is the sum of all topics."""
        self.asked: list[dict[str, str]] = []
        self.answer: tuple[int, bytes] | None = None
        """What it says in the place of the above."""
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                form = self.rfile.read(int(self.headers["Content-Length"])).decode()
                api.asked.append({name: texts[0] for name, texts in parse_qs(form).items()})
                status, body = api.answer or (200, api.matrix(self.path, api.asked[-1]))
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def matrix(self, path: str, asked: dict[str, str]) -> bytes:
        assert path == "/api/v1/query_range"
        begin, end, step = (float(asked[name]) for name in ("start", "end", "step"))
        times = [begin + step * one for one in range(math.floor((end - begin) / step) + 1)]
        counter = asked["query"].removeprefix("sum by (topic) (rate(").partition("[")[0]
        result = []
        for topic, rate in self.rates.get(counter, {}).items():
            values = [[at, str(value)] for at in times if (value := rate(at)) is not None]
            result.append({"metric": {"topic": topic} if topic else {}, "values": values})
        return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}}).encode()

    def __enter__(self) -> "PrometheusApi":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def api() -> Iterator[PrometheusApi]:
    with PrometheusApi() as made:
        yield made


def always(rate: float) -> Callable[[float], float | None]:
    return lambda _at: rate


def read(api: PrometheusApi, weeks: float = 4, bytes_in: str = "", bytes_out: str = "") -> TopicRates:
    return read_rates(api.url, weeks, bytes_in, bytes_out, NOW_S)


def test_a_rate_is_the_mean_of_windows_that_cover_the_weeks(api: PrometheusApi) -> None:
    half_s = NOW_S - 2 * WEEK_S
    api.rates = {
        BYTES_IN[0]: {"orders": lambda at: 3e6 if at > half_s else 1e6, None: always(9e9)},
        BYTES_OUT[0]: {"orders": always(5e6)},
    }
    found = read(api)
    assert found.averages.produced == {"orders": 2e6}, "what has no topic is the sum of all"
    assert found.averages.read == {"orders": 5e6}
    assert (found.begin_s, found.end_s) == (NOW_S - 4 * WEEK_S, NOW_S)
    asked = api.asked[0]
    assert asked["query"] == f"sum by (topic) (rate({BYTES_IN[0]}[14400s]))"
    assert float(asked["step"]) == 14_400, "windows that follow each other"
    assert float(asked["end"]) - float(asked["start"]) + 14_400 == 4 * WEEK_S


@pytest.mark.parametrize("status", [200, 500])
def test_no_more_of_an_answer_is_read_than_memory_is_for(
    api: PrometheusApi, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setattr(http_asking, "PAGE_MAX_BYTES", 1000)
    api.answer = status, json.dumps({"error": "x" * 2000}).encode()
    with pytest.raises(PrometheusError, match="too large"):
        read(api)


def test_what_is_shorter_than_the_weeks_is_told_and_a_topic_counts_from_its_first_point(api: PrometheusApi) -> None:
    begun_s = NOW_S - WEEK_S

    def idle_at_the_end(at: float) -> float | None:
        return 4e6 if begun_s < at <= NOW_S - WEEK_S / 2 else None

    def new(at: float) -> float | None:
        return 1e6 if at > NOW_S - WEEK_S / 7 else None

    api.rates = {BYTES_IN[0]: {"old": lambda at: 1.0 if at > begun_s else None, "idle": idle_at_the_end, "new": new}}
    found = read(api)
    assert (found.begin_s, found.end_s) == (begun_s, NOW_S)
    assert found.averages.produced == {"old": 1.0, "idle": 2e6, "new": 1e6}
    assert found.averages.read == {}
    assert len(found.queries) == 1


@pytest.mark.parametrize("name", BYTES_IN)
def test_each_usual_name_is_found(api: PrometheusApi, name: str) -> None:
    api.rates = {name: {"orders": always(7.0)}, BYTES_OUT[BYTES_IN.index(name)]: {"orders": always(8.0)}}
    found = read(api)
    assert (found.averages.produced, found.averages.read) == ({"orders": 7.0}, {"orders": 8.0})


def test_a_counter_with_labels_or_a_query_takes_the_place_of_the_usual_names(api: PrometheusApi) -> None:
    own, query = 'bytes_in{cluster="a"}', "avg(topic_rate) by (topic)"
    api.rates = {own: {"orders": always(1.0)}, query: {"orders": always(2.0)}}
    found = read(api, bytes_in=own, bytes_out=query)
    assert (found.averages.produced, found.averages.read) == ({"orders": 1.0}, {"orders": 2.0})
    assert [one["query"] for one in api.asked] == [f"sum by (topic) (rate({own}[14400s]))", query]


def answered(told: object, status: int = 200) -> tuple[int, bytes]:
    return status, json.dumps(told).encode()


def success(**data: object) -> tuple[int, bytes]:
    return answered({"status": "success", "data": data})


SERIES = {"metric": {"topic": "orders"}, "values": [[1.0, "2"]]}


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ((200, b"<html>Grafana</html>"), "answers something else than Prometheus does"),
        ((200, b"[]"), "answers something else than Prometheus does"),
        (answered({"status": "success"}), "answers something else than Prometheus does"),
        (success(resultType="matrix", result=[{"metric": {"topic": "t"}, "values": [1]}]), "something else than"),
        (success(resultType="vector", result=[]), "gives a vector, not a series for each topic"),
        (success(resultType="matrix", result=[SERIES, SERIES]), "gives several series for a topic"),
        (success(resultType="matrix", result=[SERIES | {"metric": {}}]), "has no series with a topic for"),
        (success(resultType="matrix", result=[SERIES | {"values": [[1.0, "NaN"]]}]), "has no series with a topic"),
        (answered({"status": "error", "error": 'parse error: unexpected "}"'}, 400), "answers 400: parse error:"),
        ((404, b"no page"), "answers 404: Not Found"),
    ],
)
def test_what_cannot_be_used_is_told_in_one_line(api: PrometheusApi, answer: tuple[int, bytes], why: str) -> None:
    api.answer = answer
    with pytest.raises(PrometheusError) as told:
        read(api)
    assert why in str(told.value)
    assert api.url in str(told.value) or why.startswith("gives")
    assert "\n" not in str(told.value)


def test_who_does_not_answer_in_time_or_at_all_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus_rates, "_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"http://127.0.0.1:{mute.getsockname()[1]}"
        with pytest.raises(PrometheusError, match=f"^{url} gives no answer: .*timed out"):
            read_rates(url, 4, "", "", NOW_S)
    with pytest.raises(PrometheusError, match=f"^{url} gives no answer: .*refused"):
        read_rates(url, 4, "", "", NOW_S)
    with pytest.raises(PrometheusError, match=r"gives no answer: .*port"):
        read_rates("http://host:port", 4, "", "", NOW_S)


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = [Sample(at_s, RACKS, {**logs(5e6, at_s), **logs(1e6, at_s, topic="unknown")}, {}) for at_s in (0.0, 12.0)]
    monkeypatch.setattr(preflight, "ask", lambda *_: ())
    monkeypatch.setattr(cluster_samples, "Sampler", PlayedSampler)
    monkeypatch.setattr(PlayedSampler, "samples", iter(samples), raising=False)
    monkeypatch.setattr("cli.costs.estimate._wait", lambda _seconds: None)


def run(*options: str) -> Result:
    command = ["estimate", "--bootstrap-server", "nowhere:1", "--minutes", "0.2", *options]
    return CliRunner().invoke(build_app(), command)


@pytest.mark.usefixtures("played")
def test_averages_take_the_place_of_samples_and_programs_are_told_for_which_topics(api: PrometheusApi) -> None:
    api.rates = {BYTES_IN[0]: {"orders": always(2e6), "gone": always(1.0)}, BYTES_OUT[0]: {"orders": always(3e6)}}
    told = run("--prometheus", api.url, "--weeks", "2", "--json")
    assert told.exit_code == 0, told.output
    found: dict[str, Any] = json.loads(told.stdout.splitlines()[-1])
    topics = {one["topic"]: one for one in found["topics"]}
    assert topics["orders"]["produced_bytes"] == pytest.approx(2e6 * MONTH_S)
    assert topics["orders"]["read_bytes"] == pytest.approx(3e6 * MONTH_S)
    assert topics["unknown"]["produced_bytes"] == pytest.approx(1e6 * MONTH_S)
    assert (topics["orders"]["rate"], topics["unknown"]["rate"]) == ("averaged", "sampled")
    assert found["total"]["rate"] == "averaged and sampled"
    prometheus = found["prometheus"]
    assert prometheus.pop("begin") < prometheus.pop("end")
    assert prometheus == {
        "address": api.url,
        "queries": [f"sum by (topic) (rate({one[0]}[7200s]))" for one in (BYTES_IN, BYTES_OUT)],
        "days": 14.0,
        "topics": 1,
        "sampled_topics": ["unknown"],
    }


@pytest.mark.usefixtures("played")
def test_people_are_told_the_span_and_what_is_sampled_on_the_table_and_the_page(
    api: PrometheusApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "220")
    api.rates = {BYTES_IN[0]: {"orders": always(2e6)}}
    page = tmp_path / "estimate.html"
    told = " ".join(run("--prometheus", api.url, "--page", str(page)).stdout.split())
    for text in (told, page.read_text()):
        assert "Rates of 1 topics are averages of 28.0 days" in text
        assert "It has nothing of what consumers read, which is sampled." in text
        assert "It lacks 1, whose rates are sampled: unknown." in text
        assert "TB averaged" in text
        assert "TB sampled" in text


@pytest.mark.usefixtures("played")
@pytest.mark.parametrize("options", ["--prometheus prometheus:9090", "--prometheus http://a:b@host", "--bytes-in x"])
def test_a_wrong_option_is_a_wrong_command(options: str) -> None:
    assert run(*options.split()).exit_code == 2


@pytest.mark.usefixtures("played")
def test_without_an_answer_nothing_is_sampled(api: PrometheusApi) -> None:
    api.answer = (503, b"starting")
    assert str(run("--prometheus", api.url).exception) == f"{api.url} answers 503: Service Unavailable"
    assert len([*PlayedSampler.samples]) == 2, "the cluster was not read"
