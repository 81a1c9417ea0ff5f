"""What Prometheus gets of the agent's state."""

import time
from collections import Counter
from typing import cast

import pytest

from agent.late_storage import LateStorageManager
from agent.metrics import StateCollector
from agent.metrics_doc import _NoLedPartitions
from metadata_topic.client_config import KafkaClientConfig
from metadata_topic.publisher import RemoteWalMetadataPublisher
from metadata_topic.store import RemoteWalMetadataStore
from rlm.remote_wal_log_manager import RemoteWalLogManager


@pytest.mark.parametrize(
    ("counter", "sample", "labels"),
    [
        ("gaps", "remote_wal_metadata_gaps_total", {}),
        ("started_over", "remote_wal_metadata_started_over_total", {}),
        ("fenced", "remote_wal_metadata_fenced_total", {}),
        ("retained_unknown", "remote_wal_metadata_retained_unknown", {}),
        ("snapshots_saved", "remote_wal_metadata_snapshots_total", {"outcome": "saved"}),
    ],
)
def test_counters_of_the_metadata_topic_are_metrics(counter: str, sample: str, labels: dict[str, str]) -> None:
    counters: Counter[str] = Counter()
    collector = StateCollector(
        LateStorageManager(),
        cast(RemoteWalLogManager, _NoLedPartitions()),
        RemoteWalMetadataPublisher(KafkaClientConfig(""), 0, 1, time.monotonic),
        RemoteWalMetadataStore(),
        lambda: counters,
    )

    def value() -> float:
        samples = [found for metric in collector.collect() for found in metric.samples]
        return next(found.value for found in samples if found.name == sample and found.labels == labels)

    assert value() == 0
    counters[counter] += 3
    assert value() == 3
