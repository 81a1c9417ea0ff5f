"""A workload and its judgement.

- `json_events`: values as web shops send them
- `ledger`: numbered records, and the account of each one's outcome
- `replica_comparison`: the replicas, byte by byte
"""
