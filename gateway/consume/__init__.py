"""Consumers' Fetch responses through object storage. Sans-IO; see docs/gateway.md."""
