"""Reads topics from object storage alone, while no broker runs: in Python, and as a data source of Spark.

In the order in which data meets them:

- `sources`: what is stored
- `stored_log`: one partition's batches
- `isolation`: without aborted transactions
- `decompression`, `columns`: records as Arrow columns
- `read`: for Python; `spark_source` for Spark, by `options` and `stream_offsets`
- `held_records`: what a log lost, appended again
"""
