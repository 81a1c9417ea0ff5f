"""The agent as a process. `process` says what is made in what order, what starts and what stops.

Settings: `settings` and its sections (`upload_settings`, `replication_settings`, `lifecycle_settings`,
`process_settings`), read by `settings_file`. Builders, one for each room: `relaying`, `write_path`, `lifecycle`,
`archive`, `kafka_following`; `storage_run` and `storage_system` keep together what they made, and `defects` begins anew
what failed. The process itself: `identity`, `service_manager`, `watchdog`, `descriptors`.

What it tells: `agent_state` and what is read off it by `metrics`, `topic_metrics`, `savings`, `status`; `http_endpoint`
and its pages, `status_page` and `shown_configuration`; `alarms`, `certificates`, `loop_times`, `store_times`, `usage`.
"""
