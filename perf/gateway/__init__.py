"""Clients by the zone gateway beside clients at the brokers, each zone a network namespace."""
