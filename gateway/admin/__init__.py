"""Topics' settings by Kafka's own tools: what brokers do not know of a request is answered here, the rest by them."""
