"""A topic is deleted and made again under its name: to Kafka, and to us, it is another one."""

import pytest

from local_cluster.workload.ledger import ProducerPlan
from tests.cluster.script import Script


@pytest.mark.gate
def test_objects_of_a_deleted_topic_are_never_served_to_its_successor(script: Script) -> None:
    # same name, same offsets, same sizes of records, uploads of the first one still under way; only the bytes differ
    plan = ProducerPlan("numbered", records_per_s=400)
    script.create_topic(assignment=[[1, 2, 3]])
    script.produce(plan, seed=1)
    script.expect_records_to_flow(600)
    script.expect_promises()
    script.switch_all("put-latency-ms", "300")
    script.recreate_topic(assignment=[[1, 2, 3]])
    script.clear_switches()
    script.produce(plan, seed=2)
    script.expect_records_to_flow(600)
    script.expect_promises()
