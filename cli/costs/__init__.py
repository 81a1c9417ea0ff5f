"""Commands that show what things cost.

- `scenario`: a named workload, computed
- `estimate`: a running cluster, by `cluster_samples`, `prometheus_rates` and `packed_samples`
- `report`: what is stored, and what agents have moved; `report_job` runs it
"""
