"""Agents of one zone read objects for each other: who asks, and who gives."""
