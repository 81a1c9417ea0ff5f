"""Certificates and logins: an authority, agents' and brokers' certificates, the protocols among brokers."""
