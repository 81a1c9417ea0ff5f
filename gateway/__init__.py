"""The zone gateway for Kafka's clients: they reach brokers of other zones through agents of their own zone."""
