"""Moves of partitions.

In the order in which data meets them:

- `plan`, `balance`: which replicas go where
- `tail_requests`: leaders' agents upload the rest
- `moves`: step by step, without IO
- `admin`, `run`: asks Kafka, and does it
- `balance_turn`: which of several processes balances
"""
