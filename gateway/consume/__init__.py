"""Consumers' Fetch responses through object storage. Sans-IO; see docs/gateway.md.

In the order in which data meets them:

- `consumer_links`: links for records, where they are worth the reads
"""
