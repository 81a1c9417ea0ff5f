"""What producers may send: every codec, with and without transactions, read by a committed reader."""

import pytest

from local_cluster.polling import wait_until
from local_cluster.workload.ledger import LedgerReport, ProducerPlan, ProducerReport, TransactionPlan
from tests.cluster.script import PATIENCE_S, Script

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def transactional(report: LedgerReport) -> list[ProducerReport]:
    return [producer for producer in report.producers if producer.name.endswith("-transactions")]


@pytest.mark.gate
@pytest.mark.kafka_core
def test_every_codec_and_transactions_with_aborts(script: Script) -> None:
    script.create_topic(partitions=3)
    script.produce(
        *(ProducerPlan(codec, codec=codec, records_per_s=100) for codec in CODECS),
        *(
            ProducerPlan(f"{codec}-transactions", codec=codec, records_per_s=100, transaction=TransactionPlan(10, 3))
            for codec in CODECS
        ),
        ProducerPlan("large", payload_bytes=600_000, records_per_s=2),
        ProducerPlan("without-waiting", acks="1", records_per_s=100),
    )
    script.expect_records_to_flow(2000)
    wait_until(
        lambda: all(found.aborted > 0 for found in transactional(script.workload.report())), "aborts", PATIENCE_S
    )
    report = script.expect_promises()
    for producer in transactional(report):
        # Exactly what was committed is read.
        assert producer.consumed == producer.acknowledged, str(report)
