"""Certificates and logins: an authority, agents' and brokers' certificates, what brokers speak among each other."""
