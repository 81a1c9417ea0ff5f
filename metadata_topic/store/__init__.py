"""What the metadata topic's records say together.

In the order in which data meets them:

- `topic_continuity`: whether this is the topic that was read before
- `store`, `store_state`: what is known, and how a record changes it
- `fencing`: whose records count
- `segment_table`: objects, in SQLite
- `run_index`, `partition_lookups`: from an offset to the object that has it
- `dead_tails`, `declared_ends`, `held_records`, `released_offsets`: what leaders said of offsets; `sequence_set`: sets
- `archive`: the same for archive objects
- `store_image`, `snapshots`: all of it as values, and in object storage
"""
