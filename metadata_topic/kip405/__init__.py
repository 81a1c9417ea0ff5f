"""KIP-405's own metadata topic, read for what the long-term tier holds."""
