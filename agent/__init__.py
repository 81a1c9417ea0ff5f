"""The agent as a process.

In the order in which a start meets them:

- `process`: what is made, started and stopped, in which order; `configuration` is read once for all of it
- `settings_file`, `settings`: the keys of the broker's file, and their checks
- `identity`, `descriptors`, `service_manager`, `log_stream`: one process per broker, its limits, its watchdog and log
- `tls`: keys and certificates
- `wiring`: builds all parts from the settings; `defects` restarts what failed
- `leadership`, `found_peers`: which logs the broker leads, and where other agents are
- `storage_loading`, `stores`, `lease_watch`: the object store, for the agent and for tools; whose bucket it is
- `settings_keeping`, `link_pauses`, `pack_rules`: the settings topic: written, and applied
- `agent_state`, `metrics`, `http`: the state, and who reads it; `release` says of which version
- `own_metadata`: what commands beside the agent ask
"""
