"""Consumers' Fetch responses through object storage. Sans-IO; see docs/gateway.md.

In the order in which data meets them:

- `fetch_rack`: consumers without a rack get their zone
- `consumer_links`: links for records, where they are worth the reads
"""
