"""The write path without IO: it takes events and the time, and returns actions.

In the order in which data meets them:

- `write_path_core`: what is led, and what became of reads and uploads
- `led_partition`: one log, and how far its upload is
- `partition_schedule`: when each log is read
- `pacing`: what comes next: a read, an upload, or a wait
- `backlog`: what logs that were passed over still lack
- `actions`: what is to be done, as values
- `led_views`: what replication sees of it
"""
