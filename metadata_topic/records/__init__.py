"""The records of `__remote_wal_log_metadata`.

In the order in which data meets them:

- `states`: the life of an object, as one table
- `records`, `archive_records`, `usage_record`, `declared_gaps`: what can be said; `gap_record` and `record_fields` are
  parts of them, `offset_ranges` their sums
- `publishable`: what a publisher takes
- `serde`, `serde_batches`: bytes, one by one or many at once
- `topic_doubt`, `errors`: why a record or a topic is not believed
"""
