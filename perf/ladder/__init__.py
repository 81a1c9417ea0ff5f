"""Runs loads of clients in turns on stock Kafka and on others, in one run: `ladder`, `versions`, `price`."""
