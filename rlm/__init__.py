"""KIP-1176's remote log manager: `write_path` makes objects, `archive` merges them, `lifecycle` ends them."""
