"""Compares clients of the zone gateway with clients of the brokers, each zone a network namespace.

- `world`: the zones
- `clients`: what runs in them
- `command`: measures both ways
"""
