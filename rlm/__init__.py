"""KIP-1176's remote log manager: `write_path` from appends to objects, `lifecycle` of these, and their `archive`."""
