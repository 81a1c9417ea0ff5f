"""Costs of replication: of what was done, at the prices of a table; of a planned workload; and what to change."""
