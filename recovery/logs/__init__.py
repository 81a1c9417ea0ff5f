"""Makes logs from objects.

In the order in which data meets them:

- `stored_run`, `log_plan`: which runs make a log, by `log_settings` and a `timestamp_bound`
- `object_reads`, `run_reader`: in which order objects are read, ahead of their use
- `log_directory_target`, `log_writer`: files as Kafka would have written them
- `restore`: many logs at once
"""
