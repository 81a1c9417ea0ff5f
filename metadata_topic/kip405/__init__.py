"""Reads KIP-405's own metadata topic, to know what the long-term tier holds."""
