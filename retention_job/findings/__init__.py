"""Finds what is wrong.

In the order in which data meets them:

- `kinds`: what can be wrong, and how badly
- `find`: all rules: `object_rules`, `partition_rules`
- `apply`: hands safe deletions to the agents
"""
