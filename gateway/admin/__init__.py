"""Topic settings through Kafka's own tools: the agent handles what brokers do not know, the broker the rest."""
