"""Consumers' Fetch responses through object storage. Sans-IO; see docs/gateway.md.

In the order in which data meets them:

- `fetch_rack`: consumers without a rack get their zone
- `consumer_links`: links for records, where `read_worth` says that they pay
- `consumer_responses`: responses with links, in order
- `consume_metrics`: what is counted
"""
