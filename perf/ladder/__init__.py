"""Runs loads of clients in turns on stock Kafka and on the rungs of the ladder, in one run."""
