"""Rebuilds a broker's log directories from object storage, checks what is stored, and moves partitions.

In the order in which data meets them:

- `cluster_view`: what the cluster says
- `metadata`: what is stored
- `logs`: plans logs, reads objects, writes files; `patience` waits for the store
- `broker_recovery`: all logs of a broker; `verification` only reads what they need
- `reassignment`: moves between living brokers
- `errors`: what can go wrong
"""
