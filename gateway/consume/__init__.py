"""Consumers' Fetch responses by object storage, sans-IO. See docs/gateway.md."""
