"""What is told of a load by default beside the same inline."""

from local_cluster.agent_metrics import parse_metrics
from perf.defaults import Defaults, as_table
from plugin.prices import EXPRESS, PriceTable
from retention_job.cost.cost_model import Tariff

_METRICS = """\
# TYPE process_cpu_seconds_total counter
process_cpu_seconds_total 3.0
# TYPE remote_wal_replicated_record_bytes_total counter
remote_wal_replicated_record_bytes_total{path="inline"} 2e9
# TYPE remote_wal_peer_bytes_total counter
remote_wal_peer_bytes_total{role="leader",direction="sent"} 5e8
# TYPE remote_wal_stock_bytes_total counter
remote_wal_stock_bytes_total{direction="response"} 2e9
# TYPE remote_wal_packed_bytes_total counter
remote_wal_packed_bytes_total{form="before"} 1.6e9
remote_wal_packed_bytes_total{form="after"} 4e8
"""


def test_packed_records_cost_what_crosses_and_their_cpu_is_told_for_each_megabyte_produced() -> None:
    measured = Defaults("a fleet", "inline", {"MB/s": 6.0}, parse_metrics(_METRICS))
    tariff = Tariff.of(PriceTable.load(), EXPRESS)
    row = measured.row(tariff)
    assert (row["crossed"], row["packed"], row["CPU ms per MB"]) == (0.25, 0.25, 3.0)
    assert row["$ per GB"] == 0.25 * 2 * 0.02
    shown = {str(one.header): list(one.cells) for one in as_table([measured], tariff).columns}
    assert (shown["packed"], shown["CPU ms per MB"], shown["$ per GB"]) == (["25.0%"], ["3.0"], ["0.0100"])
