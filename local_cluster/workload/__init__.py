"""Numbered records, the account of what became of each, and whether replicas are the same bytes."""
