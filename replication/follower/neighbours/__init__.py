"""Agents of one zone read objects for each other: one side asks, the other gives."""
