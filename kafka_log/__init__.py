"""Reads what Kafka writes: record batches, segment files, checkpoints and settings. Never writes."""
