"""Turns appends into stored, announced objects: tasks, group commit, the queue, uploads, the backlog.

In the order in which data meets them:

- `assignment`: the partitions that are led
- `reading`: what was appended to their logs
- `core`: what is done next, without IO
- `commit`: link or inline, and when an upload starts
- `uploads`: objects, and who is told of them
- `remote_wal_log_manager`: does what the core wants, and tells others
- `backlog_uploads`: stores what logs that were far behind passed over
- `runtime`: clocks, threads and events of files, handed in
- `link_costs`, `explanation`, `metrics`: what links save, why a topic travels as it does, and what is counted
"""
