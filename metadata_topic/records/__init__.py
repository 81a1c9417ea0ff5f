"""The records of __remote_wal_log_metadata, their values and their serialization."""
