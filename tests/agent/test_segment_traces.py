"""Traces of combined segments: one over all agents, though they tell each other nothing of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

from agent.identity import AgentIdentity
from agent.metrics.segment_traces import ROOT, SegmentTraces, build_traces
from agent.settings.process_settings import TraceSettings
from local_cluster.polling import wait_until
from plugin.segment_metadata import CombinedSegmentId
from plugin.wall_clock import Clocks, wall_ms
from rlm.write_path.metrics import StageTimes
from rlm.write_path.uploads.segment_queue import MetaQueueItem, UploadedSegment
from tests.kafka_log.batches import batches
from tests.replication.fetch_frames import partition
from tests.replication.two_agents import two_agents

SEGMENT = CombinedSegmentId(1, 7, 0)
CLOCKS = Clocks(lambda: 100.0, lambda: 1_700_000_000_000)


def identity(broker_id: int = 1) -> AgentIdentity:
    return AgentIdentity("cluster", broker_id, 7, f"az{broker_id}", 0)


def in_memory(broker_id: int = 1, ratio: float = 1.0) -> tuple[SegmentTraces, InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    return SegmentTraces(SimpleSpanProcessor(exporter), identity(broker_id), ratio, CLOCKS), exporter


def uploaded(segment_id: CombinedSegmentId = SEGMENT) -> UploadedSegment:
    items = tuple(
        MetaQueueItem(partition(number), (), memoryview(b"records"), seen_s, 99.0)
        for number, seen_s in enumerate((98.5, 98.0))
    )
    return UploadedSegment(segment_id, items, (), 1000, 100.0)


def times_ms(span: ReadableSpan) -> tuple[int, int]:
    """Since 1970; CLOCKS's monotonic 100 s are 1,700,000,000,000 there."""
    assert span.start_time is not None
    assert span.end_time is not None
    return span.start_time // 1_000_000, span.end_time // 1_000_000


def test_a_stored_segment_is_a_trace_from_its_oldest_append_on() -> None:
    traces, exporter = in_memory()
    traces.stored(uploaded(), 99.5, 100.0)
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert {name: times_ms(span) for name, span in spans.items()} == {
        ROOT: (1_699_999_998_000, 1_700_000_000_000),
        "queued": (1_699_999_998_000, 1_699_999_999_000),
        "combined": (1_699_999_999_000, 1_699_999_999_500),
        "uploaded": (1_699_999_999_500, 1_700_000_000_000),
    }
    root = spans.pop(ROOT)
    assert root.parent is None
    assert root.context is not None
    assert {span.parent.span_id for span in spans.values() if span.parent} == {root.context.span_id}
    assert root.resource.attributes["service.instance.id"] == "1"
    assert root.attributes is not None
    assert root.attributes["remote_wal.bytes"] == 1000


def test_a_segment_that_was_void_by_the_time_that_it_was_stored_has_no_trace() -> None:
    traces, exporter = in_memory()
    traces.stored(UploadedSegment(SEGMENT, (), (), 1000, 100.0), 99.5, 100.0)
    assert not exporter.get_finished_spans()


async def test_a_void_segment_is_no_defect_of_those_who_announce_it() -> None:
    async with two_agents() as agents:
        agents.leader.segment_uploaded(UploadedSegment(SEGMENT, (), (), 1000, 100.0))
        follower = await agents.connect()
        agents.append({0: batches(1, 0)})
        assert await follower.fetch({0: 0}) == follower.expected({0: batches(1, 0)})


def test_another_agents_stages_are_in_the_same_trace_and_the_same_segments_are_sampled() -> None:
    leader, leaders = in_memory(ratio=0.3)
    follower, followers = in_memory(broker_id=2, ratio=0.3)
    for sequence in range(200):
        segment_id = SEGMENT._replace(sequence=sequence)
        leader.stored(uploaded(segment_id), 99.5, 100.0)
        follower.passed("hydrated", 0.25, [segment_id, segment_id])
    roots = {
        span.context.trace_id: span.context
        for span in leaders.get_finished_spans()
        if span.parent is None and span.context
    }
    stages = followers.get_finished_spans()
    assert 20 < len(roots) < 120
    assert len(stages) == len(roots)
    assert {(one.context.trace_id, one.parent.span_id) for one in stages if one.context and one.parent} == {
        (root.trace_id, root.span_id) for root in roots.values()
    }
    assert {times_ms(one) for one in stages} == {(1_699_999_999_750, 1_700_000_000_000)}


async def test_both_agents_tell_of_each_stage_that_a_segment_passes() -> None:
    async with two_agents() as agents:
        told = Told()
        agents.stage_times.spans = agents.leader_stage_times.spans = told
        follower = await agents.connect()
        agents.append({0: batches(1, 0)})
        assert await follower.fetch({0: 0}) == follower.expected({0: batches(1, 0)})
        follower.send({0: 1})
        await agents.until(lambda: "high_watermark" in told.stages)
    assert set(told.stages) == {"announced", "fetched", "hydrated", "spliced", "high_watermark"}
    assert set(map(tuple, told.stages.values())) == {tuple(told.stages["announced"])}


class Told:
    """As `StageSpans`."""

    def __init__(self) -> None:
        self.stages: dict[str, list[object]] = {}

    def stored(self, segment: UploadedSegment, started_s: float, now_s: float) -> None:
        raise AssertionError("nothing is uploaded here")

    def passed(self, stage: str, seconds: float, objects: Any) -> None:
        self.stages[stage] = list(objects)


class Collector:
    """Takes traces by OTLP over HTTP, or refuses them."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, str]] = []
        """Of the agent, by its broker's id, and the name."""
        self.status = 200
        told = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if told.status == 200:
                    told.take(ExportTraceServiceRequest.FromString(body))
                self.send_response(told.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/traces"

    def take(self, request: ExportTraceServiceRequest) -> None:
        for resource in request.resource_spans:
            told = {one.key: one.value.string_value for one in resource.resource.attributes}
            self.spans += [
                (told["service.instance.id"], span.name) for scope in resource.scope_spans for span in scope.spans
            ]

    @contextmanager
    def listening(self) -> Iterator[None]:
        thread = Thread(target=self._server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()


@pytest.mark.parametrize(("status", "result", "spans"), [(200, "sent", 4), (400, "failed", 0)])
def test_a_collector_gets_them_and_what_it_refuses_is_counted(
    status: int, result: str, spans: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    registry, collector = CollectorRegistry(), Collector()
    collector.status = status
    with collector.listening():
        settings = TraceSettings.model_validate(
            {"remote.wal.traces.otlp.endpoint": collector.url, "remote.wal.traces.sample.ratio": 1.0}
        )
        traces = build_traces(settings, identity(3), Clocks(lambda: 100.0, wall_ms), registry)
        StageTimes(registry, traces).stored(uploaded(), 99.5, 100.0)
        labels = {"result": result}
        wait_until(lambda: registry.get_sample_value("remote_wal_trace_spans_total", labels) == 4, "spans")
    assert len(collector.spans) == spans
    assert {broker for broker, _ in collector.spans} <= {"3"}
