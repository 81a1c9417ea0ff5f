"""What Kafka writes: record batches, segment files, checkpoints and settings. Pure reading."""
