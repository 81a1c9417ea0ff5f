"""Reads what the job judges.

In the order in which data meets them:

- `kafka`: the cluster, and its topics' records
- `decoding`: records as rows
- `listing`: the stores' objects
- `release_facts`: how long each entry must be kept
"""
