"""Moves of partitions: which replicas go where, the moves step by step, and Kafka's side of them."""
