"""Costs of replication.

In the order in which data meets them:

- `usage_table`, `stored_objects`, `cost_tables`: what was done, at the prices of a table
- `cost_model`: what a workload costs; `scenarios` are plans, `estimate` is of a running cluster
"""
