"""Certificates and logins.

- `authority`: signs certificates
- `listeners`: the protocols among agents and brokers
"""
