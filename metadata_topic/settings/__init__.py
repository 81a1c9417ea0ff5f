"""__remote_wal_settings: what topics have switched on, and requests for tails."""
