"""What is known, saved in object storage and loaded from there.

In the order in which data meets them:

- `snapshot`, `archive_snapshot`: a store as bytes
- `store_snapshots`: made and taken in; `sparse_store` takes in what is new alone
- `snapshot_keeper`: where they are
"""
