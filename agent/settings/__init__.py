"""The agent's settings: one section for each package, in SI units, and values derived from them.

In the order in which data meets them:

- `setting_types`: the parts of a section, and how values are read
- `agent_settings`: all sections: `process_settings`, `upload_settings`, `replication_settings`, `lifecycle_settings`,
  `gateway_settings`
- `bypass`, `http_listener`, `kafka_client`, `plain_peers`: checked, and what follows from them
- `memory_shares`: who may take how much memory
- `configuration_doc`, `shown_configuration`: all keys for readers; their values at /config
"""
