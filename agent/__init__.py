"""The agent as a process. `process` says what is made, started and stopped, in which order.

`settings` holds the settings, `settings_file` reads them from the broker's file and checks them; `tls` has keys and
certificates. `wiring` puts the rooms together, with a builder for each; `defects` restarts what failed. The process
itself: `identity`, `service_manager`, `watchdog`, `descriptors`. Knowledge of brokers: `leadership`, `found_peers`. The
store: `storage_loading`, `lease_watch`. What the agent writes to the settings topic: `settings_keeping`.

The agent's state is in `agent_state`; `metrics` and the pages of `http` read it.
"""
