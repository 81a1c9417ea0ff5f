"""Consumers' Fetch requests that the gateway answers itself, from what it reads once for all. See docs/gateway.md."""
