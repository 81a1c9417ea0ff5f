"""OpenTelemetry traces of combined segments, from the append to the high watermark, over all agents involved.

Trace and root span are calculated from the ids of cluster and segment, and the trace's id decides whether a segment is
sampled. So agents need not exchange anything, and all with the same ratio trace the same segments. The root span is the
leader's agent's, from its oldest append to stored; stages (`StageTimes`) are below it. Many batches share a segment;
for stages that each batch passes separately, the oldest batch counts.

A thread of the SDK sends the spans; what it cannot send is counted and dropped.
"""

import hashlib
import logging
from collections.abc import Iterable, Sequence
from typing import Final

import structlog
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context
from prometheus_client import CollectorRegistry, Counter

from agent.identity import AgentIdentity
from agent.settings.process_settings import TraceSettings
from plugin.format.archive_object_id import StoredObjectId
from plugin.segment_metadata import CombinedSegmentId
from plugin.wall_clock import Clocks
from rlm.write_path.uploads.segment_queue import UploadedSegment

log = structlog.get_logger(__name__)

ROOT: Final = "combined segment"
_SEND_TIMEOUT_S: Final = 5.0
_ANCHORED_S: Final = 60.0
"""How often the wall clock, which may be adjusted, is compared with the monotonic clock."""


class SegmentTraces:
    """Implements `rlm.write_path.metrics.StageSpans`. Used from the event loop only."""

    def __init__(self, processor: SpanProcessor, identity: AgentIdentity, sample_ratio: float, clocks: Clocks) -> None:
        """Ended spans go to the processor."""
        self._cluster_id = identity.cluster_id.encode()
        self._sampled_below = round(sample_ratio * 2**64)
        self._clocks = clocks
        self._anchor = self._anchored()
        self._ids = _Ids()
        resource = Resource.create(
            {
                "service.name": "remote-wal",
                "service.instance.id": str(identity.broker_id),
                "cloud.availability_zone": identity.rack or "",
                "kafka.cluster.id": identity.cluster_id,
            }
        )
        provider = TracerProvider(ALWAYS_ON, resource, shutdown_on_exit=False, id_generator=self._ids)
        provider.add_span_processor(processor)
        self._tracer = provider.get_tracer("remote-wal")

    def stored(self, segment: UploadedSegment, started_s: float, now_s: float) -> None:
        """Trace a stored object of the own broker's logs; its upload began at `started_s`."""
        found, oldest = self._context(segment.combined_segment_id), segment.oldest_item
        if found is None or oldest is None:
            return
        self._ids.next_root = found
        root = self._tracer.start_span(ROOT, Context(), start_time=self._wall_ns(oldest.seen_s, now_s))
        root.set_attribute("remote_wal.segment", str(segment.combined_segment_id))
        root.set_attribute("remote_wal.batches", sum(len(item.batches) for item in segment.items))
        root.set_attribute("remote_wal.partitions", len(segment.items))
        root.set_attribute("remote_wal.bytes", segment.size_bytes)
        root.end(self._wall_ns(now_s, now_s))
        self._stage(found, "queued", oldest.seen_s, oldest.queued_s, now_s)
        self._stage(found, "combined", oldest.queued_s, started_s, now_s)
        self._stage(found, "uploaded", started_s, now_s, now_s)

    def passed(self, stage: str, seconds: float, objects: Iterable[StoredObjectId]) -> None:
        """Trace that these objects' bytes passed the stage just now, which took so long."""
        now_s = self._clocks.monotonic_s()
        for one in set(objects):
            if isinstance(one, CombinedSegmentId) and (found := self._context(one)) is not None:
                self._stage(found, stage, now_s - seconds, now_s, now_s)

    def _context(self, segment_id: CombinedSegmentId) -> SpanContext | None:
        """Return the context of the segment's root span; None if it is not sampled."""
        digest = hashlib.sha256(self._cluster_id + str(segment_id).encode()).digest()
        if int.from_bytes(digest[8:16], "big") >= self._sampled_below:
            return None
        trace_id, span_id = int.from_bytes(digest[:16], "big"), int.from_bytes(digest[16:24], "big")
        return SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))

    def _stage(self, root: SpanContext, stage: str, begin_s: float, end_s: float, now_s: float) -> None:
        context = set_span_in_context(NonRecordingSpan(root), Context())
        span = self._tracer.start_span(stage, context, start_time=self._wall_ns(begin_s, now_s))
        span.end(self._wall_ns(end_s, now_s))

    def _wall_ns(self, monotonic_s: float, now_s: float) -> int:
        if now_s - self._anchor[0] > _ANCHORED_S:
            self._anchor = self._anchored()
        anchor_s, anchor_ms = self._anchor
        return anchor_ms * 1_000_000 + round((monotonic_s - anchor_s) * 1e9)

    def _anchored(self) -> tuple[float, int]:
        return self._clocks.monotonic_s(), self._clocks.wall_ms()


class _Ids(RandomIdGenerator):
    """Generates ids, with given ones for root spans."""

    def __init__(self) -> None:
        self.next_root: SpanContext | None = None

    def generate_trace_id(self) -> int:
        return self.next_root.trace_id if self.next_root is not None else super().generate_trace_id()

    def generate_span_id(self) -> int:
        root, self.next_root = self.next_root, None
        return root.span_id if root is not None else super().generate_span_id()


class CountedExporter(SpanExporter):
    """Passes spans to another exporter and counts the results.

    An absent collector is logged once, and once when it is back. Called on the SDK's thread.
    """

    def __init__(self, exporter: SpanExporter, endpoint: str, registry: CollectorRegistry) -> None:
        self._exporter = exporter
        self._endpoint = endpoint
        self._spans = span_counter(registry)
        self._is_away = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            result, reason = self._exporter.export(spans), "it refused them, or did not answer"
        except Exception as error:  # the exporter's error would otherwise go to a log of its own
            result, reason = SpanExportResult.FAILURE, type(error).__name__
        is_away = result is not SpanExportResult.SUCCESS
        self._spans.labels("failed" if is_away else "sent").inc(len(spans))
        if is_away and not self._is_away:
            log.warning("traces_not_sent", collector=self._endpoint, reason=reason, consequence="spans are dropped")
        elif self._is_away and not is_away:
            log.info("traces_sent_again", collector=self._endpoint)
        self._is_away = is_away
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


def span_counter(registry: CollectorRegistry) -> Counter:
    """Return the counter of spans by result."""
    told = "Spans of traces, by whether the collector took them"
    return Counter("remote_wal_trace_spans", told, ["result"], registry=registry)


def build_traces(
    settings: TraceSettings, identity: AgentIdentity, clocks: Clocks, registry: CollectorRegistry
) -> SegmentTraces:
    """Make traces for the configured collector.

    Headers and certificates come from the exporter's own variables (`OTEL_EXPORTER_OTLP_HEADERS` and so on).
    """
    endpoint = settings.otlp_endpoint or ""
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # `CountedExporter` logs it
    exporter = CountedExporter(OTLPSpanExporter(endpoint=endpoint, timeout=_SEND_TIMEOUT_S), endpoint, registry)
    return SegmentTraces(BatchSpanProcessor(exporter), identity, settings.sample_ratio, clocks)
