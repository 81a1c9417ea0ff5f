"""Reads what Kafka writes. Never writes.

In the order in which data meets them:

- `topic_partition`: names
- `log_directory`, `broker_files`: a broker's directories, and its files beside the segments
- `segment_files`, `segment_directory`: a partition's segments
- `segment_tail`: follows the newest, and tells by `tail_events`; `log_lineage`: whether it is the same log
- `record_batch`, `plain_records`: batches and records; `crc32c`, `batch_digests`, `zstd` serve them
- `byte_cursor`, `flexible_encoding`: fields; `open_files`: file descriptors; `errors`
"""
