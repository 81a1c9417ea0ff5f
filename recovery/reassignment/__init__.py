"""Moves of partitions: which replicas go where, the moves step by step, and the calls to Kafka."""
