"""The agent as a process. `process` says what is made in what order, what starts and what stops.

`settings` holds what is set, `settings_file` reads it out of the broker's file and judges it; `tls` has what encrypts.
`wiring` puts the rooms together, a builder for each; `storage_run` and `storage_system` there keep together what was
made, and `defects` begins anew what failed. The process itself: `identity`, `service_manager`, `watchdog`,
`descriptors`. What it knows of brokers: `leadership`, `broker_racks`, `found_peers`, `partition_directories`.

What it tells: `agent_state`, and what is read off it by `metrics` and by the pages of `http`.
"""
