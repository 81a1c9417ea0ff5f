"""What replication costs: what was done at the prices of a table, what a workload would cost, and what to change."""
