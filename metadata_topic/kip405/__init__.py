"""Reads KIP-405's own metadata topic, to know what the long-term tier holds.

- `kip405`: its records
- `tiered_offsets`: what they say together
"""
