"""Compares clients of the zone gateway with clients of the brokers, each zone a network namespace."""
