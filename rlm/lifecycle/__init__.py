"""The life of stored objects, from their upload to their deletion.

In the order in which data meets them:

- `cluster_observer`: what the cluster says of topics and brokers
- `gap_declarations`: offsets that no object can have
- `failover`: entries that an election killed
- `log_starts`: where logs begin, and why
- `tiered_storage`: what KIP-405 holds
- `release`: whether an entry is wanted any more
- `object_ownership`: whose objects this agent deletes
- `expiration`: which objects go, and when
- `orphans`: where store and metadata disagree
- `unpublished_segments`: objects whose metadata may still come
- `incarnation_watch`, `lease`: whether this agent may still write and delete
"""
