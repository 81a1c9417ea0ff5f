"""Reads the active segments (KIP-1176).

In the order in which data meets them:

- `resume_point`: where the upload of a log continues
- `append_watcher`: who reports appends
- `wal_task`: RLMWalTask: one run of a log, as `log_task` has its outcome
- `resumed_tail`: first what is missing, then the log's end
"""
