"""Reads the files that a broker keeps beside its segments.

In the order in which data meets them:

- `java_properties`, `server_properties`: settings
- `meta_properties`, `partition_metadata`: identities
- `leader_epoch_checkpoint`: where each leader epoch begins
- `cluster_metadata`: KRaft's own log
"""
