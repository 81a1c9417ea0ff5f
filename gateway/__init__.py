"""The zone gateway for Kafka's clients: they reach the brokers of other zones by agents of their own zone."""
