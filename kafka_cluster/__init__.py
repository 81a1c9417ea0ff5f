"""Asks a Kafka cluster what it has: topics, brokers, configurations, offsets. Builds the clients that ask."""
